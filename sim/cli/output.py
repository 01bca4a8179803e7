"""How the command line speaks: results to stdout, everything else to stderr."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sim.columns import columns_of
from sim.jsonable import without_nan

if TYPE_CHECKING:  # takes a twentieth of a second
    import pandas as pd
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

SHOWN = (
    "hit_rate",
    "infinite_hit_rate",
    "num_cached_tokens",
    "num_prompt_tokens",
    "num_requests",
    "num_finished",
    "num_rejected",
    "num_preemptions",
    "ttft_ms_mean",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "tpot_ms_mean",
    "e2e_s_mean",
    "output_throughput",
    "makespan_s",
)
"""What the summary of a run shows of its row; ``--json`` shows all."""

OF_TIERS = (
    *("device_hit_rate", "host_hit_rate", "ssd_hit_rate", "num_recomputed_tokens", "load_s"),
    *("host_read_gb", "host_written_gb", "ssd_read_gb", "ssd_written_gb"),
)
"""What it shows too where there are tiers below the GPU."""


def shown(summary: Mapping[str, Any] | pd.Series[Any]) -> list[str]:
    """List the figures that the summary of a run shows."""
    tiers = [name for name in ("host", "ssd") if summary[f"{name}_capacity_tokens"]]
    others = [name for name in ("host", "ssd") if name not in tiers]
    of_tiers = [name for name in OF_TIERS if tiers and not name.startswith(tuple(others))]
    return [*SHOWN[:2], *of_tiers, *SHOWN[2:]]


def forgive_odd_characters() -> None:
    """Let a lone surrogate in a trace be printed, escaped, instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def out() -> Console:
    """Console for results; as wide as needed where it is not a terminal."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=1000)


def err() -> Console:
    """Console for progress and warnings."""
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True, highlight=False, soft_wrap=True)


def complain(sentence: str) -> None:
    """Say what is wrong."""
    sys.stderr.write(f"prefixsim: error: {sentence}\n")


def warn(sentences: Iterable[str]) -> None:
    """Say what is doubtful."""
    for sentence in sentences:
        sys.stderr.write(f"prefixsim: warning: {sentence}\n")


def note(sentence: str) -> None:
    """Say what was done."""
    sys.stderr.write(f"prefixsim: {sentence}\n")


def print_json(data: object) -> None:
    """Print one JSON document; NaN, which JSON lacks, becomes null."""
    sys.stdout.write(json.dumps(without_nan(data), indent=2, allow_nan=False) + "\n")


class NoProgress:
    """Stands in the place of a progress bar where there is nothing to draw one on."""

    def __enter__(self) -> NoProgress:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def add_task(self, description: str, total: float | None = None, **more: Any) -> Any:  # noqa: ANN401
        """Take no note of what begins."""

    def update(self, task: Any, **changes: Any) -> None:  # noqa: ANN401
        """Take no note of how far it is."""

    def advance(self, task: Any) -> None:  # noqa: ANN401
        """Take no note of a step on."""


_PATIENCE_S = 24 * 3600
"""So far back a bar looks for how fast something rare goes on."""


def progress(*, rare: bool = False) -> Progress | NoProgress:
    """Progress bar on stderr; nothing where that is no terminal and no notebook with widgets.

    Parameters
    ----------
    rare
        It goes on less often than every 30 s, over which the time left is told otherwise.
    """
    may_draw = sys.stderr.isatty() or os.environ.get("FORCE_COLOR") or "IPython" in sys.modules
    if not may_draw:  # Rich would find the same, and is slow to load
        return NoProgress()
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = err()
    # Without ipywidgets a notebook cannot draw a bar, and Rich would warn of it at every run.
    in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    if not (console.is_terminal or in_notebook):
        return NoProgress()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=_PATIENCE_S if rare else 30,
    )


def show(value: object) -> str:
    """Format a value for a table."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4f}" if abs(value) < 100 else f"{value:,.1f}"
    return str(value)


def table(title: str, headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Lay out a table; numbers to the right."""
    from rich.table import Table  # noqa: PLC0415

    grid = Table(title=title, title_justify="left")
    materialized = [list(row) for row in rows]
    for index, heading in enumerate(headings):
        numeric = all(isinstance(row[index], int | float | None) for row in materialized)
        grid.add_column(heading, justify="right" if numeric else "left")
    for row in materialized:
        grid.add_row(*(show(value) for value in row))
    return grid


def summary_table(title: str, summary: Mapping[str, Any]) -> Table:
    """Show the main figures of a run with unit and meaning."""
    from rich.table import Table  # noqa: PLC0415

    columns = {column.name: column for column in columns_of("summary")}
    grid = Table(title=title, title_justify="left")
    for heading in ("figure", "value", "unit", "meaning"):
        grid.add_column(heading, justify="right" if heading == "value" else "left")
    for name in shown(summary):
        column = columns[name]
        grid.add_row(name, show(summary[name]), column.unit, column.meaning)
    return grid
