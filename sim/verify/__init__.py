"""Replays recorded logs of real block managers, schedulers and engines against our policies.

The format is described in ``docs/recorded-logs.md``; people can record their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import policies
from sim.errors import UsageError
from sim.fast.support import pool_rules_of
from sim.verify import allocator, engine, radix, scheduler
from sim.verify.fields import shown
from sim.verify.log import Divergence, Log, read_log

__all__ = ["Divergence", "Verification", "verify"]


@dataclass(slots=True)
class Verification:
    """Outcome over all files.

    Attributes
    ----------
    divergences
        Every differing field, in order of file and line.
    num_without_fast
        Files that were replayed plain although fast was asked for: their policy has no compiled
        form.
    errors
        Files that could not be replayed, one sentence each.
    """

    num_files: int = 0
    num_diverging: int = 0
    num_without_fast: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def num_agreeing(self) -> int:
        """Files replayed without any difference."""
        return self.num_files - self.num_diverging - len(self.errors)

    def to_json(self) -> dict[str, object]:
        """Plain data for machines."""
        return {
            "files": self.num_files,
            "agree": self.num_agreeing,
            "diverge": self.num_diverging,
            "divergences": [asdict(divergence) for divergence in self.divergences],
            "errors": self.errors,
        }


def verify(
    paths: Iterable[Path],
    *,
    policy: str | None = None,
    traces: Path | None = None,
    fast: bool = False,
    on_file: Callable[[Path, list[Divergence]], None] | None = None,
) -> Verification:
    """Replay every log under ``paths``.

    Parameters
    ----------
    paths
        Log files, or folders that hold ``*.jsonl`` at any depth; what is named twice counts once.
    policy
        Policy to replay all of them with; by default the one that models the file's variant.
    traces
        Folder of the traces that engine logs name.
    fast
        Replay with the compiled form of each policy that has one.
    on_file
        Called after each file that could be replayed, with its divergences.

    Raises
    ------
    UsageError
        No such path, or a folder without logs. What is wrong with a single file stands in
        `Verification.errors` and does not stop the others.
    """
    if policy is not None:
        policies.load(policy)
    known_traces = engine.Traces(traces)
    variants = policies.variants()
    outcome = Verification()
    files: dict[Path, Path] = {}
    for path in _files(paths):
        files.setdefault(path.resolve(), path)
    for path in files.values():
        outcome.num_files += 1
        try:
            log = read_log(path)
            name, recorded = _policies_for(log, policy, variants)
            takes_fast = fast and _has_compiled_form(log, name)
            divergences = list(_replay(log, name, recorded, known_traces, fast=takes_fast))
        except UsageError as error:
            outcome.errors.append(str(error))
            continue
        outcome.num_without_fast += fast and not takes_fast
        outcome.num_diverging += bool(divergences)
        outcome.divergences += divergences
        if on_file is not None:
            on_file(path, divergences)
    return outcome


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        try:
            is_folder, is_file = path.is_dir(), path.is_file()
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read ({error.strerror}); name recorded logs or folders of them."
            ) from error
        if not (is_folder or is_file):
            what = "is no file" if path.exists() else "does not exist"
            raise UsageError(f"{path} {what}; name recorded logs or folders of them.")
        if is_file:
            yield path
            continue
        found = sorted(path.rglob("*.jsonl"))
        if not found:
            raise UsageError(f"{path} holds no .jsonl file; name a folder of recorded logs.")
        yield from found


def _policies_for(log: Log, policy: str | None, variants: dict[str, str]) -> tuple[str, str]:
    """Return the policy to replay a log with, and the one that models what was recorded."""
    if policy is None and log.text("variant") not in variants:
        log.refuse(
            log.config_number,
            f"variant {shown(log.text('variant'))} is modelled by no policy",
            f"known are {', '.join(sorted(variants))}, or choose one with --policy",
        )
    # With a policy named, the variant may be anything or absent.
    recorded = variants.get(str(log.config.get("variant")), policy or "none")
    return (policy or recorded) if log.is_caching() else "none", recorded


def _has_compiled_form(log: Log, policy: str) -> bool:
    rules = pool_rules_of(policies.load(policy))
    # Without caching there is a count of free blocks only, and an allocator log names them.
    if rules is None or radix.is_radix(log):
        return False
    return rules.caches or log.kind != "allocator"


def _replay(
    log: Log, policy: str, recorded: str, traces: engine.Traces, *, fast: bool
) -> Iterator[Divergence]:
    if radix.is_radix(log):
        return radix.replay(log, policy)
    if log.kind == "engine":
        return engine.replay(log, policy, traces, fast=fast)
    if log.kind == "scheduler":
        return scheduler.replay(log, policy, fast=fast)
    return allocator.replay(log, policy, recorded, fast=fast)
