"""What a fast run leaves behind: the columns of `sim.recorder.Recorded`, read off the state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.fast.state import NONE, Rules, State, is_too_large, num_needed_blocks
from sim.in_columns import names_of
from sim.recorder import OF_TIERS, UNKNOWN, RequestColumns, StepRows, rejection
from sim.types import Request

Ints = NDArray[np.int64]

assert NONE == UNKNOWN


class FastRecord:
    """Takes the rows of a run that the compiled engine does.

    Parameters
    ----------
    keep_steps
        Keep a row for every step too.
    """

    def __init__(self, *, keep_steps: bool = False) -> None:
        self.keep_steps = keep_steps
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_block_queries = 0
        self.num_block_hits = 0
        self.end_ns = 0
        self.gpu_ns = 0
        self.overhead_ns = 0
        self.load_ns = 0
        self._steps = StepRows()
        self._source: Sequence[Request] = ()
        self._order: Ints | None = None
        self._rules: Rules
        self._state: State
        self.num_requests = 0

    def take_steps(self, state: State) -> None:
        """Fetch the steps that were done since the last call."""
        engine = state.engine[0]
        if engine["num_rows"]:
            self._steps.add(state.rows[: engine["num_rows"]])
            engine["num_rows"] = 0

    def finish(
        self, rules: Rules, state: State, requests: Sequence[Request], order: Ints | None
    ) -> None:
        """Take what is known when all is done.

        Parameters
        ----------
        order
            Places of those that arrived, in order of arrival; None for all as they stand.
        """
        self._rules, self._state = rules, state
        self._source, self._order = requests, order
        self.num_requests = len(requests if order is None else order)
        engine = state.engine[0]
        for name in (
            "num_steps",
            "num_preemptions",
            "num_block_queries",
            "num_block_hits",
            "end_ns",
            "gpu_ns",
            "overhead_ns",
        ):
            setattr(self, name, int(engine[name]))

    @property
    def num_kept_steps(self) -> int:
        """Steps that have a row."""
        return len(self._steps)

    def request_columns(self, part: slice = slice(None)) -> RequestColumns:
        """Lay out what happened to some requests, by default to all, in order of arrival."""
        if self._order is None:
            index = np.arange(*part.indices(self.num_requests), dtype=np.int64)
            seqs = self._state.seqs[part]
        else:
            index = self._order[part]
            seqs = self._state.seqs[index]
        num_blocks = self._rules.num_blocks
        too_large = is_too_large(self._rules, seqs)
        needed = np.where(too_large, num_needed_blocks(self._rules, seqs), 0).tolist()
        return RequestColumns(
            index=index,
            request_id=names_of(self._source, index),
            rejection=[rejection(count, num_blocks) if count else "" for count in needed],
            num_prompt_tokens=seqs["num_prompt_tokens"].copy(),
            num_output_tokens=seqs["num_total_tokens"] - seqs["num_prompt_tokens"],
            num_cached_tokens=np.maximum(seqs["num_cached_tokens"], 0),
            num_preemptions=seqs["num_preemptions"].copy(),
            arrival_ns=seqs["arrival_ns"].copy(),
            admitted_ns=seqs["admitted_ns"].copy(),
            first_token_ns=seqs["first_token_ns"].copy(),
            finished_ns=seqs["finished_ns"].copy(),
            **{name: np.zeros(len(index), dtype=np.int64) for name in OF_TIERS},
        )

    def step_columns(self, part: slice = slice(None)) -> dict[str, Ints]:
        """Lay out some of the steps that have a row by `STEP_COLUMNS`, shape ``(steps,)``."""
        return self._steps.columns(part)
