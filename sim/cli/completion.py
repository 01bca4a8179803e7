"""What a shell offers for the values of options, see ``prefixsim --install-completion``.

Where nothing fits, shells offer files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Names = Callable[[], Iterable[str]]
Completer = Callable[[str], list[str]]


def one_of(names: Names) -> Completer:
    """Offer those names that begin with what is typed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def some_of(names: Names) -> Completer:
    """Offer names for the last part of a comma list, but none twice."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [
            f"{before}{comma}{name}"
            for name in names()
            if name.startswith(last) and name not in given
        ]

    return complete


def these(*names: str) -> Names:
    """Give these names."""
    return lambda: names


def policies() -> Iterable[str]:
    """Name the policies."""
    from policies import names  # noqa: PLC0415 - keeps --help quick

    return names()


def generators() -> Iterable[str]:
    """Name the generators of workloads."""
    from workloads import GENERATORS  # noqa: PLC0415 - as above

    return GENERATORS


def models() -> Iterable[str]:
    """Name the models of the cost presets."""
    from sim.presets import list_presets  # noqa: PLC0415 - as above

    return dict.fromkeys(model for model, _ in list_presets())


def gpus() -> Iterable[str]:
    """Name the GPUs of the cost presets."""
    from sim.presets import list_presets  # noqa: PLC0415 - as above

    return dict.fromkeys(gpu for _, gpu in list_presets())


def overheads() -> Iterable[str]:
    """Name what ``--overhead`` takes beside files."""
    from sim.overhead import profile_names  # noqa: PLC0415 - as above

    return dict.fromkeys(("vllm", "own", "none", *profile_names()))


def decoders() -> Iterable[str]:
    """Name the shapes of real decoders."""
    from gpu_backend.shape import PRESETS  # noqa: PLC0415 - as above

    return PRESETS
