"""Replays recorded logs of real block managers, schedulers and engines against our policies.

The format is described in ``docs/recorded-logs.md``; people can record their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import policies
from sim.errors import UsageError
from sim.verify import allocator, engine, radix, scheduler
from sim.verify.log import Divergence, Log, read_log

__all__ = ["Divergence", "Verification", "verify"]


@dataclass(slots=True)
class Verification:
    """Outcome over all files.

    Attributes
    ----------
    divergences
        Every differing field, in order of file and line.
    errors
        Files that could not be replayed, one sentence each.
    """

    num_files: int = 0
    num_diverging: int = 0
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
    on_file: Callable[[Path, list[Divergence]], None] | None = None,
) -> Verification:
    """Replay every log under ``paths``.

    Parameters
    ----------
    paths
        Log files, or folders that hold ``*.jsonl`` at any depth.
    policy
        Policy to replay all of them with; by default the one that models the file's variant.
    traces
        Folder of the traces that engine logs name.
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
    outcome = Verification()
    for path in list(_files(paths)):
        outcome.num_files += 1
        try:
            divergences = list(_replay(read_log(path), policy, known_traces))
        except UsageError as error:
            outcome.errors.append(str(error))
            continue
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            outcome.errors.append(
                f"{path}: a field is missing or of the wrong kind "
                f"({type(error).__name__}: {error}); recorded logs are described in "
                "docs/recorded-logs.md."
            )
            continue
        outcome.num_diverging += bool(divergences)
        outcome.divergences += divergences
        if on_file is not None:
            on_file(path, divergences)
    return outcome


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(path.rglob("*.jsonl"))
            if not found:
                raise UsageError(f"{path} holds no .jsonl file; name a folder of recorded logs.")
            yield from found
        elif path.is_file():
            yield path
        else:
            raise UsageError(f"{path} does not exist; name recorded logs or folders of them.")


def _replay(log: Log, policy: str | None, traces: engine.Traces) -> Iterator[Divergence]:
    name = _policy_for(log, policy)
    if radix.is_radix(log):
        return radix.replay(log, name)
    if log.kind == "engine":
        return engine.replay(log, name, traces)
    if log.kind == "scheduler":
        return scheduler.replay(log, name)
    return allocator.replay(log, name)


def _policy_for(log: Log, policy: str | None) -> str:
    if log.config.get("enable_prefix_caching") is False:
        return "none"
    if policy is not None:
        return policy
    variant, known = str(log.setting("variant")), policies.variants()
    if variant not in known:
        raise UsageError(
            f"{log.path}:1: variant {variant!r} is modelled by no policy; known are "
            f"{', '.join(sorted(known))}, or choose one with --policy."
        )
    return known[variant]
