"""A real decoder with a paged KV cache, in torch: it runs block tables and measures steps.

The rest of prefixsim only *prices* steps. Here they are computed, for two ends: to show that the
block tables of a policy are right (`gpu_backend.execution`), and to measure what a step costs on
the machine at hand (`gpu_backend.calibration`).

The only home of torch, which is imported where it is needed: without it, `require_torch` says how
to install it, and the rest of prefixsim works.
"""

from __future__ import annotations

from importlib.util import find_spec

from sim.errors import UsageError


def require_torch(what: str) -> None:
    """Refuse to go on without torch.

    Raises
    ------
    UsageError
        torch is not installed; the sentence says how to.
    """
    if find_spec("torch") is None:
        raise UsageError(f'{what} needs torch; install it with: pip install "prefixsim[gpu]"')
