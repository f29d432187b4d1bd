"""The figures of a run: counted by hand, and against the literature's formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from scipy import stats

from dflash_core import RULES, Block, dflash_generate
from dflash_core.metrics import RunningMetrics, geometric_lengths, run_stats, wilson_interval
from dflash_core.toy import ToyDraft, ToyTarget


def block(index: int, n_accepted: int, *, emitted: int | None = None, gamma: int = 3, token: int = 0) -> Block:
    """A block of γ drafted tokens of which n_accepted were kept; `emitted` tokens of it came out (None: all)."""
    drafted = tuple(token + k for k in range(gamma))
    candidates = (*drafted[:n_accepted], token + 90)
    out = candidates if emitted is None else candidates[:emitted]
    finish: Literal["length"] | None = None if emitted is None else "length"
    kind: Literal["resampled", "bonus"] = "resampled" if n_accepted < gamma else "bonus"
    return Block(index, 10 * index, 5, drafted, n_accepted, token + 90, kind, out, finish, draft_seconds=0.25, verify_seconds=0.5)


PREFILL = replace(block(0, 0, gamma=0), verify_seconds=100.0)


def test_counts_of_hand_made_blocks() -> None:
    """B = 4: all accepted, none accepted, two accepted, one accepted."""
    figures = run_stats([PREFILL, block(1, 3), block(2, 0), block(3, 2), block(4, 1)], 4)
    assert (figures.n_blocks, figures.n_cut, figures.target_passes) == (4, 0, 5)
    assert figures.n_tokens == 1 + 4 + 1 + 3 + 2
    assert figures.passes_saved == 11 - 5
    assert figures.tau == 10 / 4
    assert figures.lengths == (1, 1, 1, 1)
    assert (figures.drafted, figures.accepted) == (12, 6)
    assert figures.judged == 3 + 1 + 3 + 2  # what follows a rejection was never judged
    assert figures.alpha == 6 / 9
    assert [(p.i, p.accepted, p.judged) for p in figures.positions] == [(1, 3, 4), (2, 2, 3), (3, 1, 2)]
    assert [p.rate for p in figures.positions] == [3 / 4, 2 / 3, 1 / 2]
    # without cut blocks survival is accepted / blocks
    assert [p.survival for p in figures.positions] == pytest.approx([3 / 4, 2 / 4, 1 / 4])


def test_time_leaves_the_prefill_out() -> None:
    figures = run_stats([PREFILL, block(1, 3), block(2, 0)], 4)
    assert (figures.seconds_draft, figures.seconds_verify, figures.seconds_other) == (0.5, 1.0, 0.0)
    assert figures.seconds == 1.5
    assert figures.tokens_per_second == pytest.approx(5 / 1.5)


def test_a_block_cut_among_its_accepted_tokens_counts_what_came_out() -> None:
    cut = block(2, 3, emitted=2)  # three accepted, a stop or the cap after two
    figures = run_stats([PREFILL, block(1, 0), cut], 4)
    assert cut.is_cut and figures.n_cut == 1
    assert figures.tau == 3 / 2
    assert figures.lengths == (1, 1, 0, 0)
    assert (figures.accepted, figures.judged, figures.drafted) == (2, 3, 6)
    assert [(p.accepted, p.judged) for p in figures.positions] == [(1, 2), (1, 1), (0, 0)]


def test_a_cut_before_the_rejected_token_drops_the_rejection() -> None:
    """One accepted, the second rejected, but the cap came after the first: the rejection is no part of the output."""
    figures = run_stats([PREFILL, block(1, 1, emitted=1)], 4)
    assert (figures.n_cut, figures.accepted, figures.judged, figures.alpha) == (1, 1, 1, 1.0)


def test_a_resampled_or_bonus_token_at_the_cap_is_no_cut() -> None:
    for last in (block(1, 1, emitted=2), block(1, 3, emitted=4)):
        figures = run_stats([PREFILL, last], 4)
        assert figures.n_cut == 0
        assert figures.judged == last.n_accepted + last.rejected


def test_survival_with_a_cut_block_is_the_kaplan_meier_estimate() -> None:
    """By hand: position 1 is judged in 4 blocks, 3 accept; position 2 in 2 of the 3 that reach it (one is cut), 1 accepts."""
    blocks = [PREFILL, block(1, 0), block(2, 1), block(3, 2, gamma=3), block(4, 3, emitted=1)]
    figures = run_stats(blocks, 4)
    assert [(p.accepted, p.judged) for p in figures.positions] == [(3, 4), (1, 2), (0, 1)]
    assert [p.survival for p in figures.positions] == pytest.approx([3 / 4, 3 / 4 * 1 / 2, 0.0])


def test_survival_is_undefined_where_nothing_was_judged_and_stays_zero_after_zero() -> None:
    never = run_stats([PREFILL, block(1, 3, emitted=1)], 4)
    assert [p.survival for p in never.positions] == [1.0, None, None]
    assert [(p.rate, p.low, p.high) for p in never.positions[1:]] == [(None, None, None)] * 2
    zero = run_stats([PREFILL, block(1, 0)], 4)
    assert [p.survival for p in zero.positions] == [0.0, 0.0, 0.0]


def test_block_zero_is_in_no_acceptance_figure() -> None:
    figures = run_stats([PREFILL], 4)
    assert (figures.n_blocks, figures.n_tokens, figures.target_passes, figures.passes_saved) == (0, 1, 1, 0)
    undefined = (figures.tau, figures.tau_low, figures.alpha, figures.lengths_expected, figures.tokens_per_second)
    assert undefined == (None,) * 5
    assert figures.lengths == (0, 0, 0, 0) and figures.seconds == 0.0
    nothing = run_stats([], 4)
    assert (nothing.n_tokens, nothing.target_passes, nothing.repeated_share, nothing.tau) == (0, 0, 0.0, None)


def test_plain_decoding_has_a_tau_of_one_and_no_acceptance() -> None:
    figures = run_stats([replace(block(i, 0, gamma=0), index=i) for i in range(5)], 1)
    assert (figures.tau, figures.lengths, figures.passes_saved) == (1.0, (4,), 0)
    assert (figures.tau_low, figures.alpha, figures.lengths_expected) == (None, None, None)
    assert figures.positions == () and (figures.drafted, figures.judged) == (0, 0)


# Intervals


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 20), (20, 20), (7, 20), (81, 263), (9999, 10000)])
def test_wilson_interval_is_scipys(successes: int, trials: int) -> None:
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    low, high = wilson_interval(successes, trials)
    assert low is not None and high is not None
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low <= successes / trials <= high <= 1


def test_wilson_interval_of_a_published_example() -> None:
    """Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662 by the score method without continuity correction."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 0) == (None, None)


def test_tau_interval_is_students() -> None:
    lengths = [4, 1, 3, 2, 2, 1, 4]
    figures = run_stats([PREFILL, *(block(i, n - 1) for i, n in enumerate(lengths, start=1))], 4)
    expected = stats.t.interval(0.95, len(lengths) - 1, loc=np.mean(lengths), scale=stats.sem(lengths))
    assert (figures.tau_low, figures.tau_high) == pytest.approx(expected)
    one = run_stats([PREFILL, block(1, 2)], 4)
    assert one.tau == 3 and one.tau_low is one.tau_high is None


def test_tau_interval_stays_within_what_is_possible() -> None:
    figures = run_stats([PREFILL, block(1, 0), block(2, 3)], 4)
    assert (figures.tau_low, figures.tau_high) == (1.0, 4.0)


def test_tau_interval_covers_the_truth_about_95_times_in_100() -> None:
    """600 runs of 60 independent blocks at α = 0.7, B = 8."""
    alpha, gamma, n_runs = 0.7, 7, 600
    truth = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    accepted = np.random.default_rng(5).random((n_runs, 60, gamma)) < alpha
    counts = accepted.cumprod(-1).sum(-1)
    covered = 0
    for run in counts:
        metrics = RunningMetrics(gamma + 1)
        for index, n in enumerate(run, start=1):
            metrics.add(block(index, int(n), gamma=gamma))
        figures = metrics.stats()
        assert figures.tau_low is not None and figures.tau_high is not None
        covered += figures.tau_low <= truth <= figures.tau_high
    assert 0.90 <= covered / n_runs <= 0.99


# The geometric law


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.85, 1.0])
@pytest.mark.parametrize("gamma", [1, 3, 15])
def test_geometric_law(alpha: float, gamma: int) -> None:
    law = geometric_lengths(alpha, gamma)
    assert len(law) == gamma + 1 and min(law) >= 0
    assert sum(law) == pytest.approx(1.0)
    expected = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert sum(length * share for length, share in enumerate(law, start=1)) == pytest.approx(expected)


def test_expected_lengths_spread_the_same_number_of_blocks() -> None:
    figures = run_stats([PREFILL, block(1, 3), block(2, 0), block(3, 2), block(4, 1)], 4)
    assert figures.lengths_expected is not None and len(figures.lengths_expected) == len(figures.lengths) == 4
    assert sum(figures.lengths_expected) == pytest.approx(4)
    assert figures.lengths_expected[0] == pytest.approx(4 * (1 - 6 / 9))


# Repetition


def output(tokens: list[int]) -> list[Block]:
    """The tokens as plain decoding would report them."""
    return [Block(i, i, 0, (), 0, token, "bonus", (token,), None) for i, token in enumerate(tokens)]


@pytest.mark.parametrize(
    ("tokens", "repeated"),
    [
        (list(range(100)), 0),
        (list(range(16)) * 2, 16),
        ([*range(15), 99, *range(15)], 0),  # 15 tokens come again: no phrase of 16
        ([*range(20), *range(50, 60), *range(20), *range(70, 80)], 20),
        ([7] * 16, 0),
        ([7] * 40, 39),  # from the second token on, each lies in a phrase that began one earlier
        (list(range(40)) * 3, 80),
        ([1, 2, 3], 0),
    ],
)
def test_repeated_share(tokens: list[int], repeated: int) -> None:
    assert run_stats(output(tokens), 1).repeated_share == pytest.approx(repeated / len(tokens))


def test_repetition_is_seen_across_blocks() -> None:
    first = [block(i, 3, token=100 * i) for i in range(1, 6)]
    again = [replace(each, index=each.index + 5) for each in first]
    assert run_stats(first, 4).repeated_share == 0
    assert run_stats([*first, *again], 4).repeated_share == 0.5


# Runs


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("block_size", [1, 2, 8])
def test_figures_of_real_runs_hang_together(rule: str, block_size: int) -> None:
    target = ToyTarget()
    draft = ToyDraft(target)
    generation = dflash_generate(
        draft, target, torch.tensor([[4, 9]]), max_new_tokens=83, temperature=0.9, block_size=block_size, rule=rule, seed=3
    )
    figures = run_stats(generation.blocks, block_size)
    blocks = generation.blocks[1:]
    assert figures.n_tokens == len(generation.token_ids) == 83
    assert figures.target_passes == len(generation.blocks) == 83 - figures.passes_saved
    assert sum(figures.lengths) == figures.n_blocks == len(blocks)
    assert figures.tau == pytest.approx(82 / len(blocks))
    assert figures.accepted + sum(b.rejected for b in blocks) == figures.judged <= figures.drafted
    assert figures.drafted == figures.judged + sum(b.not_judged for b in blocks)
    assert figures.n_cut == sum(b.is_cut for b in blocks)
    assert figures.seconds == pytest.approx(sum(b.seconds for b in blocks))
    survival = [p.survival for p in figures.positions]
    assert survival == sorted(survival, key=lambda s: -math.inf if s is None else -s)


def test_running_figures_equal_those_of_the_whole_list() -> None:
    target = ToyTarget()
    generation = dflash_generate(
        ToyDraft(target), target, torch.tensor([[4]]), max_new_tokens=90, temperature=1.1, block_size=6, seed=8
    )
    metrics = RunningMetrics(6)
    for n, each in enumerate(generation.blocks, start=1):
        metrics.add(each)
        assert metrics.stats() == run_stats(generation.blocks[:n], 6)
        lengths = [b.acceptance_length for b in generation.blocks[1:n]]
        assert metrics.tau == (pytest.approx(np.mean(lengths)) if lengths else None)
