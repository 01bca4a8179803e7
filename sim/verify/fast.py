"""Replays a scheduler log with the fast engine: the compiled step, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.cost import LinearCost
from sim.fast import kernel
from sim.fast.keys import key_runs, no_keys
from sim.fast.state import make_state
from sim.fast.support import make_rules
from sim.scheduler import SchedulerConfig
from sim.types import PoolRules, Request
from sim.verify.log import Line


class FastScheduler:
    """The compiled scheduler, asked step by step.

    Parameters
    ----------
    pool, num_blocks, block_size, config
        Policy and limits.
    requests
        All that are going to be added.
    """

    def __init__(
        self,
        pool: PoolRules,
        config: SchedulerConfig,
        requests: Sequence[Request],
        *,
        num_blocks: int,
        block_size: int,
    ) -> None:
        self._rules = make_rules(
            pool, config, LinearCost(1), num_blocks=num_blocks, block_size=block_size
        )
        self._ids = [request.request_id for request in requests]
        prompt = np.array([r.num_prompt_tokens for r in requests], dtype=np.int64)
        output = np.array([r.num_output_tokens for r in requests], dtype=np.int64)
        num_tokens = prompt + np.maximum(output - 1, 0)
        keys = key_runs(requests, num_tokens, block_size) if pool.caches else no_keys(len(requests))
        self._state = make_state(self._rules, prompt, output, keys)

    def step(self, added: Sequence[str]) -> Line:
        """Queue requests and do a step; say what it did by the names of the log."""
        state, engine, seqs = self._state, self._state.engine[0], self._state.seqs
        for request_id in added:
            index = self._ids.index(request_id)
            seqs["arrival_ns"][index] = engine["now_ns"]
            state.inbox[engine["num_known"]] = index
            engine["num_known"] += 1
        ran = set(state.running[: engine["num_running"]].tolist())
        preemptions = seqs["num_preemptions"].copy()
        queries, hits = int(engine["num_block_queries"]), int(engine["num_block_hits"])
        seqs["num_new_tokens"] = 0
        why = kernel.advance(self._rules, state, kernel.FOREVER, 1)
        scheduled = np.flatnonzero(seqs["num_new_tokens"]).tolist()
        ended = state.ended[: engine["num_ended"]].tolist() if why != kernel.IDLE else []
        return {
            "added": list(added),
            "num_scheduled_tokens": {
                self._ids[r]: int(seqs["num_new_tokens"][r]) for r in scheduled
            },
            "admitted_num_cached_tokens": {
                self._ids[r]: int(seqs["num_hit_blocks"][r]) * self._rules.block_size
                for r in scheduled
                if r not in ran
            },
            "preempted": sorted(
                self._ids[r] for r in np.flatnonzero(seqs["num_preemptions"] > preemptions)
            ),
            "finished": sorted(self._ids[r] for r in ended),
            "num_free_blocks": int(engine["num_free_blocks"]),
            "num_running": int(engine["num_running"]),
            "num_waiting": int(engine["num_waiting"]),
            "prefix_cache_block_queries": int(engine["num_block_queries"]) - queries,
            "prefix_cache_block_hits": int(engine["num_block_hits"]) - hits,
        }
