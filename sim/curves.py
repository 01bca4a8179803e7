"""Curves of a workload, hit rate at every capacity: what is asked for, measured, told and drawn.

Composes workload, preset and `sim.curve` for the command line and for Python alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sim import demand
from sim.config import RunConfig
from sim.curves_rows import RELEASES, STORE, Asked, Measured, measure
from sim.doubts import doubts_about_sharing
from sim.errors import UsageError
from sim.mapped import AT_ONCE, filled
from sim.presets import load_preset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = (
    "mark",
    "num_blocks",
    "kv_capacity_tokens",
    "kv_capacity_gib",
    "working_set_share",
    "hit_rate",
    "ceiling_share",
    "belady_hit_rate",
    "num_refused",
)
"""What is shown of a row, below the workload, policy and block size of its curve."""


@dataclass(frozen=True)
class Curves:
    """Hit rate against capacity: a curve for each policy and block size of one workload.

    Attributes
    ----------
    asked
        What decided them.
    measured
        The curves, block size by block size.
    """

    asked: Asked
    measured: tuple[Measured, ...]

    @property
    def points(self) -> pd.DataFrame:
        """The table ``curve`` of `sim.columns.COLUMNS`: a row per curve and capacity shown."""
        return pd.concat([one.rows for one in self.measured], ignore_index=True)

    @property
    def every_capacity(self) -> pd.DataFrame:
        """A row per capacity at which a curve rises; up to the next one it stays as it is."""
        return pd.concat([one.all_capacities for one in self.measured], ignore_index=True)

    def every_capacity_by_parts(self) -> Iterator[pd.DataFrame]:
        """Give the same rows in frames of a bounded length, for tables larger than memory."""
        some: list[pd.DataFrame] = []
        room = AT_ONCE
        for one in self.measured:
            first = 0
            while first < len(one.rises):
                some.append(one.at(one.rises[first : first + room]))
                first += room
                room -= len(some[-1])
                if not room:
                    yield pd.concat(some, ignore_index=True)
                    some, room = [], AT_ONCE
        if some:
            yield pd.concat(some, ignore_index=True)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on how the workload was made."""
        return self.asked.workload.notes

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what is doubtful, each once."""
        doubts = list(self.asked.workload.warnings)
        for one in self.measured:
            doubts += doubts_about_sharing(self.asked.workload, one.block_size)
            if (one.rows["num_refused"] > 0).any():
                smallest = int(one.curve.num_blocks[one.curve.first])
                doubts.append(
                    f"pools of less than {smallest:,} blocks of {one.block_size} tokens refuse the "
                    "largest requests, which then count in no rate: rates do not compare below "
                    "that."
                )
        if self.asked.stride > 1:
            doubts.append(
                f"hit rates are estimates from one in {self.asked.stride} blocks; leave --sample "
                "out for the exact curve."
            )
        return tuple(dict.fromkeys(doubts))

    def plot(self) -> Figure:
        """Draw every capacity, with the ceiling, the knees and Belady's bound."""
        from sim.plots.curve import CurveLine, draw_curves, shown  # noqa: PLC0415 - it is slow

        def serving(one: Measured) -> pd.DataFrame:
            rises, sizes = one.rises, one.curve.num_blocks
            rises = rises[int(np.searchsorted(rises, one.curve.first)) :]
            tokens = filled(len(rises), lambda part: sizes[rises[part]] * one.block_size)
            return one.at(rises[shown(tokens)])

        preset = self.asked.preset
        return draw_curves(
            [
                CurveLine(
                    label=f"{one.policy}, block size {one.block_size}",
                    points=serving(one),
                    ceiling=one.curve.ceiling,
                    knee_tokens=one.curve.knee() * one.block_size if one.curve.ceiling else None,
                    belady=one.belady,
                )
                for one in self.measured
            ],
            setting=(
                f"{self.asked.workload.name}, one request at a time, reuse of {self.asked.reuse}"
            ),
            gib_per_token=preset.model.kv_bytes_per_token / 2**30,
            model=preset.model_name,
        )

    def _repr_html_(self) -> str:
        """Show the main columns of all points."""
        shown = self.points[["policy", "block_size", *SHOWN]]
        html: str = shown.to_html(index=False, float_format="{:,.4g}".format)
        return html


def ask(
    workload: Mapping[str, Any],
    *,
    policies: Sequence[str] | None,
    block_sizes: Sequence[object],
    capacities: Sequence[str] | None,
    reuse: str | None,
    order: str,
    sample: int,
    every_small_pool: bool,
    model: str,
    gpu: str,
    seed: int,
) -> Asked:
    """Check what curves are asked for, and load the workload.

    Parameters
    ----------
    workload
        Settings of `sim.config.RunConfig` that choose it.
    policies
        Of `RELEASES`; None for vLLM V1's, or where ``order`` names the store.
    block_sizes
        Tokens in a block, one or more.
    capacities
        What the rows show, as ``--kv-capacity`` spells it; None to choose from the curve.
    reuse
        ``all`` or ``prefill``; None for ``all``, or where ``order`` names the store.
    order
        ``tail`` for vLLM's, ``head`` for a store of prompts.
    sample
        Estimate from one in so many blocks; 1 for the exact curve.
    every_small_pool
        Measure every pool that is too small for some request.
    model, gpu
        Of the preset, for capacities in GiB and ``auto``.
    seed
        Of the generator and the sample.

    Raises
    ------
    UsageError
        A setting that cannot be used, or a workload that says nothing about shared prefixes.
    """
    head_first = _is_head_first(order, policies, reuse, sample)
    names = [STORE] if head_first else _known(policies or ["vllm_v1"])
    if sample < 1:
        raise UsageError(f"--sample {sample} must be at least 1: one in so many blocks is drawn.")
    # Settings of a run parse these, so that a bad value is named in the same words. An arrival
    # process makes no difference, but with one a row needs no time stamp.
    given = {**workload, "seed": seed, "reuse": reuse or "all", "arrival": "constant", "rate": 1.0}
    configs = [RunConfig(**given, block_size=size) for size in block_sizes]  # type: ignore[arg-type]
    preset = load_preset(model, gpu)
    loaded = demand.load_workload(configs[0])
    if not loaded.has_prefix_info:
        raise UsageError(
            f"{loaded.name} says nothing about shared prefixes, so there is no curve; give a "
            "trace with hash_ids, or a generator."
        )
    return Asked(
        workload=loaded,
        policies=tuple(names),
        block_sizes=tuple(config.block_size for config in configs),
        reuse="prefill" if head_first else configs[0].reuse,
        head_first=head_first,
        stride=sample,
        seed=configs[0].seed,
        every_small_pool=every_small_pool,
        capacities=tuple(capacities or ()),
        preset=preset,
    )


def measure_curves(asked: Asked) -> Curves:
    """Measure the hit rate at every capacity, requests served one at a time.

    Parameters
    ----------
    asked
        What `ask` returns.
    """
    measured: list[Measured] = []
    for block_size in asked.block_sizes:
        measured += measure(asked, block_size)
    return Curves(asked, tuple(measured))


def _is_head_first(
    order: str, policies: Sequence[str] | None, reuse: str | None, sample: int
) -> bool:
    if order not in ("tail", "head"):
        raise UsageError(f"--order {order!r} must be one of tail, head.")
    if order == "tail":
        return False
    if policies is not None:
        raise UsageError(
            f"--policy {','.join(policies)!r} has no meaning with --order head, which is a store "
            "of prompts beside the engine; leave one of them out."
        )
    if reuse == "all":
        raise UsageError(
            "--reuse 'all' has no meaning with --order head, a store of prompts; leave it out."
        )
    if sample != 1:
        raise UsageError(
            f"--sample {sample} is for --order tail only; leave it out to get the exact curve."
        )
    return True


def _known(names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in RELEASES:
            raise UsageError(
                f"--policy {name!r} has no curve in one pass; choose {' or '.join(RELEASES)}, or "
                "use 'prefixsim sweep' over several --kv-capacity."
            )
    return list(names)
