"""Texts that must be the same are, and where they part, rounding is told from a fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_core.blocks import Generation
from dflash_core.generate import dflash_generate
from dflash_core.same_text import first_difference, same_text
from dflash_core.target import TransformersTarget
from dflash_core.toy import ToyCache, ToyDraft, ToyTarget
from dflash_core.verify import RULES

from .conftest import tiny_draft, tiny_target

SAME_TEXT = [key for key, rule in RULES.items() if rule.same_text]


def generation(target: Any, block_size: int, *, rule: str = "match", temperature: float = 0.7, **options: Any) -> Generation:
    draft = ToyDraft(target) if isinstance(target, ToyTarget) else tiny_draft()
    given: dict[str, Any] = {"max_new_tokens": 30, "seed": 4, "rule": rule, "temperature": temperature} | options
    return dflash_generate(draft, target, torch.tensor([[5, 6, 7]]), block_size=block_size, **given)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("key", SAME_TEXT)
def test_same_text_for_every_block_size(key: str, temperature: float) -> None:
    target = tiny_target("llama")
    plain = generation(target, 1, rule=key, temperature=temperature)
    for block_size in (2, 5, 8):
        run = generation(target, block_size, rule=key, temperature=temperature)
        assert same_text(plain, run) and first_difference(plain, run, target) is None


class RoundingTarget(ToyTarget):
    """Two tokens all but tie after token 9, where greedy decoding goes; a pass over several tokens rounds differently."""

    def __init__(self, gap: float, logit: float | None = None) -> None:
        super().__init__()
        self.logits[:, 9] = 15.0
        self.logits[9] = 0.0
        self.logits[9, 20], self.logits[9, 21] = 8.0, 8.0 - gap / 2 if logit is None else logit
        self.gap = gap

    def forward(self, token_ids: Tensor, cache: ToyCache, *, taps: Sequence[int], last_only: bool) -> tuple[Tensor, Tensor]:
        logits, features = super().forward(token_ids, cache, taps=taps, last_only=last_only)
        if token_ids.shape[1] > 1 and not last_only:
            logits = logits.clone()
            logits[..., 21] += self.gap
        return logits, features


def test_a_flip_by_rounding_is_called_rounding_and_a_wide_one_a_fault() -> None:
    for gap, rounding in ((1e-4, True), (0.5, False)):
        target = RoundingTarget(gap)
        found = first_difference(generation(target, 1, temperature=0.0), generation(target, 4, temperature=0.0), target)
        assert found is not None and found.rounding is rounding
        assert (found.index, found.position, found.token_a, found.token_b) == (1, 4, 20, 21)
        assert found.margin_a == pytest.approx(gap / 2, rel=0.02) and found.margin_b == pytest.approx(-gap / 2, rel=0.02)
        assert found.logit_gap == pytest.approx(gap, rel=0.02)


def test_a_draw_on_a_border_is_rounding_too() -> None:
    """Above temperature 0 the margin may be wide: what counts is where the random number falls, found here by bisection."""
    low, high = 0.0, 16.0
    for _ in range(50):
        logit = (low + high) / 2
        drawn = generation(RoundingTarget(0.0, logit), 1).token_ids[1]
        low, high = (logit, high) if drawn == 20 else (low, logit)
    for gap, rounding in ((1e-4, True), (0.5, False)):
        target = RoundingTarget(gap, low - gap / 2)
        found = first_difference(generation(target, 1), generation(target, 4), target)
        assert found is not None and found.rounding is rounding and (found.token_a, found.token_b) == (20, 21)
        assert found.margin_a is not None and abs(found.margin_a) > 0.1  # a thousand times the gap


def test_planted_faults_are_faults() -> None:
    target = tiny_target("llama")
    plain = generation(target, 1)

    class Forgetful(TransformersTarget):
        """Leaves a rejected token in the cache."""

        def roll_back(self, cache: Any, length: int) -> None:
            super().roll_back(cache, min(length + 1, self.cache_length(cache)))

    faulty = Forgetful(target)
    run = generation(faulty, 4)
    for judge in (target, faulty):
        found = first_difference(plain, run, judge)
        assert found is not None and not found.rounding

    blocks = list(plain.blocks)
    blocks[9] = dataclasses.replace(blocks[9], emitted=((blocks[9].emitted[0] + 1) % 97,))
    found = first_difference(plain, dataclasses.replace(plain, blocks=tuple(blocks)), target)
    assert found is not None and not found.rounding and found.index == 9 and found.logit_gap == 0.0


def test_a_text_that_ends_early() -> None:
    target = ToyTarget()
    long, short = generation(target, 1), generation(target, 1, max_new_tokens=12)
    found = first_difference(short, long, target)
    assert found is not None and (found.index, found.token_a, found.rounding) == (12, None, False)
    assert found.token_b == long.token_ids[12]


def test_runs_that_need_not_agree_are_refused() -> None:
    target = ToyTarget()
    run = generation(target, 4)
    for other, said in (
        (generation(target, 4, seed=5), "seed"),
        (generation(target, 4, temperature=0.8), "temperature"),
        (generation(target, 4, rule="speculative"), "draw in different ways"),
        (dataclasses.replace(run, prompt_ids=(1,)), "prompt"),
    ):
        with pytest.raises(ValueError, match=said):
            same_text(run, other)
    greedy = [generation(target, 4, temperature=0.0, rule=key) for key in ("match", "naive", "coupled")]
    assert all(same_text(greedy[0], other) for other in greedy)
