"""The closed forms against simulation: numpy, seeded, with bounds that a right formula fails less than once in 10⁹ times."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dflash_core.lossless import chi_square_p_value
from dflash_core.metrics import geometric_lengths
from dflash_core.theory import (
    acceptance_length_law,
    best_block_size,
    expected_acceptance_length,
    expected_acceptance_length_by_position,
    speedup,
)

from .conftest import FALSE_ALARM

N = 200_000
SIGMA = 6.5  # standard errors of a mean that a right formula may be away: a false alarm below 1e-10
ALPHAS = [[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], [0.4, 0.95, 0.1], [1.0, 0.5, 1.0], [0.6, 0.0, 0.9], [0.25]]


def simulated_lengths(alphas: list[float], n: int = N, seed: int = 1) -> np.ndarray:
    """Acceptance lengths of n blocks: tokens are judged one after the other, up to the first rejection."""
    kept = np.random.default_rng(seed).random((n, len(alphas))) < alphas
    return 1 + kept.cumprod(axis=1).sum(axis=1)


def away(lengths: np.ndarray, expected: float) -> float:
    """Distance of the mean from what is expected, in standard errors."""
    spread = lengths.std() / math.sqrt(len(lengths))
    return 0.0 if lengths.mean() == pytest.approx(expected) else abs(lengths.mean() - expected) / max(spread, 1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.85, 0.99, 1.0])
@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
def test_expected_length_for_one_alpha(alpha: float, block_size: int) -> None:
    expected = expected_acceptance_length(alpha, block_size)
    assert away(simulated_lengths([alpha] * (block_size - 1)), expected) < SIGMA
    assert expected_acceptance_length_by_position([alpha] * (block_size - 1)) == pytest.approx(expected)
    if alpha < 1:
        assert expected == pytest.approx((1 - alpha**block_size) / (1 - alpha))


def test_the_ends_are_exact() -> None:
    for block_size in (1, 2, 8, 64):
        assert expected_acceptance_length(1.0, block_size) == block_size
        assert expected_acceptance_length(0.0, block_size) == 1.0
        assert expected_acceptance_length(1 - 1e-15, block_size) == pytest.approx(block_size, rel=1e-12)
    assert expected_acceptance_length_by_position([]) == 1.0
    assert expected_acceptance_length_by_position([1.0] * 7) == 8.0
    assert acceptance_length_law([]) == [1.0]
    assert acceptance_length_law([0.0, 0.5]) == [1.0, 0.0, 0.0]
    assert acceptance_length_law([1, 1]) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("alphas", ALPHAS, ids=str)
def test_law_and_mean_by_position(alphas: list[float]) -> None:
    lengths = simulated_lengths(alphas)
    law = acceptance_length_law(alphas)
    assert sum(law) == pytest.approx(1.0) and min(law) >= 0
    counts = np.bincount(lengths - 1, minlength=len(law))
    assert chi_square_p_value(counts, np.array(law)) > FALSE_ALARM
    assert away(lengths, expected_acceptance_length_by_position(alphas)) < SIGMA
    mean = sum(length * share for length, share in enumerate(law, start=1))
    assert mean == pytest.approx(expected_acceptance_length_by_position(alphas))


def test_conditional_acceptance_needs_no_independence() -> None:
    """Easy and hard blocks, mixed: the tokens of one block go together, and the αᵢ of the mixture still give its mean and law."""
    easy = np.random.default_rng(3).random(N) < 0.5
    lengths = np.where(easy, simulated_lengths([0.9] * 5, seed=4), simulated_lengths([0.2] * 5, seed=5))
    survival = [(0.9**i + 0.2**i) / 2 for i in range(6)]
    alphas = [after / before for before, after in pairwise(survival)]
    assert away(lengths, expected_acceptance_length_by_position(alphas)) < SIGMA
    counts = np.bincount(lengths - 1, minlength=6)
    assert chi_square_p_value(counts, np.array(acceptance_length_law(alphas))) > FALSE_ALARM
    # One α for all, accepted / judged, does not: what the per-position form is for.
    judged = sum(survival[:-1])
    assert away(lengths, expected_acceptance_length(sum(survival[1:]) / judged, 6)) > SIGMA


def test_the_histogram_of_the_metrics_follows_this_law() -> None:
    assert geometric_lengths(0.7, 4) == acceptance_length_law([0.7] * 4)
    assert geometric_lengths(0.7, 4) == pytest.approx([0.3, 0.21, 0.147, 0.1029, 0.2401])


@pytest.mark.parametrize(("draft_cost", "verify_cost"), [(0.1, 1.2), (0.3, 1.0), (0.0, 1.0), (2.0, 3.0)])
def test_speedup_against_a_simulated_clock(draft_cost: float, verify_cost: float) -> None:
    """Tokens of n cycles by the time they take, in plain steps, with durations that vary around their means."""
    alphas = ALPHAS[0]
    lengths = simulated_lengths(alphas)
    seconds = (draft_cost + verify_cost) * np.random.default_rng(2).gamma(50.0, 1 / 50.0, N)
    measured = lengths.sum() / seconds.sum()
    # Error of a ratio of independent means, by the delta method.
    relative = math.sqrt((lengths.std() / lengths.mean()) ** 2 + 1 / 50) / math.sqrt(N)
    expected = speedup(expected_acceptance_length_by_position(alphas), draft_cost, verify_cost)
    assert abs(measured / expected - 1) < SIGMA * relative


VERIFY_COSTS = {2: 1.02, 3: 1.05, 4: 1.1, 6: 1.6, 8: 2.4}


def test_best_block_size_is_the_fastest_of_the_simulated() -> None:
    alphas = ALPHAS[0]
    rates = {1: 1.0}
    for block_size, cost in VERIFY_COSTS.items():
        rates[block_size] = simulated_lengths(alphas[: block_size - 1]).mean() / (0.2 + cost)
    fastest = max(rates, key=lambda b: rates[b])
    runner_up = sorted(rates.values())[-2]
    assert rates[fastest] > 1.02 * runner_up  # a gap far beyond the simulation's error of about 0.2 %
    found, gain = best_block_size(alphas, 0.2, VERIFY_COSTS)
    assert found == fastest == 4
    assert gain == pytest.approx(rates[fastest], rel=0.02)


def test_plain_decoding_takes_part() -> None:
    assert best_block_size([0.0] * 7, 0.1, VERIFY_COSTS) == (1, 1.0)
    assert best_block_size([0.9] * 7, 5.0, VERIFY_COSTS) == (1, 1.0)
    assert best_block_size([], 0.1, {}) == (1, 1.0)
    assert best_block_size([1.0], 0.0, {2: 2.0}) == (1, 1.0)  # as fast as plain decoding: the smaller block


def test_of_equally_fast_blocks_the_smaller_is_taken() -> None:
    assert best_block_size([1.0] * 3, 0.0, {4: 2.0, 2: 1.0}) == (2, 2.0)


NO_NUMBERS: list[Any] = [math.nan, math.inf, -0.1, "0.5", None, True]


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1.01, 10**400])
def test_an_alpha_must_be_a_probability(value: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: expected_acceptance_length(value, 4),
        lambda: expected_acceptance_length_by_position([0.5, value]),
        lambda: acceptance_length_law([value]),
        lambda: best_block_size([value], 0.1, {2: 1.0}),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="from 0 to 1"):
            call()


@pytest.mark.parametrize("value", [0, -1, 2.0, "4", None, True])
def test_a_block_has_at_least_its_anchor(value: Any) -> None:
    with pytest.raises(ValueError, match="whole number of 1 or more"):
        expected_acceptance_length(0.5, value)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 10**400])
def test_a_cost_must_be_a_number_of_0_or_more(value: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: speedup(2.0, value, 1.0),
        lambda: speedup(2.0, 0.1, value),
        lambda: best_block_size([0.5], value, {2: 1.0}),
        lambda: best_block_size([0.5], 0.1, {2: value}),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="must be a number of 0 or more"):
            call()


def test_other_bad_input() -> None:
    for tau in (0.9, math.nan, math.inf, "2", None):
        with pytest.raises(ValueError, match="must be 1 or more"):
            speedup(tau, 0.1, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not both be 0"):
        speedup(2.0, 0.0, 0.0)
    for block_size in (1, 0, -2, 2.0, "2", True):
        with pytest.raises(ValueError, match="block sizes of 2 or more"):
            best_block_size([0.5] * 3, 0.1, {block_size: 1.0})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="block size 5 drafts 4 tokens, but there are alphas for 3"):
        best_block_size([0.5] * 3, 0.1, {5: 1.0})
