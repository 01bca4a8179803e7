"""What a fast run leaves behind: the columns of `sim.recorder.Recorded`, read off the state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.fast.state import NONE, State
from sim.recorder import OF_TIERS, STEP_COLUMNS, UNKNOWN, RequestColumns
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
        self._rows: list[Ints] = []
        self._served: Sequence[Request] = ()
        self._requests = RequestColumns([], [], *(np.zeros(0, dtype=np.int64) for _ in range(12)))

    def take_steps(self, state: State) -> None:
        """Fetch the steps that were done since the last call."""
        engine = state.engine[0]
        if engine["num_rows"]:
            self._rows.append(state.rows[: engine["num_rows"]].copy())
            engine["num_rows"] = 0

    def finish(
        self,
        state: State,
        requests: Sequence[Request],
        rejections: Sequence[str],
        order: Ints,
    ) -> None:
        """Take what is known when all is done; ``order`` is that of arrival."""
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
        seqs = state.seqs[order]
        indices = order.tolist()
        ids = getattr(requests, "request_ids", None)  # of whoever keeps requests in columns
        if ids is None:
            ids = [request.request_id for request in requests]
        in_order = indices == list(range(len(requests))) and not any(rejections)
        self._served = (
            requests
            if in_order
            else [requests[index] for index in indices if not rejections[index]]
        )
        self._requests = RequestColumns(
            request_id=[ids[index] for index in indices],
            rejection=[rejections[index] for index in indices],
            num_prompt_tokens=seqs["num_prompt_tokens"].copy(),
            num_output_tokens=seqs["num_total_tokens"] - seqs["num_prompt_tokens"],
            num_cached_tokens=np.maximum(seqs["num_cached_tokens"], 0),
            num_preemptions=seqs["num_preemptions"].copy(),
            arrival_ns=seqs["arrival_ns"].copy(),
            admitted_ns=seqs["admitted_ns"].copy(),
            first_token_ns=seqs["first_token_ns"].copy(),
            finished_ns=seqs["finished_ns"].copy(),
            **{name: np.zeros(len(indices), dtype=np.int64) for name in OF_TIERS},
        )

    def served(self) -> Sequence[Request]:
        """List the requests that were not rejected, in order of arrival."""
        return self._served

    def request_columns(self) -> RequestColumns:
        """Lay out what happened to each request."""
        return self._requests

    def step_columns(self) -> dict[str, Ints]:
        """Lay out the steps by `sim.recorder.STEP_COLUMNS`; none if they were not kept."""
        rows = np.concatenate([np.zeros((0, len(STEP_COLUMNS)), dtype=np.int64), *self._rows])
        return {name: rows[:, index].copy() for index, name in enumerate(STEP_COLUMNS)}
