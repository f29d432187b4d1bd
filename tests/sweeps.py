"""Small sweeps for tests, and what the toy chain's τ is exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def exact_tau(rule: str, temperature: float, block_size: int, starts: Sequence[int], max_new_tokens: int) -> float:
    """E[tokens] / E[blocks] of the toy pair, over prompts that end with each of `starts` equally often, cut blocks included.

    The chain forgets everything but its last token, so the law of a block, its number of tokens and its last one, depends on
    the anchor only; the expected number of blocks to the cap follows from it.
    """
    target = ToyTarget()
    p = probabilities(target.logits, temperature=temperature).double()
    embed, head = target.embed, target.head
    rows = []
    for anchor in range(target.vocab_size):
        logits = ToyDraft(target).propose(
            ToyDraft(target).new_cache(), torch.zeros(1, 1, 1), torch.tensor([[anchor]]), block_size, embed, head
        )
        rows.append(probabilities(logits[0], temperature=temperature).double())
    q = torch.stack(rows)  # (anchor, γ, V)
    eye = torch.eye(target.vocab_size, dtype=torch.float64)
    reached = eye  # (anchor, last accepted token): probability of getting there
    laws = []  # (anchor, last token) for 1, 2, … B tokens
    for i in range(block_size - 1):
        q_i = q[:, i]
        if rule == "match":
            accepted = q_i * (reached @ p)
            replaced = (reached @ p) * (1 - q_i)
        else:  # speculative; anchor × last token × next token
            pair = p[None] * reached[:, :, None]
            drafted = reached[:, :, None] * q_i[:, None]
            accepted = torch.minimum(pair, drafted).sum(1)
            replaced = (pair - drafted).clamp(min=0).sum(1)
        laws.append(replaced)
        reached = accepted
    laws.append(reached @ p)
    left = max_new_tokens - 1  # the prefill gives the first
    blocks = [torch.zeros(target.vocab_size, dtype=torch.float64)]  # by tokens left: expected blocks from each anchor
    for n in range(1, left + 1):
        blocks.append(1 + sum((law @ blocks[n - k] for k, law in enumerate(laws, start=1) if k < n), start=0 * blocks[0]))
    first = p[list(starts)].mean(0)
    return left / float(first @ blocks[left])
