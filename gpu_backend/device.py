"""Where a model runs: device, number type, clock, memory."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from sim.errors import UsageError

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Device:
    """A CUDA GPU or the CPU.

    Parameters
    ----------
    name
        ``cuda``, ``cpu``, or None for the first of them that is there.
    threads
        Of the CPU. With one, sums are taken in one order on any machine, and threads do not wait
        for each other where others use the machine too.

    Raises
    ------
    UsageError
        There is no such device here.
    """

    def __init__(self, name: str | None = None, threads: int = 1) -> None:
        has_cuda = torch.cuda.is_available()
        chosen = name or ("cuda" if has_cuda else "cpu")
        if chosen not in ("cuda", "cpu"):
            raise UsageError(f"--device {chosen!r} must be cuda or cpu.")
        if chosen == "cuda" and not has_cuda:
            raise UsageError(
                "--device cuda: torch finds no CUDA GPU on this machine; use --device cpu, or "
                "install a driver and a CUDA build of torch."
            )
        if chosen == "cpu":
            torch.set_num_threads(threads)
        self.torch = torch.device(chosen, 0) if chosen == "cuda" else torch.device("cpu")

    @property
    def is_cuda(self) -> bool:
        """Whether this is a GPU."""
        return self.torch.type == "cuda"

    def dtype(self, name: str | None = None) -> torch.dtype:
        """Look up a number type; by default bf16 on a GPU and fp32 on the CPU."""
        chosen = name or ("bf16" if self.is_cuda else "fp32")
        if chosen not in DTYPES:
            raise UsageError(f"--dtype {chosen!r} must be one of {', '.join(DTYPES)}.")
        return DTYPES[chosen]

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)

    def seconds(self, work: Callable[[], object]) -> float:
        """Time one call: between CUDA events on a GPU, by `clock` on the CPU."""
        if self.is_cuda:
            event: Any = torch.cuda.Event
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3
        return self.host_seconds(work)

    def host_seconds(self, work: Callable[[], object]) -> float:
        """Time one call by `clock`, until its result is there."""
        now = time.thread_time if self.clock == "thread" else time.perf_counter
        self.synchronize()
        started = now()
        work()
        self.synchronize()
        return now() - started

    @property
    def clock(self) -> str:
        """``thread`` where one thread of the CPU does all the work, otherwise ``wall``.

        The clock of a thread stands still while others have the core: it tells what wall time
        would be on a machine of one's own.
        """
        return "thread" if not self.is_cuda and torch.get_num_threads() == 1 else "wall"

    def free_bytes(self) -> int:
        """Memory that is free now."""
        if self.is_cuda:
            return int(torch.cuda.mem_get_info(self.torch)[0])
        return _free_host_bytes()

    def describe(self) -> dict[str, str | int]:
        """Machine and versions, for the record beside a measurement."""
        about: dict[str, str | int] = {
            "device": self.torch.type,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        }
        if self.is_cuda:
            properties = torch.cuda.get_device_properties(self.torch)
            about["name"] = properties.name
            about["memory_bytes"] = properties.total_memory
            about["cuda"] = str(torch.version.cuda)
        else:
            about["name"] = _processor()
            about["instructions"] = torch.backends.cpu.get_cpu_capability()
            about["threads"] = torch.get_num_threads()
        about["clock"] = "events" if self.is_cuda else self.clock
        return about


def _free_host_bytes() -> int:
    """Ask the system what new work can have without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        # Not on Linux: half of the memory is a guess that leaves room for others.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 << 30


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
