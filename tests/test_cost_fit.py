"""Fitting a step cost: it finds what made the data, and says what data cannot tell."""

import math

import numpy as np
import pandas as pd
import pytest

from sim.cost import StepCost
from sim.cost_fit import fit_step_cost, relative_errors
from sim.errors import UsageError


def made_up_steps(cost, *, with_decodes):
    rows = [
        {"new_tokens": new, "cached_tokens": cached, "sequences": 1}
        for new in (16, 64, 256, 1024, 4096)
        for cached in (0, 1000, 16_000)
    ]
    if with_decodes:
        rows += [
            {"new_tokens": 1, "cached_tokens": cached, "sequences": count}
            for count in (1, 16, 256)
            for cached in (100, 5000)
        ]
    points = pd.DataFrame(rows).assign(seconds=1.0)
    # With 1 s as the measured value the relative error gives the model's time back.
    return points.assign(seconds=relative_errors(cost, points) + 1.0)


TRUE = StepCost(6e6, 20_000.0, 0.8, 40.0, 2_000.0, 300.0)


def test_a_fit_finds_the_cost_that_made_the_steps():
    fitted, residuals = fit_step_cost(made_up_steps(TRUE, with_decodes=True))
    for name in StepCost.__slots__:
        assert getattr(fitted, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name
    assert residuals.worst < 1e-3


def test_a_fit_to_prefills_takes_the_decode_costs_that_it_is_given():
    points = made_up_steps(TRUE, with_decodes=False)
    fitted, residuals = fit_step_cost(points, ns_per_context_token=40.0, ns_per_sequence=2000.0)
    assert (fitted.ns_per_context_token, fitted.ns_per_sequence) == (40.0, 2000.0)
    assert fitted.ns_per_prefill_context_token == pytest.approx(300.0, rel=0.02)
    assert residuals.worst < 1e-3


def test_a_fit_is_deterministic_and_blind_to_the_order_of_rows():
    points = made_up_steps(TRUE, with_decodes=True)
    noise = 1 + 0.05 * np.sin(np.arange(len(points)))
    points["seconds"] *= noise
    first, _ = fit_step_cost(points)
    again, _ = fit_step_cost(points)
    shuffled, _ = fit_step_cost(points.iloc[::-1].reset_index(drop=True))
    assert first == again
    for name in StepCost.__slots__:
        assert getattr(shuffled, name) == pytest.approx(getattr(first, name), rel=1e-6)


@pytest.mark.parametrize(
    ("change", "given", "words"),
    [
        ({}, {}, ["hold prefills", "ns_per_context_token"]),
        ({}, {"ns_per_context_token": 1.0}, ["1 sequence(s)", "ns_per_sequence"]),
        ({"seconds": 0.0}, {}, ["seconds in row 1 is 0.0", "above 0"]),
        ({"seconds": "fast"}, {}, ["seconds in row 1 is fast"]),
        ({"new_tokens": 1.5}, {}, ["new_tokens in row 1 is 1.5", "whole number"]),
        ({"cached_tokens": math.nan}, {}, ["cached_tokens in row 1 is nan"]),
    ],
)
def test_tables_that_cannot_be_fitted(change, given, words):
    points = made_up_steps(TRUE, with_decodes=False).assign(**change)
    with pytest.raises(UsageError) as error:
        fit_step_cost(points, **given)
    for word in words:
        assert word in str(error.value)


def test_tables_with_too_little():
    points = made_up_steps(TRUE, with_decodes=True)
    with pytest.raises(UsageError, match="seconds"):
        fit_step_cost(points.drop(columns="seconds"))
    with pytest.raises(UsageError, match="must have rows"):
        fit_step_cost(points.iloc[:0])
    with pytest.raises(UsageError, match="at least 6"):
        fit_step_cost(points.iloc[-5:])
