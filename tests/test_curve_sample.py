"""The estimate from a sample of the prefixes."""

import numpy as np
import pytest
from helpers import SHARED, needs, requests_of
from hypothesis import given
from hypothesis import strategies as st

from sim.curve import Release, Sample, find_paths, references_of
from sim.curve.sample import _run_starts
from sim.curve.stack import hits_by_capacity
from workloads import load

ROWS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.just([])),
    min_size=1,
    max_size=8,
)


def test_runs_double_up_to_the_stride():
    assert _run_starts(4, 20).tolist() == [0, 1, 2, 4, 8, 12, 16, 20]
    assert _run_starts(1, 3).tolist() == [0, 1, 2, 3]
    assert _run_starts(100, 9).tolist() == [0, 1, 2, 4, 8, 16]


@given(rows=ROWS, block_size=st.integers(1, 2))
def test_one_in_one_is_all(rows, block_size):
    references = references_of(requests_of(*rows), block_size)
    sample = Sample(1)
    sample.add(references)
    for release in (Release(), Release(unfilled_first=True)):
        assert (
            hits_by_capacity(sample.paths(), release).num_hit_tokens.tolist()
            == hits_by_capacity(find_paths(references), release).num_hit_tokens.tolist()
        )


@given(rows=ROWS, stride=st.integers(1, 5), seed=st.integers(0, 3))
def test_parts_of_a_trace_make_the_same_sample_as_the_whole(rows, stride, seed):
    requests = requests_of(*rows)
    whole, parts = Sample(stride, seed), Sample(stride, seed)
    whole.add(references_of(requests, 1))
    for request in requests:
        parts.add(references_of([request], 1))
    mine, other = whole.paths(), parts.paths()
    assert mine.edges.tolist() == other.edges.tolist()
    assert mine.lengths.tolist() == other.lengths.tolist()
    assert parts.num_drawn_blocks == whole.num_drawn_blocks


def test_a_block_is_drawn_as_often_as_it_should_be():
    """Over seeds, a path of 30 blocks counts 30 on average, and is never off by more than a run."""
    references = references_of(requests_of((range(30), [])), 1)
    lengths = []
    for seed in range(400):
        sample = Sample(8, seed)
        sample.add(references)
        lengths.append(int(sample.paths().sizes.num_full_blocks[0]))
    assert set(lengths) == {24, 32}
    assert np.mean(lengths) == pytest.approx(30, abs=0.5)


def test_a_stride_of_no_blocks_is_refused():
    with pytest.raises(ValueError, match="stride 0 must be at least 1"):
        Sample(0)


@needs(SHARED / "traces" / "conversation_trace.jsonl")
@pytest.mark.parametrize("seed", range(3))
def test_a_real_curve_is_estimated_within_a_hundredth(seed):
    requests = load(SHARED / "traces" / "conversation_trace.jsonl").requests
    references = references_of(requests, 16)
    sample = Sample(64, seed)
    sample.add(references)
    assert sample.num_drawn_blocks < len(references.blocks) / 40
    exact = hits_by_capacity(find_paths(references), Release()).num_hit_tokens
    estimate = hits_by_capacity(sample.paths(), Release()).num_hit_tokens
    sizes = np.arange(references.sizes.max_held_blocks, max(len(exact), len(estimate)))
    gap = exact[np.minimum(sizes, len(exact) - 1)] - estimate[np.minimum(sizes, len(estimate) - 1)]
    assert np.abs(gap).max() / references.sizes.num_all_prompt_tokens < 0.002
