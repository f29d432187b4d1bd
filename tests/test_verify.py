"""The rules against the mathematics: the emitted law is p, and acceptance is its closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash_core.lossless import chi_square_p_value
from dflash_core.sampling import Draws, draw, probabilities
from dflash_core.verify import RULES

from .conftest import FALSE_ALARM

N = 60_000
GAMMA = 2
V = 5

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.4},
    {"temperature": 2.0},
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 0.8, "top_k": 4, "top_p": 0.9},
    {"temperature": 1.0, "draft_temperature": 0.3},
    {"temperature": 0.6, "draft_temperature": 1.5},
    {"temperature": 1.0, "draft_temperature": 0.0},
    {"temperature": 0.0, "draft_temperature": 1.0},
]


def distributions(setting: dict[str, Any], seed: int = 1) -> tuple[Tensor, Tensor]:
    """p (1, γ + 1, V) and q (1, γ, V) from random logits."""
    options = dict(setting)
    draft_temperature = options.pop("draft_temperature", options["temperature"])
    generator = torch.Generator().manual_seed(seed)
    p = probabilities(1.5 * torch.randn(1, GAMMA + 1, V, generator=generator), **options)
    q = probabilities(1.5 * torch.randn(1, GAMMA, V, generator=generator), **{**options, "temperature": draft_temperature})
    return p, q


def random_draws(n: int, n_drafted: int, seed: int = 2) -> Draws:
    generator = torch.Generator().manual_seed(seed)
    shapes = (n, n_drafted + 1), (n, n_drafted), (n, n_drafted), (n, n_drafted + 1)
    target, draft, accept, residual = (torch.rand(shape, generator=generator) for shape in shapes)
    noise: dict[int, Tensor] = {}

    def race(vocab_size: int) -> Tensor:
        if vocab_size not in noise:
            noise[vocab_size] = torch.empty(n, n_drafted + 1, vocab_size, dtype=torch.float64).exponential_(generator=generator)
        return noise[vocab_size]

    return Draws(target, draft, accept, residual, race)


def sequences(key: str, p: Tensor, q: Tensor, n: int = N) -> tuple[Tensor, Tensor, Tensor]:
    """n verifications: the first γ + 1 output tokens (what a block leaves open drawn from p), n_accepted, drafted."""
    draws = random_draws(n, GAMMA)
    p, q = p.expand(n, -1, -1), q.expand(n, -1, -1)
    drafted = RULES[key].propose(q, draws)
    verdict = RULES[key].judge(p, q, drafted, draws)
    fresh = draw(p, torch.rand(n, GAMMA + 1, generator=torch.Generator().manual_seed(3)))
    position = torch.arange(GAMMA + 1)
    output = torch.where(position < verdict.n_accepted[:, None], torch.cat([drafted, fresh[:, -1:]], 1), fresh)
    output = torch.where(position == verdict.n_accepted[:, None], verdict.next_token[:, None], output)
    return output, verdict.n_accepted, drafted


LOSSLESS = [key for key, rule in RULES.items() if rule.lossless]


def joint_law(p: Tensor) -> np.ndarray:
    law = p[0, 0]
    for row in p[0, 1:]:
        law = (law[:, None] * row).flatten()
    return law.double().numpy()


def counts_of(output: Tensor) -> np.ndarray:
    code = sum(output[:, i] * V ** (output.shape[1] - 1 - i) for i in range(output.shape[1]))
    return np.bincount(code.numpy(), minlength=V ** output.shape[1])


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("key", LOSSLESS)
def test_emitted_tokens_follow_the_target(key: str, setting: dict[str, Any]) -> None:
    p, q = distributions(setting)
    output, _, _ = sequences(key, p, q)
    assert chi_square_p_value(counts_of(output), joint_law(p)) > FALSE_ALARM


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("key", [key for key, rule in RULES.items() if not rule.joint])
def test_measured_acceptance_is_the_closed_form(key: str, setting: dict[str, Any]) -> None:
    p, q = distributions(setting)
    _, n_accepted, _ = sequences(key, p, q)
    alpha = RULES[key].acceptance(p[0, :-1], q[0]).double().numpy().clip(0, 1)
    law = np.array([1 - alpha[0], alpha[0] * (1 - alpha[1]), alpha[0] * alpha[1]])
    assert chi_square_p_value(np.bincount(n_accepted.numpy(), minlength=3), law.clip(0)) > FALSE_ALARM


@pytest.mark.parametrize("key", [key for key, rule in RULES.items() if not rule.joint])
def test_acceptance_of_a_given_token(key: str) -> None:
    """accept_probs is the probability of keeping x given x: counted over the draws that proposed this x."""
    p, q = distributions({"temperature": 1.0})
    _, n_accepted, drafted = sequences(key, p, q)
    accept_probs = RULES[key].accept_probs(p.expand(N, -1, -1), q.expand(N, -1, -1), drafted)[:, 0]
    for token in drafted[:, 0].unique():
        mine = drafted[:, 0] == token
        expected = float(accept_probs[mine][0])
        kept = int((n_accepted[mine] >= 1).sum())
        law = np.array([expected, 1 - expected])
        assert chi_square_p_value(np.array([kept, int(mine.sum()) - kept]), law) > FALSE_ALARM


def test_the_test_catches_a_biased_rule() -> None:
    """Two classic faults: a greedy draft judged by the soft q, and `naive`, which redraws a rejected token from p."""
    p, q = distributions({"temperature": 1.0})
    draws = random_draws(N, GAMMA)
    p, q = p.expand(N, -1, -1), q.expand(N, -1, -1)
    greedy = RULES["greedy-match"].propose(q, draws)
    verdict = RULES["speculative"].judge(p, q, greedy, draws)
    first = torch.where(verdict.n_accepted > 0, greedy[:, 0], verdict.next_token)
    assert chi_square_p_value(np.bincount(first.numpy(), minlength=V), p[0, 0].double().numpy()) < FALSE_ALARM

    output, _, _ = sequences("naive", *distributions({"temperature": 1.0}))
    assert chi_square_p_value(counts_of(output), joint_law(p[:1])) < FALSE_ALARM


def test_orderings_of_the_closed_forms() -> None:
    """match ≤ speculative always; match ≤ greedy-match when both argmaxes agree (design: section 4)."""
    generator = torch.Generator().manual_seed(5)
    p = (2 * torch.randn(5000, 7, generator=generator)).softmax(-1)
    q = (2 * torch.randn(5000, 7, generator=generator)).softmax(-1)
    match, greedy, speculative = (RULES[key].acceptance(p, q) for key in ("match", "greedy-match", "speculative"))
    assert bool((match <= speculative + 1e-6).all())
    agree = p.argmax(-1) == q.argmax(-1)
    assert bool((match[agree] <= greedy[agree] + 1e-6).all())
    assert bool((greedy > speculative + 1e-3).any()) and bool((speculative > greedy + 1e-3).any())


@pytest.mark.parametrize("key", RULES)
def test_identical_and_disjoint_distributions(key: str) -> None:
    draws = random_draws(500, GAMMA)
    same = torch.full((500, GAMMA + 1, V), 1 / V)
    verdict = RULES[key].judge(same, same[:, :-1], RULES[key].propose(same[:, :-1], draws), draws)
    if key not in ("match", "greedy-match"):
        assert bool((verdict.n_accepted == GAMMA).all())
    left = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]).expand(500, GAMMA + 1, V)
    right = torch.tensor([0.0, 0.0, 0.2, 0.3, 0.5]).expand(500, GAMMA, V)
    verdict = RULES[key].judge(left, right, RULES[key].propose(right, draws), draws)
    assert bool((verdict.n_accepted == 0).all()) and bool((verdict.next_token < 2).all())
    assert bool((RULES[key].accept_probs(left, right, RULES[key].propose(right, draws)) == 0).all())


def test_residual_that_vanishes_draws_from_p() -> None:
    """p < q by rounding only, and still rejected: the residual sums to 0, and the draw must come from p."""
    p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    draws = random_draws(1, 1)
    draws = replace(draws, accept=torch.full_like(draws.accept, 0.999), residual=torch.full_like(draws.residual, 0.999))
    verdict = RULES["speculative"].judge(p, torch.tensor([[[0.26, 0.75]]]), torch.tensor([[0]]), draws)
    assert int(verdict.n_accepted) == 0 and int(verdict.next_token) == 1


def test_coupled_acceptance_against_the_sum_as_it_is_written() -> None:
    generator = torch.Generator().manual_seed(8)
    p, q = (probabilities(3 * torch.randn(200, 9, generator=generator), temperature=1.0, top_k=6) for _ in range(2))
    for p_row, q_row, value in zip(p.double(), q.double(), RULES["coupled"].acceptance(p, q), strict=True):
        total = 0.0
        for p_i, q_i in zip(p_row, q_row, strict=True):
            if p_i > 0 and q_i > 0:
                total += 1 / float(torch.maximum(p_row / p_i, q_row / q_i).sum())
        assert float(value) == pytest.approx(total, abs=1e-6)
    overlap = RULES["speculative"].acceptance(p, q)
    tv = 1 - overlap
    coupled = RULES["coupled"].acceptance(p, q)
    assert bool((coupled <= overlap + 1e-6).all()) and bool((coupled >= (1 - tv) / (1 + tv) - 1e-6).all())


def expected_accepted(key: str, p: Tensor, q: Tensor) -> float:
    """E[A] by enumerating every drafted block: exact. p (γ + 1, V), q (γ, V), the same at each position whatever came before."""
    gamma, vocab = q.shape
    blocks = torch.cartesian_prod(*[torch.arange(vocab)] * gamma).reshape(-1, gamma)
    n = len(blocks)
    accept = RULES[key].accept_probs(p.expand(n, -1, -1), q.expand(n, -1, -1), blocks).double()
    weight = q.double().gather(1, blocks.T).prod(0)
    return float((weight * accept.cumprod(1).sum(1)).sum())


def test_block_is_never_below_speculative_in_expected_accepted_length() -> None:
    """1,000 random small cases, exact by enumeration (Sun et al. 2024, theorem 2)."""
    generator = torch.Generator().manual_seed(4)
    gains = []
    for _ in range(1000):
        gamma, vocab = (int(torch.randint(2, 4, (1,), generator=generator)) for _ in range(2))
        p = (2 * torch.randn(gamma + 1, vocab, generator=generator)).softmax(-1)
        q = (2 * torch.randn(gamma, vocab, generator=generator)).softmax(-1)
        gains.append(expected_accepted("block", p, q) - expected_accepted("speculative", p, q))
    assert min(gains) > -1e-6
    assert sum(gain > 1e-3 for gain in gains) > 300


def test_measured_block_acceptance_is_the_enumerated_one() -> None:
    for setting in SETTINGS[:3]:
        p, q = distributions(setting)
        _, n_accepted, _ = sequences("block", p, q)
        mean = float(n_accepted.double().mean())
        spread = float(n_accepted.double().std()) / N**0.5
        assert abs(mean - expected_accepted("block", p[0], q[0])) < 6.5 * spread + 1e-6  # 6.5 σ: below 1e-10
