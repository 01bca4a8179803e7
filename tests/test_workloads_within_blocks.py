"""Sharing that the ids of a trace hide: continued partial blocks and a common system prompt."""

import json
import math

import pytest

from workloads import infinite_hit_rate, load, shared_prefix_tokens


@pytest.fixture
def read(tmp_path):
    """Read rows of (prompt tokens, ids) as a trace of 512-token ids."""

    def read(*rows, **options):
        path = tmp_path / "trace.jsonl"
        path.write_text(
            "\n".join(
                json.dumps({"timestamp": i, "input_length": n, "output_length": 1, "hash_ids": ids})
                for i, (n, ids) in enumerate(rows)
            )
        )
        return load(path, **options)

    return read


def shared(workload):
    return shared_prefix_tokens(workload.requests).tolist()


TURNS = ((700, [0, 1]), (900, [0, 2]), (1500, [0, 3, 4]))
"""Three turns of a conversation; ids of partial blocks are never seen again."""


def test_a_continuation_shares_the_partial_block_of_the_turn_before(read):
    assert shared(read(*TURNS)) == [0, 512, 512]
    assert shared(read(*TURNS, partial_blocks="shared")) == [0, 700, 900]


def test_only_what_is_longer_continues(read):
    rows = ((900, [0, 1]), (700, [0, 2]), (700, [0, 3]), (800, [0, 4]))
    assert shared(read(*rows, partial_blocks="shared")) == [0, 512, 512, 700]


def test_the_latest_that_is_shorter_is_continued(read):
    rows = ((600, [0, 1]), (800, [0, 2]), (700, [0, 3]), (1024, [0, 4]))
    # The second and third both continue the first; the fourth continues the third.
    assert shared(read(*rows, partial_blocks="shared")) == [0, 600, 600, 700]


def test_a_known_id_goes_on_naming_what_it_named(read):
    rows = (*TURNS, (1024, [0, 3]), (1500, [0, 3, 4]))
    assert shared(read(*rows, partial_blocks="shared")) == [0, 700, 900, 1024, 1500]


def test_first_blocks_are_nobodys_continuation(read):
    rows = ((100, [0]), (300, [1]), (600, [2, 3]))
    assert shared(read(*rows, partial_blocks="shared")) == [0, 0, 0]


def test_a_system_prompt_is_shared_to_the_token(read):
    rows = ((2000, [0, 1, 2, 3]), (2000, [0, 4, 5, 6]), (300, [7]))
    assert shared(read(*rows)) == [0, 512, 0]
    assert shared(read(*rows, system_prompt=880)) == [0, 880, 300]


def test_within_the_system_prompt_nobody_continues(read):
    rows = ((700, [0, 1]), (900, [0, 2]))
    assert shared(read(*rows, partial_blocks="shared", system_prompt=600)) == [0, 600]


def test_what_is_assumed_is_said_and_told_apart_to_the_token(read):
    workload = read(*TURNS, partial_blocks="shared", system_prompt=40)
    assert workload.identity_block_size == 1
    (note,) = workload.notes
    assert "assumed" in note
    assert "2 blocks continue a partial one" in note
    assert "first 40 tokens" in note


def test_without_assumptions_nothing_changes(read):
    plain = read(*TURNS)
    assert plain.notes == ()
    assert plain.identity_block_size == 512
    assert math.isclose(infinite_hit_rate(plain.requests, 512), 1024 / 3100)


def test_requests_come_in_order_of_arrival_whatever_the_order_of_lines(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [(5, 900, [0, 2]), (1, 700, [0, 1])]
    path.write_text(
        "\n".join(
            json.dumps({"timestamp": t, "input_length": n, "hash_ids": ids}) for t, n, ids in rows
        )
    )
    assert shared(load(path, partial_blocks="shared")) == [0, 700]
