"""What ``prefixsim overhead`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.cli.output import note, out, print_json, table
from sim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd


def show_times(measured: pd.DataFrame) -> None:
    """Print a row per policy and cell, its operations side by side."""
    from sim.overhead.measure import OPERATIONS  # noqa: PLC0415 - keeps --help quick
    from sim.overhead.table import CELL  # noqa: PLC0415

    medians = measured.pivot_table(
        index=[*CELL, "policy"], columns="operation", values="p50_us", dropna=False
    ).reindex(columns=list(OPERATIONS))
    rows = []
    for key, times in medians.dropna(how="all").iterrows():
        assert isinstance(key, tuple)
        base = (*key[:-1], "none")
        ratio = times["request"] / medians.loc[base, "request"] if base in medians.index else None
        shown = [None if time != time else f"{time:,.2f}" for time in times]  # noqa: PLR0124 - NaN
        rows.append([key[-1], *key[:-1], *shown, None if ratio is None else f"{ratio:,.1f}"])
    headings = ["policy", "block", "prompt", "hit rate", *OPERATIONS, "request/none"]
    grid = table("Median time, µs", headings, rows)
    for column in grid.columns[4:]:
        column.justify = "right"
    out().print(grid)
    note(
        "request = hash + lookup + allocate; evict is a part of allocate; append is per token, all "
        "others per request; --json and --output have means, quantiles and counts too."
    )


def show_evictions(measured: pd.DataFrame) -> None:
    """Print a row per policy, pool and case."""
    shown = measured[
        [
            "policy", "time_stamps", "num_free_blocks", "p50_ns", "count_entries_scanned",
            "count_heap_pops", "count_pointer_updates", "count_dict_operations",
        ]
    ]  # fmt: skip
    headings = [
        "policy", "time stamps", "free blocks", "median ns", "scanned", "heap pops", "pointers",
        "dict operations",
    ]  # fmt: skip
    out().print(table("One eviction", headings, shown.to_numpy().tolist()))
    note(
        "time to evict a block and take it; time stamps: all free blocks were accessed at one "
        "time, or those of each 1,024 tokens at their own."
    )


def show_comparison(measured: pd.DataFrame, profiles: Mapping[str, str], *, as_json: bool) -> None:
    """Print times beside those of vLLM's own code, ratios, and why they differ."""
    from sim.overhead import compare as comparing  # noqa: PLC0415 - keeps --help quick
    from sim.overhead.table import wide  # noqa: PLC0415

    comparison = comparing.compare(wide(measured), profiles)
    if comparison.empty:
        raise UsageError(
            "--compare found no cell that was measured of vLLM: choose from --block-sizes "
            "8,16,32,64,128, --prompt-tokens 1024,4096,16384 and --hit-rates "
            "0,0.25,0.5,0.75,0.9,0.99."
        )
    ratios, reasons = comparing.engine_ratios(comparison), comparing.explain(comparison)
    if as_json:
        print_json(
            {
                "times": comparison.to_dict("records"),
                "v0_per_v1": ratios.to_dict("records"),
                "explanations": reasons,
            }
        )
        return
    headings = ["policy", "vLLM", "block", "prompt", "hit rate", "operation"]
    console = out()
    console.print(
        table(
            "Time, µs", [*headings, "own", "vLLM's", "vLLM's/own"], comparison.to_numpy().tolist()
        )
    )
    if not ratios.empty:
        console.print(
            table(
                "V0 by V1",
                ["policy", "block", "prompt", "hit rate", "operation", "own", "vLLM's"],
                ratios.to_numpy().tolist(),
            )
        )
    for sentence in reasons:
        console.print(sentence)
    note(
        "medians, of append means; vLLM's were taken on another machine (an Intel Xeon virtual "
        "machine, CPython 3.11.7), so compare ratios rather than times."
    )
