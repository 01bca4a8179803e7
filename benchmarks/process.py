"""Runs a command as a process of its own and measures it from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

# An installed package has its bytecode beside it; a checkout gets it by running.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a command: wall time, CPU time, largest memory, and the JSON that it printed."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    printed: dict[str, Any]


def run(command: Sequence[str], before: Callable[[], None] | None = None) -> Measured:
    """Run a command, which may print one JSON object; stop the benchmark if it fails.

    ``before`` is called in the new process, to limit it.
    """
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_ENVIRONMENT,
        preexec_fn=before,  # noqa: PLW1509 - there are no threads
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        text = process.stdout.read().decode()
        said = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - started
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{said}")
    # A peer may write a log to stdout, too: the object is what begins with the first brace.
    printed = json.loads(text[text.index("{") :]) if "{" in text else {}
    peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, peak, printed)


def medians(runs: Sequence[Measured]) -> Measured:
    """Take the median of every measure on its own; what was printed is that of the last run."""
    return Measured(
        median(r.wall_s for r in runs),
        median(r.cpu_s for r in runs),
        median(r.peak_mib for r in runs),
        runs[-1].printed,
    )
