"""The toy pair: a chain whose draft is exactly what it says, behind the interfaces of the loop."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from dflash_core import dflash_generate
from dflash_core.metrics import run_stats
from dflash_core.toy import EMOJI_HALVES, WORDS, ToyDraft, ToyTarget, toy_tokenizer

STOP = WORDS.index("<stop>")
FIRST, SECOND = (WORDS.index(half) for half in EMOJI_HALVES)


def propose(draft: ToyDraft, target: ToyTarget, anchor: int, block_size: int) -> torch.Tensor:
    cache = draft.new_cache()
    features = torch.zeros(1, 3, 1)
    return draft.propose(cache, features, torch.tensor([[anchor]]), block_size, target.embed, target.head)


def test_words_are_distinct_and_the_tokenizer_has_their_ids() -> None:
    tokenizer = toy_tokenizer()
    assert len(set(WORDS)) == len(WORDS) == len(tokenizer) == ToyTarget().vocab_size
    assert tokenizer.convert_tokens_to_ids(WORDS) == list(range(len(WORDS)))
    assert (tokenizer.unk_token_id, tokenizer.eos_token_id) == (0, STOP)


def test_tokenizer_reads_and_writes_words() -> None:
    tokenizer = toy_tokenizer()
    ids = tokenizer("the cat saw a bird.").input_ids
    assert [WORDS[i] for i in ids] == ["Ġthe", "Ġcat", "Ġsaw", "Ġa", "Ġbird", "."]
    assert tokenizer.decode(ids) == " the cat saw a bird."
    assert tokenizer("xylophone").input_ids == [tokenizer.unk_token_id]


def test_the_emoji_takes_both_its_tokens() -> None:
    tokenizer = toy_tokenizer()
    assert tokenizer.decode([FIRST, SECOND]) == " 🌍"
    assert "�" in tokenizer.decode([FIRST]) and "�" in tokenizer.decode([SECOND])


def test_target_scores_the_last_token_only_and_forgets_on_roll_back() -> None:
    target = ToyTarget()
    cache = target.new_cache()
    logits, features = target.forward(torch.tensor([[4, 7, 9]]), cache, taps=[0], last_only=False)
    assert logits.shape == (1, 3, target.vocab_size) and features.shape == (1, 3, 1)
    assert torch.equal(logits[0, 2], target.logits[9])
    target.roll_back(cache, 1)
    assert target.cache_length(cache) == 1 and cache.rows == [[4]]
    last, _ = target.forward(torch.tensor([[7, 9]]), cache, taps=[], last_only=True)
    assert torch.equal(last, logits[:, -1:]) and target.cache_length(cache) == 3


def test_one_seed_one_chain() -> None:
    assert torch.equal(ToyTarget(3).logits, ToyTarget(3).logits)
    assert not torch.equal(ToyTarget(3).logits, ToyTarget(4).logits)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.5])
def test_draft_is_the_exact_marginal_mixed_with_noise(noise: float) -> None:
    target = ToyTarget(sharpness=1.0)
    probs = propose(ToyDraft(target, noise), target, 11, 5)[0].double().softmax(-1)
    step = target.logits.double().softmax(-1)
    for k in range(4):
        exact = torch.linalg.matrix_power(step, k + 1)[11]
        assert torch.allclose(probs[k], (1 - noise) * exact + noise / target.vocab_size, atol=1e-6)


def test_a_draft_without_noise_is_the_target_at_the_first_position() -> None:
    """So under `speculative` at temperature 1 the first drafted token is always accepted, and later ones ever less often."""
    target = ToyTarget()
    generation = dflash_generate(
        ToyDraft(target, noise=0.0), target, torch.tensor([[4]]), max_new_tokens=600, temperature=1.0, rule="speculative", seed=1
    )
    positions = run_stats(generation.blocks, 8).positions
    assert positions[0].rate == 1.0
    survival = [p.survival for p in positions if p.survival is not None]
    assert survival == sorted(survival, reverse=True) and 0 < survival[3] < 0.9


def test_stop_and_unknown_do_not_come_up_and_the_emoji_stays_whole() -> None:
    target = ToyTarget()
    seen = set()
    for seed in range(20):
        tokens = dflash_generate(
            ToyDraft(target), target, torch.tensor([[4]]), max_new_tokens=100, temperature=1.0, seed=seed
        ).token_ids
        seen |= set(tokens)
        assert all((a == FIRST) == (b == SECOND) for a, b in pairwise(tokens))
    assert not seen & {0, STOP} and len(seen) > 20 and FIRST in seen


def test_rows_are_distributions() -> None:
    target = ToyTarget()
    logits = propose(ToyDraft(target), target, 5, 8)
    assert logits.shape == (1, 7, target.vocab_size)
    assert torch.allclose(logits.double().exp().sum(-1), torch.ones(1, 7, dtype=torch.float64), atol=1e-5)
    assert math.isfinite(float(logits.min()))
