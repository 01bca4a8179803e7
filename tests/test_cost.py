"""Cost models: worked values, laws and files."""

import json
import math
from dataclasses import asdict, replace

import pytest
from helpers import batch_of
from hypothesis import given
from hypothesis import strategies as st

from sim.cost import EagerStepCost, LinearCost, StepCost, at_block_size, load_cost, save_cost
from sim.errors import UsageError
from sim.presets import list_presets, load_preset
from sim.types import Batch

COST = StepCost(
    min_ns=3_000.0,
    ns_per_new_token=400.0,
    ns_per_pair=2.0,
    ns_per_context_token=5.0,
    ns_per_sequence=7.0,
    ns_per_prefill_context_token=1.5,
)
PAIRS = list_presets()


# Worked values


def test_step_cost_of_a_prefill_by_hand():
    # 10 tokens after 20: 10*20 + 55 = 255 pairs, 30 keys; hypot(3000, 4000) = 5000.
    assert COST.step_ns(batch_of((10, 20))) == 5000 + 2 * 255 + (5 + 1.5) * 30 + 7


def test_step_cost_of_decodes_by_hand():
    # 10 sequences, each one token after 99: 1000 pairs, 1000 keys, none in a chunk.
    assert COST.step_ns(batch_of(*[(1, 99)] * 10)) == 5000 + 2 * 1000 + 5 * 1000 + 70


def test_step_cost_of_both_together_charges_all_keys_as_a_prefill_step_does():
    # One chunk of 9 after 0 (45 pairs, 9 keys) and one decode after 99 (100 and 100):
    # 5000 + 2 * 145 + 6.5 * 109 + 14 = 6012.5, and a half is rounded up.
    assert COST.step_ns(batch_of((9, 0), (1, 99))) == 6013


def test_an_eager_step_takes_its_launches_on_top():
    eager = EagerStepCost(**asdict(COST), launch_ns=250.0)
    for batch in (batch_of((10, 20)), batch_of((9, 0), (1, 99))):
        assert eager.step_ns(batch) == COST.step_ns(batch) + 250


def test_a_token_read_costs_its_share_of_a_block():
    smaller = at_block_size(COST, 4, measured_at=16, ns_per_block=32.0)
    # 8 ns of a block of 4 instead of 2 ns of one of 16.
    assert smaller == replace(COST, ns_per_context_token=5 + 8 - 2)
    assert at_block_size(COST, 16, measured_at=16, ns_per_block=32.0) == COST
    # No block makes reading cheaper than nothing.
    assert at_block_size(COST, 64, measured_at=1, ns_per_block=32.0).ns_per_context_token == 0


def test_linear_cost_is_exact_beyond_floats():
    cost = LinearCost(step_base_ns=7, step_per_token_ns=10**14 + 1, step_per_seq_ns=10**13 + 1)
    ns = cost.step_ns(batch_of((4096, 8), (1, 2)))
    assert ns == 7 + 4097 * (10**14 + 1) + 2 * (10**13 + 1)
    assert int(float(ns)) != ns


def test_a_step_takes_at_least_one_ns():
    assert StepCost(0.0, 0.0).step_ns(batch_of((1, 0))) == 1
    assert LinearCost(0).step_ns(batch_of((1, 0))) == 1
    assert StepCost(0.0, 0.0).step_ns(Batch()) == 1


# Laws

coefficient = st.floats(0, 1e8, allow_subnormal=False)
costs = st.one_of(
    st.builds(StepCost, *[coefficient] * 6),
    st.builds(LinearCost, *[st.integers(0, 10**9)] * 3),
    st.sampled_from(PAIRS).map(lambda pair: load_preset(*pair).cost),
)
sequences = st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 100_000)), min_size=1)


@given(cost=costs, sequences=sequences, new=st.integers(1, 4096), more=st.integers(1, 4096))
def test_more_work_never_takes_less_time(cost, sequences, new, more):
    first, *rest = sequences
    ns = cost.step_ns(batch_of(first, *rest))
    assert type(ns) is int
    assert ns >= 1
    assert cost.step_ns(batch_of(first, *rest, (new, more))) >= ns
    assert cost.step_ns(batch_of((first[0] + more, first[1]), *rest)) >= ns
    assert cost.step_ns(batch_of((first[0], first[1] + more), *rest)) >= ns


@pytest.mark.parametrize("name", ["num_new_tokens", "num_attended_pairs", "num_context_tokens"])
def test_time_grows_with_each_count(name):
    batch = batch_of((10, 20), (1, 50))
    ns = COST.step_ns(batch)
    setattr(batch, name, getattr(batch, name) + 1)
    assert COST.step_ns(batch) > ns


# Files


@pytest.mark.parametrize("cost", [COST, LinearCost(1, 2, 3)])
def test_a_file_holds_a_cost_exactly(tmp_path, cost):
    path = tmp_path / "cost.json"
    save_cost(path, cost, provenance="made up", residuals={"median": 0.01})
    assert load_cost(path) == cost
    document = json.loads(path.read_text())
    assert (document["provenance"], document["residuals"]) == ("made up", {"median": 0.01})


def document(**changes):
    return {"form": "linear", "coefficients": coefficients(), **changes}


def coefficients(**changes):
    return {"step_base_ns": 1, "step_per_token_ns": 2, "step_per_seq_ns": 3, **changes}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ["not valid JSON", "write it again"]),
        ("\ufeff{}", ["not valid JSON"]),
        ([], ["is an array", "JSON object"]),
        ({"form": "linear"}, ["coefficients missing"]),
        (document(form="cubic"), ["'cubic'", "step, linear"]),
        (document(form=["step"]), ["['step']", "step, linear"]),
        (document(coefficients=3), ["coefficients", "is a number", "JSON object"]),
        (document(extra=1), ["unknown key 'extra'", "provenance, residuals"]),
        (
            document(coefficients={"step_base_ns": 1}),
            ["step_per_token_ns, step_per_seq_ns missing"],
        ),
        (document(coefficients=coefficients(speed=1)), ["unknown key 'speed'"]),
        (
            document(coefficients=coefficients(step_base_ns=-1)),
            ["step_base_ns is -1", "at least 0"],
        ),
        (document(coefficients=coefficients(step_base_ns=math.nan)), ["step_base_ns is nan"]),
        (
            document(coefficients=coefficients(step_base_ns=10**400)),
            ["step_base_ns", "below 1e+15"],
        ),
        (document(coefficients=coefficients(step_base_ns=True)), ["step_base_ns is True"]),
        (document(coefficients=coefficients(step_base_ns="1")), ["step_base_ns is '1'"]),
        (document(coefficients=coefficients(step_base_ns=None)), ["step_base_ns is None"]),
        (document(coefficients=coefficients(step_base_ns=1.5)), ["is 1.5", "whole number"]),
        (document(form="step"), ["min_ns", "missing"]),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, content, words):
    path = tmp_path / "bad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        load_cost(path)
    for word in ["bad.json", *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_paths_that_hold_no_file(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "missing.json", tmp_path / "binary"):
        with pytest.raises(UsageError, match=path.name):
            load_cost(path)
    for path in (tmp_path, tmp_path / "no_such_folder" / "cost.json"):
        with pytest.raises(UsageError, match="cannot write"):
            save_cost(path, COST)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_impossible_coefficients(value):
    with pytest.raises(UsageError, match="ns_per_pair"):
        replace(COST, ns_per_pair=value)
