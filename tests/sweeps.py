"""Small sweeps for tests, and what the toy chain's τ is exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dflash_core.sampling import probabilities
from dflash_core.sweep.plan import Prompt, SweepPlan
from dflash_core.toy import ToyDraft, ToyTarget

PROMPTS = tuple(
    Prompt(f"prompt {i}", text, "even" if i % 2 == 0 else "odd", chat=False)
    for i, text in enumerate(["the cat saw", "a dog heard the", "the old fox", "then", "under the hill", "a bird sang and"])
)


def plan(**changes: Any) -> SweepPlan:
    """Two temperatures, two block sizes, two rules, three prompts: toy runs of 12 tokens."""
    values: dict[str, Any] = {
        "prompts": PROMPTS[:3],
        "temperatures": (0.0, 0.8),
        "block_sizes": (2, 5),
        "rules": ("match", "speculative"),
        "max_new_tokens": 12,
    }
    return SweepPlan(**values | changes)


def timeless(path: Path) -> list[dict[str, Any]]:
    """The lines of a runs.jsonl without their measured times."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        for block in line["blocks"]:
            block["seconds"] = None
    return lines


class ToyLaw:
    """The exact law of the toy pair's blocks under one rule, temperature and block size.

    The chain forgets everything but its last token, so what a block does depends on its anchor only.
    first: (V, V), the prefill's token after each last token of a prompt. blocks: (V, B, V), for each anchor the probability of
    1, 2, … B tokens with each last one.
    """

    def __init__(self, rule: str, temperature: float, block_size: int) -> None:
        target = ToyTarget()
        draft = ToyDraft(target)
        size = target.vocab_size
        p = probabilities(target.logits, temperature=temperature).double()
        nothing = torch.zeros(1, 1, 1)
        drafted = [
            draft.propose(draft.new_cache(), nothing, torch.tensor([[anchor]]), block_size, target.embed, target.head)[0]
            for anchor in range(size)
        ]
        q = probabilities(torch.stack(drafted), temperature=temperature).double()  # (anchor, γ, V)
        reached = torch.eye(size, dtype=torch.float64)  # (anchor, last token kept): the probability of having kept all so far
        laws = []
        for i in range(block_size - 1):
            q_i = q[:, i]
            if rule == "match":  # y ~ p equals x ~ q, or replaces it
                kept, replaced = q_i * (reached @ p), (1 - q_i) * (reached @ p)
            else:  # speculative: min(p, q) is kept, (p − q)₊ replaces; (anchor, last token, next)
                by_target, by_draft = reached[:, :, None] * p, reached[:, :, None] * q_i[:, None]
                kept, replaced = torch.minimum(by_target, by_draft).sum(1), (by_target - by_draft).clamp(min=0).sum(1)
            laws.append(replaced)
            reached = kept
        self.first = p.numpy()
        self.blocks = torch.stack([*laws, reached @ p], dim=1).numpy()

    def tau(self, starts: Sequence[int], max_new_tokens: int) -> float:
        """E[tokens] / E[blocks] of runs to the cap, over prompts that end with each of `starts` equally often."""
        left = max_new_tokens - 1  # the prefill gives the first
        expected = [np.zeros(len(self.first))]  # blocks from each anchor, by the number of tokens left
        for n in range(1, left + 1):
            goes_on = range(1, min(n, self.blocks.shape[1] + 1))
            expected.append(sum((self.blocks[:, k - 1] @ expected[n - k] for k in goes_on), start=np.ones(len(self.first))))
        return left / float(self.first[list(starts)].mean(0) @ expected[left])

    def lengths(self, start: int, max_new_tokens: int, random: np.random.Generator) -> list[int]:
        """The lengths of the blocks of one run, drawn from the law, the last one cut at the cap."""
        size = len(self.first)
        anchor = random.choice(size, p=self.first[start] / self.first[start].sum())
        left, lengths = max_new_tokens - 1, []
        while left > 0:
            cumulated = self._cumulated[anchor]
            length, anchor = divmod(int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right")), size)
            lengths.append(min(length + 1, left))
            left -= lengths[-1]
        return lengths

    @cached_property
    def _cumulated(self) -> np.ndarray[Any, Any]:
        return self.blocks.reshape(len(self.first), -1).cumsum(1)
