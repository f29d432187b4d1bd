"""The checks themselves: they pass what is exact, catch what is not, and accuse as rarely as they say."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dflash_core import lossless
from dflash_core.blocks import JudgedToken, SamplingParams
from dflash_core.generate import dflash_generate
from dflash_core.lossless import (
    LawCheck,
    chi_square_p_value,
    compare_with_plain,
    distributions_of,
    null_band,
    redraw_bias,
    two_sample_test,
    verify_law,
)
from dflash_core.sampling import probabilities
from dflash_core.toy import ToyDraft, ToyTarget
from dflash_core.verify import RULES, Rule, propose_greedily

from .conftest import FALSE_ALARM, tiny_draft, tiny_target

LOSSLESS = [key for key, rule in RULES.items() if rule.lossless]
SAME_TEXT = [key for key, rule in RULES.items() if rule.same_text]
GREEDY_JUDGED_SOFTLY = dataclasses.replace(RULES["speculative"], key="greedy-soft", propose=propose_greedily)
N = 20_000


def one_position(p: Tensor, q: Tensor, rule: Rule, *, n: int = N, seed: int = 1) -> LawCheck:
    return verify_law(rule, p.expand(2, -1), q[None], n=n, seed=seed, level=FALSE_ALARM)


def random_position(temperature: float, seed: int, vocab: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, q = (probabilities(2 * torch.randn(vocab, generator=generator), temperature=temperature) for _ in range(2))
    return p, q


def toy_run(temperature: float) -> list[JudgedToken]:
    target = ToyTarget()
    judged: list[JudgedToken] = []
    dflash_generate(
        ToyDraft(target),
        target,
        torch.tensor([[3, 5]]),
        max_new_tokens=40,
        temperature=temperature,
        block_size=4,
        seed=2,
        rule="speculative",
        table_size=12,
        on_block=lambda block: judged.extend(block.judged),
    )
    return judged


@pytest.mark.parametrize("level", [1e-2, 1e-6])
@pytest.mark.parametrize("expected", [5, 20, 100])
def test_the_chi_square_test_accuses_as_rarely_as_it_says(level: float, expected: int) -> None:
    """Its true size, exactly: every outcome of a sample of 40,000 with two classes, weighted with its probability."""
    n, share = 40_000, expected / 40_000
    counts = np.arange(expected * 4 + 60)  # what lies above weighs less than 1e-12
    p_values = np.array([chi_square_p_value([k, n - k], [share, 1 - share]) for k in counts])
    size = stats.binom.pmf(counts, n, share)[p_values < level].sum()
    assert 0.2 * level < size < 1.5 * level


def test_the_chi_square_test_pools_the_rare_and_refuses_the_impossible() -> None:
    law = [0.5, 0.5 - 1e-5, 1e-5, 0.0]
    assert chi_square_p_value([500, 499, 1, 0], law) > 0.1  # expected 0.01 times, but pooled
    assert chi_square_p_value([500, 499, 0, 1], law) == 0.0
    assert chi_square_p_value([7, 0], [1.0, 0.0]) == 1.0
    assert chi_square_p_value([600, 400, 0, 0], law) < 1e-9


def test_the_null_band_and_the_p_value_are_calibrated() -> None:
    """200 honest checks. X ~ Bin(200, 1 %) exceeds 11 once in a million; X ~ Bin(200, 50 %) leaves 65 … 135 as rarely."""
    p, q = random_position(1.0, seed=3)
    checks = [one_position(p, q, RULES["speculative"], n=2000, seed=seed) for seed in range(200)]
    assert sum(check.total_variation > check.null_band for check in checks) <= 11
    assert sum(check.p_value < 0.01 for check in checks) <= 11
    median = null_band(p, 2000, seed=0, share=0.5)
    assert 65 <= sum(check.total_variation > median for check in checks) <= 135
    assert 65 <= sum(check.p_value < 0.5 for check in checks) <= 135


@pytest.mark.parametrize("key", LOSSLESS)
def test_lossless_rules_pass(key: str) -> None:
    positions = [random_position(temperature, seed) for temperature, seed in ((0.0, 1), (0.3, 2), (1.0, 3), (2.0, 4))]
    positions += [distributions_of(judged)[1:] for temperature in (0.7, 1.3) for judged in toy_run(temperature)[2:6]]
    for p, q in positions:
        check = one_position(p, q, RULES[key])
        assert not check.differs and sum(check.counts) == N
        assert check.acceptance is not None
        law = [check.acceptance, 1 - check.acceptance]
        assert chi_square_p_value([check.accepted, N - check.accepted], law) > FALSE_ALARM


@pytest.mark.parametrize("rule", [RULES["naive"], GREEDY_JUDGED_SOFTLY], ids=lambda rule: rule.key)
def test_biased_rules_are_caught(rule: Rule) -> None:
    for temperature in (0.7, 1.0, 2.0):
        p, q = random_position(temperature, seed=3)
        check = one_position(p, q, rule)
        assert check.differs and check.total_variation > check.null_band


def test_what_naive_emits_is_the_closed_form_and_nothing_at_all_where_all_is_rejected() -> None:
    p, q = random_position(1.0, seed=3)
    check = one_position(p, q, RULES["naive"])
    assert check.total_variation == pytest.approx(float(redraw_bias(p, q)), abs=check.null_band)
    left, right = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    assert float(redraw_bias(left, right)) == float(redraw_bias(left, left)) == 0.0
    assert not one_position(left, right, RULES["naive"]).differs


@pytest.mark.parametrize("key", ["coupled", "block"])
def test_larger_blocks_go_in_chunks(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossless, "MAX_ELEMENTS", 4000)
    generator = torch.Generator().manual_seed(5)
    p, q = ((2 * torch.randn(rows, 6, generator=generator)).softmax(-1) for rows in (4, 3))
    check = verify_law(RULES[key], p, q, n=10_001, seed=1, level=FALSE_ALARM)
    assert not check.differs and sum(check.counts) == 10_001
    assert (check.acceptance is None) == RULES[key].joint


def test_a_check_is_repeatable_and_json() -> None:
    p, q = random_position(1.0, seed=3)
    check = one_position(p, q, RULES["coupled"], n=500)
    assert check == one_position(p, q, RULES["coupled"], n=500) != one_position(p, q, RULES["coupled"], n=500, seed=2)
    assert json.loads(json.dumps(check.to_dict(), allow_nan=False))["counts"] == list(check.counts)


def test_what_cannot_be_checked_is_refused() -> None:
    p, q = random_position(1.0, seed=3)
    for target_probs, draft_probs, n, said in (
        (p[None], q[None], 10, "shape"),
        (p, q, 10, "shape"),
        (p.expand(2, -1), 2 * q[None], 10, "sum to 1"),
        (p.expand(2, -1), float("nan") * q[None], 10, "sum to 1"),
        (p.expand(2, -1), q[None], 0, "at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            verify_law(RULES["match"], target_probs, draft_probs, n=n, seed=1)


def test_distributions_of_a_recorded_position() -> None:
    judged = toy_run(1.0)[0]
    tokens, p, q = distributions_of(judged)
    assert tokens == tuple(token for token, _, _ in judged.table) and len(p) == len(q) == len(tokens) + 1
    assert float(p.sum()) == pytest.approx(1) and float(q.sum()) == pytest.approx(1)
    assert float(p[0]) == pytest.approx(judged.table[0][1], abs=1e-6)
    assert float(q[-1]) == pytest.approx(1 - sum(row[2] for row in judged.table), abs=1e-6)
    for table, said in (((), "no table"), (((1, -0.1, 0.5),), "≥ 0"), (((1, 0.7, 0.5), (2, 0.7, 0.5)), "at most 1")):
        with pytest.raises(ValueError, match=said):
            distributions_of(dataclasses.replace(judged, table=table))


def test_two_samples() -> None:
    generator = np.random.default_rng(1)
    a, b, other = (
        [tuple(row) for row in generator.choice(3, (400, 2), p=law)] for law in ([0.5, 0.3, 0.2],) * 2 + ([0.2, 0.3, 0.5],)
    )
    assert not two_sample_test(a, b).differs and two_sample_test(a, b).classes == 9
    assert two_sample_test(a, other[:150]).differs
    unique = two_sample_test(range(100), range(100, 200))
    assert (unique.classes, unique.p_value) == (1, 1.0)  # nothing repeats, so nothing can be said
    assert two_sample_test(["a"], ["b"]).p_value == 1.0  # too few
    with pytest.raises(ValueError, match="at least one"):
        two_sample_test([], a)


@pytest.mark.parametrize("key", RULES)
def test_whole_outputs_of_the_toy_against_plain_decoding(key: str) -> None:
    target = ToyTarget(sharpness=1.5)
    lossless_rule = RULES[key].lossless
    check = compare_with_plain(
        ToyDraft(target),
        target,
        torch.tensor([[3]]),
        n=250 if lossless_rule else 800,
        max_new_tokens=3,
        block_size=3,
        params=SamplingParams(temperature=1.5, top_k=2, draft_temperature=0.4, rule=key, seed=1),
        level=FALSE_ALARM if lossless_rule else lossless.LEVEL,
    )
    assert check.classes == 8  # three tokens, two choices each
    assert check.differs == (not lossless_rule)


@pytest.mark.parametrize("key", ["speculative", "block"])
def test_whole_outputs_of_a_tiny_pair_against_plain_decoding(key: str) -> None:
    check = compare_with_plain(
        tiny_draft(),
        tiny_target("qwen3"),
        torch.tensor([[5, 6, 7]]),
        n=80,
        max_new_tokens=3,
        block_size=3,
        params=SamplingParams(temperature=1.5, top_k=2, rule=key, seed=1),
        level=FALSE_ALARM,
    )
    assert check.classes > 3 and not check.differs
