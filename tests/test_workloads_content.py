from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workloads import tree as tree_module
from workloads.content import Interner, Segments, TokenIds, cut, path, prefix_names
from workloads.tree import Names, PrefixTree, with_tail


def ints(*values):
    return np.array(values, dtype=np.int64)


def test_segments_name_prefixes_by_base_and_offset():
    content = Segments(ints(100, 7, 40), ints(3, 4, 9))
    assert content.num_tokens == 9
    assert content.token_ids(0, 9).tolist() == [100, 101, 102, 7, 40, 41, 42, 43, 44]
    assert content.token_ids(2, 5).tolist() == [102, 7, 40]
    assert content.block_keys(4).tolist() == [7, 43]
    assert content.block_keys(10).tolist() == []
    assert path(content, 6) == ([100, 7, 40], [3, 4, 6])
    assert path(content, 3) == ([100], [3])


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
    assert path(one, 3) == (one.block_keys(1)[:3].tolist(), [1, 2, 3])


def test_block_keys_agree_with_prefix_names():
    content = Segments(ints(0, 90, 30), ints(8, 16, 21))
    for block_size in range(1, 25):
        ends = np.arange(block_size - 1, 21, block_size)
        assert content.block_keys(block_size).tolist() == prefix_names(content, ends).tolist()


def test_a_tree_names_what_is_shared_alike():
    tree = PrefixTree(Names(), unit=10)
    root = tree.root()
    assert tree.insert(ints(5, 6, 7), root) == ([1], [30])
    assert tree.insert(ints(5, 6), root) == ([1], [20])
    assert tree.insert(ints(5, 6, 8), root) == ([1, 31], [20, 30]), "leaves the first after 20"
    assert tree.insert(ints(5, 6, 7, 9), root) == ([1, 41], [30, 40]), "goes on after its end"
    assert tree.insert(ints(7), root) == ([51], [10]), "7 at the start is another block"
    assert tree.insert(ints(), root) == ([], [])
    assert tree.insert(ints(5), tree.root()) == ([62], [10]), "another root shares nothing"
    assert tree.num_ids_after_several_prefixes() == 2


def test_a_path_is_cut_and_lengthened():
    names = Names()
    names.next = 100
    assert cut([1, 50], [4, 9], 9) == ([1, 50], [4, 9])
    assert cut([1, 50], [4, 9], 6) == ([1, 50], [4, 6])
    assert cut([1, 50], [4, 9], 4) == ([1], [4])
    assert cut([1, 50], [4, 9], 0) == ([], [])
    assert with_tail([1], [4], 6, names).token_ids(0, 6).tolist() == [1, 2, 3, 4, 100, 101]
    assert with_tail([1], [4], 3, names).token_ids(0, 3).tolist() == [1, 2, 3]
    assert with_tail([], [], 2, names).token_ids(0, 2).tolist() == [102, 103]
    assert with_tail([], [], 0, names).num_tokens == 0


segment_size = 3
paths = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=4), st.integers(0, segment_size - 1)),
    min_size=1,
    max_size=6,
)


def build(paths):
    """Contents from a tree, and the tokens that they stand for as a trace spells them."""
    names = Names()
    tree = PrefixTree(names, segment_size)
    root = tree.root()
    built = []
    for number, (ids, num_cut) in enumerate(paths):
        tokens = [(i, offset) for i in ids for offset in range(segment_size)]
        head = max(len(tokens) - num_cut, 0)
        tokens = tokens[:head] + [("own", number, offset) for offset in range(4)]
        content = with_tail(*cut(*tree.insert(ints(*ids), root), head), head + 4, names)
        built.append((content, tokens))
    return built


@given(paths, st.integers(1, 7))
def test_keys_are_equal_if_and_only_if_prefixes_are(paths, block_size):
    interner = Interner()
    token_number = {}
    seen = {}
    for content, tokens in build(paths):
        assert content.num_tokens == len(tokens)
        numbers = ints(*(token_number.setdefault(token, len(token_number)) for token in tokens))
        explicit = TokenIds(numbers, interner).block_keys(block_size)
        keys = content.block_keys(block_size)
        assert keys.dtype == np.int64
        assert len(keys) == len(explicit) == len(tokens) // block_size
        for index, pair in enumerate(zip(keys.tolist(), explicit.tolist(), strict=True)):
            seen.setdefault(tuple(tokens[: (index + 1) * block_size]), set()).add(pair)
    pairs = [pair for pairs in seen.values() for pair in pairs]
    assert all(len(pairs) == 1 for pairs in seen.values()), "equal prefixes, equal keys"
    for position in (0, 1):
        assert len({pair[position] for pair in pairs}) == len(seen), "equal keys, equal prefixes"


@given(paths, st.integers(0, 12))
def test_paths_spell_the_same_names_as_token_ids(paths, stop):
    for content, _ in build(paths):
        bases, ends = path(content, stop)
        lengths = np.diff(ends, prepend=0).tolist()
        spelt = [b + o for b, n in zip(bases, lengths, strict=True) for o in range(n)]
        assert spelt == content.token_ids(0, min(stop, content.num_tokens)).tolist()


@given(paths)
def test_a_segment_follows_one_prefix_only(paths):
    before = {}
    for content, _ in build(paths):
        prefix = ()
        for base, end in zip(*content.path(), strict=True):
            assert before.setdefault(base, prefix) == prefix
            prefix = (*prefix, (base, end))


@given(paths)
def test_the_way_taken_over_from_the_stream_before_is_the_way_walked(paths):
    spelt = []
    for long in (1, 10**9):
        with mock.patch.object(tree_module, "_LONG", long):
            spelt.append([content.path() for content, _ in build(paths)])
    assert spelt[0] == spelt[1]
