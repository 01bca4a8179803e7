"""Figures of `workload describe`: each by a plain count of tokens, and what cannot be known."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.types import Request
from workloads import MEANINGS, Workload, describe, shared_prefix_tokens
from workloads.content import Interner, TokenIds
from workloads.multi_turn import agent, multi_turn
from workloads.structure import popularity, sharing, tree_shape
from workloads.tree import Names, PrefixTree, with_tail

token = st.integers(0, 1)
rows = st.lists(
    st.tuples(
        st.lists(token, min_size=1, max_size=7), st.lists(token, max_size=3), st.integers(0, 2)
    ),
    min_size=1,
    max_size=8,
)


def requests_of(rows, *, in_tree):
    """Requests from (prompt, output, session), of explicit tokens or of segments of a tree."""
    names, interner = Names(), Interner()
    tree = PrefixTree(names)
    root = tree.root()
    requests = []
    for index, (prompt, output, session) in enumerate(rows):
        tokens = np.array([*prompt, *output], dtype=np.int64)
        content = TokenIds(tokens, interner)
        if in_tree:
            content = with_tail(*tree.insert(tokens, root), len(tokens), names)
        requests.append(
            Request(str(index), index * 10**9, content, len(prompt), len(output),
                    session_id=str(session) if session else None)
        )  # fmt: skip
    return requests


def common(one, other):
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


@given(rows, st.booleans())
def test_sharing_is_what_a_plain_count_gives(rows, in_tree):
    requests = requests_of(rows, in_tree=in_tree)
    found = sharing(requests)
    assert found.shared.tolist() == shared_prefix_tokens(requests, outputs=True).tolist()
    for index, (prompt, _, session) in enumerate(rows):
        streams = [
            (p + o[: max(len(o) - 1, 0)], s, position)
            for position, (p, o, s) in enumerate(rows[:index])
        ]
        others = [stream for stream, s, _ in streams if not session or s != session]
        assert found.common[index] == max((common(prompt, s) for s in others), default=0)
        assert found.is_repeat[index] == any(p[: len(prompt)] == prompt for p, _, _ in rows[:index])
        longest = max((common(prompt, s) for s, _, _ in streams), default=0)
        if longest == 0:
            assert found.gap_ns[index] == -1
        else:
            last = max(position for s, _, position in streams if common(prompt, s) >= longest)
            between = [p for p, _, _ in rows[last + 1 : index]]
            assert found.gap_ns[index] == (index - last) * 10**9
            assert found.gap_tokens[index] == sum(map(len, between))


@given(rows, st.booleans())
def test_the_tree_has_the_branching_points_of_a_plain_count(rows, in_tree):
    requests = requests_of(rows, in_tree=in_tree)
    ways = {}
    for prompt, _, _ in rows:
        for position, following in enumerate(prompt):
            ways.setdefault(tuple(prompt[:position]), set()).add(following)
    points = {prefix: len(after) for prefix, after in ways.items() if len(after) > 1}
    shape = tree_shape(requests)
    assert sorted(shape.fan_out.tolist()) == sorted(points.values())
    for index, (prompt, _, _) in enumerate(rows):
        depth = sum(tuple(prompt[:n]) in points for n in range(len(prompt) + 1))
        assert shape.depth[index] == depth


@given(rows, st.integers(1, 4))
def test_popularity_counts_beginnings(rows, num_tokens):
    counts = {}
    for prompt, _, _ in rows:
        if len(prompt) >= num_tokens:
            key = tuple(prompt[:num_tokens])
            counts[key] = counts.get(key, 0) + 1
    found = popularity(requests_of(rows, in_tree=True), num_tokens)
    assert found.tolist() == sorted(counts.values(), reverse=True)


def test_every_figure_has_a_meaning():
    for has_prefix_info in (True, False):
        workload = multi_turn(num_requests=20)
        workload = Workload("w", workload.requests, has_prefix_info=has_prefix_info)
        assert set(describe(workload, 16)) == {"name", *MEANINGS}


def test_hits_come_from_system_prompts_turns_and_repeats():
    workload = multi_turn(
        num_requests=4, turns=2, system=100, num_prefixes=1, prompt=10, output=20, think=0,
        session_rate=0.001,
    )  # fmt: skip
    figures = describe(workload, 1)
    # Each conversation's second turn has 129 tokens from before, 100 of which are the system's;
    # that counts as between sessions once another session had it.
    assert figures["hit_share_between_sessions"] == pytest.approx(200 / (129 + 100 + 129))
    assert figures["hit_share_earlier_turns"] == pytest.approx((129 + 29) / (129 + 100 + 129))
    again = Workload("w", (*workload.requests, *workload.requests))
    assert describe(again, 1)["hit_share_repeats"] > 0.5
    gaps = describe(agent(num_requests=200, branch=0, think=0, output=50), 1)
    assert gaps["reuse_gap_s_p50"] == pytest.approx(1.0)


def test_conventions_on_paper():
    """Prompts of 5 and 7 tokens that share 4, blocks of 2."""
    rows = [([1, 2, 3, 4, 5], [9], 0), ([1, 2, 3, 4, 8, 8, 8], [], 0)]
    figures = describe(Workload("w", tuple(requests_of(rows, in_tree=True))), 2)
    assert figures["infinite_hit_rate"] == 4 / 12
    assert figures["infinite_block_hit_rate"] == 2 / 5
    assert figures["mean_request_hit_rate"] == (0 + 4 / 7) / 2
    assert figures["infinite_hit_rate_last_half"] == 4 / 7
    assert figures["identity_block_hit_rate"] == 4 / 12


def test_the_command_says_what_it_counts(prefixsim, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n' * 2
    )
    page = tmp_path / "page.svg"
    code, out, err = prefixsim(
        "workload", "describe", path, "--block-size", "16,768", "--model", "llama-3-70b",
        "--plot", page,
    )  # fmt: skip
    assert code == 0
    assert MEANINGS["infinite_hit_rate_partial"] in out
    assert "working_set_gib" in out
    assert "hit rates at block size 16 are lower bounds" in err
    assert "block size 768 is no multiple" in err
    assert page.read_text().startswith("<?xml")
    code, out, _ = prefixsim("workload", "describe", path, "--json")
    assert json.loads(out)["working_set_gib"] == pytest.approx(600 * 131072 / 2**30)
    code, _, err = prefixsim("workload", "describe", path, "--plot", tmp_path / "page.doc")
    assert (code, "must end in" in err) == (2, True)
