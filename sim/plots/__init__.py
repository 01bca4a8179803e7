"""Pictures of a results folder: pure functions from a table to a Matplotlib figure.

Nothing here keeps state or needs a display; in a notebook, run ``%matplotlib inline`` once so
that a figure at the end of a cell is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from sim.breakeven import break_even
from sim.errors import UsageError
from sim.plots.against import against, settings_to_draw
from sim.plots.breakdown import breakdown, draw_overhead, eviction_cost
from sim.plots.hit_rate import block_size_effect, hit_rate_vs_capacity
from sim.plots.overhead import (
    REFERENCES,
    has_hit_rates,
    overhead_throughput,
    relative_to_floor,
)
from sim.plots.payoff import break_even_vs_block_size, has_break_evens
from sim.plots.runs import DIALS, fewer, left_out, told_apart, where
from sim.plots.series import (
    at_capacity,
    has_block_sizes,
    has_capacities,
    has_hit_rate,
    has_ttft,
    one_cell,
    run_labels,
    setting,
)
from sim.plots.style import notes_of, save, unwritable
from sim.plots.tiers import has_tiers, hit_rate_by_tier
from sim.plots.trade_off import block_size_trade_off
from sim.plots.ttft import ttft_distribution

__all__ = [
    "KINDS",
    "REFERENCES",
    "against",
    "applicable",
    "at_capacity",
    "block_size_effect",
    "block_size_trade_off",
    "break_even_vs_block_size",
    "breakdown",
    "draw",
    "draw_overhead",
    "eviction_cost",
    "hit_rate_by_tier",
    "hit_rate_vs_capacity",
    "notes_of",
    "overhead_throughput",
    "run_labels",
    "save",
    "setting",
    "settings_to_draw",
    "ttft_distribution",
    "where",
]

_MAX_RUNS = 12
"""More curves than this in one plot of distributions cannot be told apart."""


def _ttft(summary: pd.DataFrame, requests: pd.DataFrame) -> Figure:
    frame, notes = told_apart(summary)
    shown = frame
    if len(shown) > _MAX_RUNS:
        shown = fewer(one_cell(frame), DIALS, _MAX_RUNS)
        notes += left_out(frame, shown)
    mine = requests[requests["run_id"].isin(shown["run_id"])]
    return ttft_distribution(mine, run_labels(shown), setting=setting(shown), notes=notes)


KINDS: dict[str, Callable[[pd.DataFrame, pd.DataFrame], Figure]] = {
    "capacity": lambda summary, requests: hit_rate_vs_capacity(summary),
    "tiers": lambda summary, requests: hit_rate_by_tier(summary),
    "block-size": lambda summary, requests: block_size_effect(summary),
    "ttft": _ttft,
    "overhead": lambda summary, requests: overhead_throughput(summary),
    "break-even": lambda summary, requests: break_even_vs_block_size(summary),
}
"""Every kind of plot but `against`, drawn from the tables of summaries and of requests."""


def applicable(summary: pd.DataFrame) -> list[str]:
    """List the kinds of plots that the runs can show."""
    frame, _ = told_apart(summary)
    known = has_hit_rate(frame) or has_ttft(frame)
    shown = {
        "capacity": has_hit_rate(frame) and has_capacities(frame),
        "tiers": has_tiers(frame),
        "block-size": known and has_block_sizes(frame),
        "ttft": bool((frame["num_finished"] > 0).any()),
        "overhead": has_hit_rates(frame),
        "break-even": has_break_evens(frame),
    }
    return [kind for kind in KINDS if shown[kind]]


def draw(
    summary: pd.DataFrame,
    requests: pd.DataFrame,
    directory: Path,
    *,
    kinds: Iterable[str] | None = None,
    settings: Iterable[str] | None = None,
    reference: str | None = None,
    on_note: Callable[[str], None] | None = None,
) -> list[Path]:
    """Draw kinds of plots into a folder.

    Parameters
    ----------
    summary, requests
        Tables of the runs. With many runs the distribution of TTFT is drawn for one block size
        and one capacity, which its title names.
    directory
        Where to; made if missing.
    kinds
        Of `KINDS`; by default, where no ``settings`` are given either, all that the runs can show.
    settings
        To draw `against`; by default, where no ``kinds`` are given either, all that vary.
    reference
        Published figures to draw into ``overhead``, of `REFERENCES`.
    on_note
        Called with each sentence on what a picture does not show.

    Returns
    -------
    list[Path]
        The files, a PNG and an SVG for each kind and setting; ``break-even`` has its table as CSV
        too.

    Raises
    ------
    UsageError
        A kind, setting or reference that there is not, or that the runs cannot show; runs that
        show nothing at all; or a folder that cannot be written.
    """
    chosen, axes = _choose(summary, kinds, settings)
    makers = dict(KINDS)
    if reference is not None:
        published = _find_reference(reference, chosen)
        makers["overhead"] = lambda summary, requests: overhead_throughput(summary, published)
    draws: dict[str, Callable[[], Figure]] = {
        kind: partial(makers[kind], summary, requests) for kind in chosen
    }
    draws |= {f"against-{name}": partial(against, summary, name) for name in axes}
    # All are made before any is written: a kind that cannot be drawn leaves no half of the files.
    figures, refusals = _make(draws, asked_for=kinds is not None or settings is not None)
    if on_note is not None:
        for refusal in refusals:
            on_note(refusal)
        for note in dict.fromkeys(note for figure in figures.values() for note in notes_of(figure)):
            stems = [stem for stem, figure in figures.items() if note in notes_of(figure)]
            on_note(f"{', '.join(stems)}: {note[0].lower()}{note[1:]}")
    paths = [path for stem, figure in figures.items() for path in save(figure, directory, stem)]
    if "break-even" in figures:
        paths.append(directory / "break_even.csv")
        table = break_even(relative_to_floor(summary)[0])
        try:
            table.to_csv(paths[-1], index=False)
        except OSError as error:
            raise unwritable(error, directory) from error
    return paths


def _make(
    draws: Mapping[str, Callable[[], Figure]], *, asked_for: bool
) -> tuple[dict[str, Figure], list[str]]:
    """Make figures; of those that nobody asked for, leave out and say what cannot be drawn."""
    figures, refusals = {}, []
    for stem, draw_one in draws.items():
        try:
            figures[stem] = draw_one()
        except UsageError as error:
            if asked_for:
                raise
            refusals.append(f"{stem} is left out: {error}")
            last = error
    if not figures:
        raise last
    return figures, refusals


def _choose(
    summary: pd.DataFrame, kinds: Iterable[str] | None, settings: Iterable[str] | None
) -> tuple[list[str], list[str]]:
    """Choose kinds and settings; by default all that vary."""
    if kinds is None and settings is None:
        chosen, axes = applicable(summary), settings_to_draw(summary)
        # A sweep over capacities has its picture even where hit rates are not known.
        if not has_hit_rate(summary) and has_capacities(summary):
            axes.append("kv_capacity_tokens")
        axes = axes if has_ttft(summary) else []
        if not chosen:
            raise UsageError(
                "these runs have nothing to draw, for no request finished; raise --kv-capacity so "
                "that they fit, and run them again."
            )
        return chosen, axes
    chosen = list(dict.fromkeys(kinds or []))
    for kind in chosen:
        if kind not in KINDS:
            raise UsageError(f"--kind {kind!r} is no plot; choose one of {', '.join(KINDS)}.")
    axes = [{"kv_capacity": "kv_capacity_tokens"}.get(name, name) for name in _tidy(settings or [])]
    return chosen, axes


def _tidy(names: Iterable[str]) -> Sequence[str]:
    return list(dict.fromkeys(name.strip().lstrip("-").replace("-", "_") for name in names))


def _find_reference(name: str, chosen: list[str]) -> pd.DataFrame:
    if name not in REFERENCES:
        raise UsageError(f"--reference {name!r} is not known; choose {', '.join(REFERENCES)}.")
    if "overhead" not in chosen:
        drawn = ", ".join(chosen) or "nothing"
        raise UsageError(
            f"--reference is drawn into the kind overhead alone, but these runs give {drawn}; "
            "add --kind overhead, or leave --reference out."
        )
    return REFERENCES[name]
