import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.content import Interner, Segments, TokenIds, UniformSegments, prefix_names, runs


def ints(*values):
    return np.array(values, dtype=np.int64)


def test_segments_name_prefixes_by_base_and_offset():
    content = Segments(ints(100, 7, 40), ints(3, 4, 9))
    assert content.num_tokens == 9
    assert content.token_ids(0, 9).tolist() == [100, 101, 102, 7, 40, 41, 42, 43, 44]
    assert content.token_ids(2, 5).tolist() == [102, 7, 40]
    assert content.block_keys(4).tolist() == [7, 43]
    assert content.block_keys(10).tolist() == []
    assert [part.tolist() for part in content.runs(6)] == [[100, 7, 40], [3, 1, 2]]
    assert [part.tolist() for part in content.runs(3)] == [[100], [3]]


def test_uniform_segments_with_a_cut_segment_and_a_tail():
    content = UniformSegments(ints(0, 12, 8), 4, 10, 1000, 13)
    ids = [0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 1000, 1001, 1002]
    assert content.token_ids(0, 13).tolist() == ids
    assert content.block_keys(3).tolist() == ids[2::3]
    assert content.block_keys(3).dtype == np.int64
    assert [part.tolist() for part in content.runs(12)] == [[0, 12, 8, 1000], [4, 4, 2, 2]]
    assert [part.tolist() for part in content.runs(7)] == [[0, 12], [4, 3]]


def test_uniform_segments_may_be_all_tail():
    content = UniformSegments(ints(), 4, 0, 50, 5)
    assert content.block_keys(2).tolist() == [51, 53]
    assert [part.tolist() for part in content.runs(3)] == [[50], [3]]


def test_interner_numbers_chains_not_blocks():
    interner = Interner()
    first = interner.key(Interner.ROOT, (1, 2))
    assert interner.key(Interner.ROOT, (1, 2)) == first
    assert interner.key(first, (1, 2)) != first
    assert interner.key(Interner.ROOT, (-1, 2)) != interner.key(Interner.ROOT, (-2, 2))


def test_token_ids_share_an_interner():
    interner = Interner()
    one = TokenIds(ints(1, 2, 3, 4, 5), interner)
    two = TokenIds(ints(1, 2, 9, 4), interner)
    assert one.num_tokens == 5
    assert one.token_ids(1, 3).tolist() == [2, 3]
    assert one.block_keys(2).shape == (2,)
    assert one.block_keys(2)[0] == two.block_keys(2)[0]
    assert one.block_keys(2)[1] != two.block_keys(2)[1]
    assert [len(part) for part in runs(one, 3)] == [3, 3]


@pytest.mark.parametrize("make", [Segments, UniformSegments])
def test_block_keys_agree_with_prefix_names(make):
    if make is Segments:
        content = Segments(ints(0, 90, 30), ints(8, 16, 21))
    else:
        content = UniformSegments(ints(0, 90, 32), 8, 21, 0, 21)
    for block_size in range(1, 25):
        ends = np.arange(block_size - 1, 21, block_size)
        assert content.block_keys(block_size).tolist() == prefix_names(content, ends).tolist()


segment_size = 3
paths = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=4), st.integers(0, segment_size - 1)),
    min_size=1,
    max_size=6,
)


def build(paths):
    """Contents of both kinds, and the tokens that they stand for as the trace spells them."""
    segment_of = {}
    tail_base = 10_000
    built = []
    for number, (ids, cut) in enumerate(paths):
        parent, bases, tokens = (), [], []
        for i in ids:
            parent = (*parent, i)
            bases.append(segment_of.setdefault(parent, len(segment_of)) * segment_size)
            tokens += [(i, offset) for offset in range(segment_size)]
        head = max(len(tokens) - cut, 0)
        tokens = tokens[:head] + [("own", number, offset) for offset in range(4)]
        bases = bases[: -(-head // segment_size)]
        uniform = UniformSegments(ints(*bases), segment_size, head, tail_base, head + 4)
        ends = [min((j + 1) * segment_size, head) for j in range(len(bases))]
        general = Segments(ints(*bases, tail_base), ints(*ends, head + 4))
        tail_base += 4
        built.append((uniform, general, tokens))
    return built


@given(paths, st.integers(1, 7))
def test_keys_are_equal_if_and_only_if_prefixes_are(paths, block_size):
    interner = Interner()
    token_number = {}
    seen = {}
    for uniform, general, tokens in build(paths):
        assert general.block_keys(block_size).tolist() == uniform.block_keys(block_size).tolist()
        assert general.num_tokens == uniform.num_tokens == len(tokens)
        numbers = ints(*(token_number.setdefault(token, len(token_number)) for token in tokens))
        explicit = TokenIds(numbers, interner).block_keys(block_size)
        keys = uniform.block_keys(block_size)
        assert len(keys) == len(explicit) == len(tokens) // block_size
        for index, pair in enumerate(zip(keys.tolist(), explicit.tolist(), strict=True)):
            seen.setdefault(tuple(tokens[: (index + 1) * block_size]), set()).add(pair)
    pairs = [pair for pairs in seen.values() for pair in pairs]
    assert all(len(pairs) == 1 for pairs in seen.values()), "equal prefixes, equal keys"
    for position in (0, 1):
        assert len({pair[position] for pair in pairs}) == len(seen), "equal keys, equal prefixes"


@given(paths, st.integers(0, 12))
def test_runs_spell_the_same_names_as_token_ids(paths, stop):
    for contents in build(paths):
        for content in contents[:2]:
            bases, lengths = content.runs(stop)
            spelt = [b + o for b, n in zip(bases, lengths, strict=True) for o in range(n)]
            assert spelt == content.token_ids(0, min(stop, content.num_tokens)).tolist()
