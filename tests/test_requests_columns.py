"""Requests in columns against the same requests one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.fast.keys import key_runs
from sim.in_columns import column
from workloads.requests import Requests
from workloads.reuse import infinite_hit_rate, shared_prefix_tokens
from workloads.tree import Names, PrefixTree

UNIT = 4


@st.composite
def traces(draw):
    """Prompts over few ids, so that they share much, cut to any length; some in another order."""
    tree = PrefixTree(names := Names(), UNIT)
    root = tree.root()
    prompts = draw(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=12))
    rows = []
    for ids in prompts:
        num_tokens = max(1, len(ids) * UNIT - draw(st.integers(0, UNIT - 1)))
        num_output = draw(st.integers(0, 9))
        bases, ends = tree.insert(np.array(ids, dtype=np.int64), root) if ids else ([], [])
        bases, ends = list(bases), [min(end, num_tokens) for end in ends]
        if num_tokens + num_output > (ends[-1] if ends else 0):
            bases.append(names.take(UNIT * 10))
            ends.append(num_tokens + num_output)
        rows.append((bases, ends, num_tokens, num_output))
    counts = np.array([len(row[0]) for row in rows], dtype=np.int64)
    requests = Requests(
        np.arange(len(rows), dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.int64),
        np.array([row[3] for row in rows], dtype=np.int64),
        np.cumsum(counts) - counts,
        counts,
        np.array([base for row in rows for base in row[0]], dtype=np.int64),
        np.array([end for row in rows for end in row[1]], dtype=np.int64),
    )
    order = np.array(draw(st.permutations(range(len(rows)))), dtype=np.int64)
    return requests.take(order) if draw(st.booleans()) else requests


@given(traces(), st.sampled_from([1, 2, 3, 4, 8]), st.booleans())
def test_what_is_shared_and_keyed_is_the_same(requests, block_size, outputs):
    one_by_one = tuple(requests)
    assert requests.request_ids == [request.request_id for request in one_by_one]
    shared = shared_prefix_tokens(requests, outputs=outputs)
    assert shared.tolist() == shared_prefix_tokens(one_by_one, outputs=outputs).tolist()
    assert infinite_hit_rate(requests, block_size, outputs=outputs) == infinite_hit_rate(
        one_by_one, block_size, outputs=outputs
    )
    num_tokens = column(requests, "num_prompt_tokens")
    assert num_tokens.tolist() == [request.num_prompt_tokens for request in one_by_one]
    runs, other = (key_runs(some, num_tokens, block_size) for some in (requests, one_by_one))
    assert runs.num_distinct == other.num_distinct
    for name in ("num_keys", "first_run", "run_stop", "run_shift"):
        assert getattr(runs, name).tolist() == getattr(other, name).tolist()
