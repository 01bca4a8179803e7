"""Differences of rates and their simultaneous intervals: by hand, by law, and by coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.noise import differences, stretches

PAIR = np.array([[1, 0]])


def simple(first, second, wholes, **options):
    parts = np.array([[first, second]], dtype=float)
    found = differences(parts, np.array([wholes], dtype=float), PAIR, **options)
    return found.value[0, 0], found.low[0, 0], found.high[0, 0]


def test_a_difference_by_hand():
    """Units of 10, 10 and 20 tokens: 10 of 40 against 14 of 40."""
    value, low, high = simple([2, 3, 5], [4, 4, 6], [10, 10, 20])
    assert value == pytest.approx(0.1)
    # Residuals 2 - 1, 1 - 1, 1 - 2: the sum of squares 2, times 3 / 2, under the root, over 40.
    error = np.sqrt(2 * 3 / 2) / 40
    found = differences(np.array([[[2, 3, 5], [4, 4, 6]]], dtype=float),
                        np.array([[10, 10, 20]], dtype=float), PAIR)  # fmt: skip
    assert high - value == pytest.approx(found.num_errors * error)
    assert value - low == pytest.approx(high - value)


def test_the_same_seed_gives_the_same_interval():
    rng = np.random.default_rng(1)
    parts = rng.integers(0, 50, (2, 4, 30)).astype(float)
    wholes = np.full((2, 30), 50.0)
    pairs = np.array([[1, 0], [2, 0], [3, 0]])
    one, again = (differences(parts, wholes, pairs) for _ in range(2))
    assert (one.low == again.low).all()
    assert one.num_errors == again.num_errors
    assert differences(parts, wholes, pairs, seed=1).num_errors != one.num_errors


def test_policies_that_hit_the_same_differ_by_nothing():
    assert simple([3, 4, 5], [3, 4, 5], [9, 9, 9]) == (0, 0, 0)


def test_one_unit_tells_nothing():
    value, low, high = simple([3], [4], [10])
    assert value == pytest.approx(0.1)
    assert np.isnan([low, high]).all()


def test_a_group_without_any_request_has_no_difference():
    found = differences(np.zeros((1, 2, 3)), np.zeros((1, 3)), PAIR)
    assert np.isnan(found.value).all()


def test_more_comparisons_make_every_interval_wider():
    rng = np.random.default_rng(2)
    parts = rng.integers(0, 50, (1, 20, 40)).astype(float)
    wholes = np.full((1, 40), 50.0)
    few = differences(parts, wholes, PAIR)
    many = differences(parts, wholes, np.array([[i, 0] for i in range(1, 20)]))
    assert many.num_errors > few.num_errors + 0.5


def test_few_units_make_intervals_wide():
    rng = np.random.default_rng(3)
    first, second = rng.normal(5, 1, 4), rng.normal(5, 1, 4)
    found = differences(np.array([[first, second]]), np.full((1, 4), 10.0), PAIR)
    assert found.num_errors > 2.5


@pytest.mark.parametrize("num_units", [10, 50])
@pytest.mark.parametrize("num_rates", [2, 8])
def test_intervals_cover_the_truth_about_as_often_as_they_say(num_units, num_rates):
    """Skewed units of unequal size, whose rates truly differ by steps of 0.02."""
    rng = np.random.default_rng(4)
    pairs = np.array([[i, 0] for i in range(1, num_rates)])
    truth = 0.02 * np.arange(1, num_rates)
    num_covered, num_trials = 0, 200
    for trial in range(num_trials):
        wholes = rng.lognormal(3, 0.7, num_units)
        shares = rng.beta(2, 3, num_units) + 0.02 * np.arange(num_rates)[:, None]
        noise = rng.normal(0, 0.05, (num_rates, num_units))
        parts = wholes * (shares + noise)
        found = differences(parts[None], wholes[None], pairs, num_resamples=300, seed=trial)
        num_covered += bool(((found.low[0] <= truth) & (truth <= found.high[0])).all())
    least = 0.85 if num_units < 20 else 0.91  # few skewed units cover less than they say
    assert least <= num_covered / num_trials <= 0.995


@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12),
)
def test_an_interval_is_around_its_value_and_turns_round_with_the_pair(rows):
    first, second = zip(*rows, strict=True)
    value, low, high = simple(first, second, [9] * len(rows), num_resamples=50)
    other, other_low, other_high = simple(second, first, [9] * len(rows), num_resamples=50)
    assert low <= value <= high
    assert (other, other_low, other_high) == pytest.approx((-value, -high, -low))


def test_stretches_are_whole_and_about_equal():
    parts = stretches(1007)
    assert (np.diff(parts) >= 0).all()
    assert set(np.bincount(parts)) <= {20, 21}
    assert len(np.bincount(parts)) == 50
    assert len(np.bincount(stretches(64))) == 6
    assert stretches(7).tolist() == [0] * 7
    assert len(stretches(0)) == 0
