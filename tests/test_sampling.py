"""From logits to tokens: the seed's `sample`, filters, extremes, and position-keyed randomness."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_core.lossless import chi_square_p_value
from dflash_core.sampling import STRETCH, Randomness, draw, entropy, probabilities, sample

from .conftest import FALSE_ALARM

CPU = torch.device("cpu")


def test_probabilities_are_softmax_of_logits_over_temperature() -> None:
    logits = torch.randn(3, 4, 11)
    for temperature in (0.3, 1.0, 2.0):
        torch.testing.assert_close(
            probabilities(logits, temperature=temperature), (logits / temperature).softmax(-1), atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 9.9e-6])
def test_below_the_threshold_everything_is_greedy(temperature: float) -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, -torch.inf]])
    assert probabilities(logits, temperature=temperature).tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert sample(logits, temperature).tolist() == [1]


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_extreme_temperatures_stay_distributions(temperature: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[60000.0, -60000.0, 59000.0, -torch.inf], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float32)
    probs = probabilities(logits.clamp(-6e4, 6e4).to(dtype), temperature=temperature)
    assert probs.dtype == torch.float32
    assert bool(probs.isfinite().all())
    torch.testing.assert_close(probs.sum(-1), torch.ones(2))


def test_a_forbidden_token_stays_forbidden() -> None:
    logits = torch.tensor([[1.0, -torch.inf, 0.0]])
    for temperature in (1e-4, 1.0, 100.0):
        assert float(probabilities(logits, temperature=temperature)[0, 1]) == 0.0


def test_top_k_and_top_p() -> None:
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    assert probabilities(logits, temperature=1.0, top_k=2).tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert probabilities(logits, temperature=1.0, top_k=9).tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert probabilities(logits, temperature=1.0, top_p=0.65).tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert probabilities(logits, temperature=1.0, top_p=1e-9).tolist() == [1, 0, 0, 0]
    assert probabilities(logits, temperature=1.0, top_k=3, top_p=0.5).tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_top_p_of_a_large_vocabulary_is_that_of_the_sorted_one(scale: float) -> None:
    """Flat rows need more words than are looked at first, peaked ones fewer; both may stand in one block."""
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)) * torch.tensor([[scale], [1.0], [6.0]])
    for top_p in (0.3, 0.9, 0.999):
        found = probabilities(logits, temperature=1.0, top_p=top_p)
        for row, p in zip(found, logits.softmax(-1), strict=True):
            ordered = p.sort(descending=True).values
            n_kept = int((ordered.cumsum(-1) - ordered < top_p).sum())
            assert int((row > 0).sum()) == n_kept
            assert (row[row > 0].min() >= ordered[n_kept - 1] - 1e-9) and row.sum() == pytest.approx(1)
            torch.testing.assert_close(row[row > 0], p[row > 0] / p[row > 0].sum())


def test_a_draw_is_the_first_token_whose_cumulated_weight_exceeds_the_uniform() -> None:
    """Also across the stretches that it is made in, for vocabularies that do not divide into them."""
    for size in (1, 2, STRETCH - 1, STRETCH, STRETCH + 1, 1000):
        weights = torch.randint(0, 4, (40, size), generator=torch.Generator().manual_seed(size)).float()
        weights[:, -1] += weights.sum(-1) == 0
        uniforms = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        expected = ((weights.double().cumsum(-1)) <= uniforms[:, None] * weights.double().sum(-1, keepdim=True)).sum(-1)
        assert draw(weights, uniforms).equal(expected)


def test_draws_follow_the_weights() -> None:
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 6.0, 0.0])
    n = 100_000
    ids = draw(weights.expand(n, -1), torch.rand(n, generator=torch.Generator().manual_seed(0)))
    counts = np.bincount(ids.numpy(), minlength=6)
    assert chi_square_p_value(counts, (weights / 10).double().numpy()) > FALSE_ALARM


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-24])
def test_a_draw_never_returns_a_token_without_weight(uniform: float) -> None:
    weights = torch.tensor([[0.0, 1e-30, 0.7, 0.3000001, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0], [0.1, 0.1, 0.1, 0.1, 0.0]])
    ids = draw(weights, torch.full((3,), uniform))
    assert bool((weights.gather(1, ids[:, None]) > 0).all())


def test_sample_uses_the_global_random_state() -> None:
    logits = torch.randn(2, 50, 31)
    torch.manual_seed(7)
    first = sample(logits, 1.0)
    torch.manual_seed(7)
    assert first.shape == (2, 50) and torch.equal(first, sample(logits, 1.0))


def test_uniforms_belong_to_positions_not_to_calls() -> None:
    long, short = Randomness(5, CPU).draws(10, 7), Randomness(5, CPU).draws(13, 2)
    for name in ("target", "draft", "accept", "residual"):
        a, b = getattr(long, name), getattr(short, name)
        assert torch.equal(a[:, 3 : 3 + b.shape[1]], b)
    assert not torch.equal(long.target, Randomness(6, CPU).draws(10, 7).target)


def test_streams_are_uniform_and_independent() -> None:
    draws = Randomness(2**62 + 11, CPU).draws(0, 20_000)
    columns = [stream[0, :20_000].numpy() for stream in (draws.target, draws.draft, draws.accept, draws.residual)]
    for column in columns:
        assert column.min() >= 0 and column.max() < 1
        counts = np.bincount((column * 50).astype(int), minlength=50)
        assert chi_square_p_value(counts, np.full(50, 1 / 50)) > FALSE_ALARM
    columns.append(np.roll(columns[0], 1))
    for i, a in enumerate(columns):
        for b in columns[:i]:
            cells = (a * 8).astype(int) * 8 + (b * 8).astype(int)
            assert chi_square_p_value(np.bincount(cells, minlength=64), np.full(64, 1 / 64)) > FALSE_ALARM


def test_entropy_in_nats() -> None:
    assert entropy(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).tolist() == pytest.approx([np.log(2), 0.0])
