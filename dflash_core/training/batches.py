"""What one step of training is made from: blocks at random anchors of some conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .data import Shards


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """C conversations with A anchors each, and block size B.

    features: (C, L, k·D). anchors, anchor_ids: (C, A), positions and tokens of the anchors.
    labels: (C, A, B − 1), the tokens that follow, and target_hidden (C, A, B − 1, D), the target's final states that predict
    them. known: (C, A, B − 1), False past the end of the conversation.
    """

    features: Tensor
    anchors: Tensor
    anchor_ids: Tensor
    labels: Tensor
    target_hidden: Tensor
    known: Tensor


def make_batch(
    shards: Shards, indices: Sequence[int], taps: Sequence[int], block_size: int, n_anchors: int, generator: torch.Generator
) -> Batch:
    """Blocks at random anchors: from the first token of a response to the last but one of the conversation."""
    chosen = [shards.taps.index(tap) for tap in taps]
    conversations = [shards[i] for i in indices]
    lengths = torch.tensor([len(c.token_ids) for c in conversations])
    longest, size = int(lengths.max()), conversations[0].states.shape[-1]
    ids = torch.zeros(len(indices), longest + block_size, dtype=torch.long)
    features = torch.zeros(len(indices), longest, len(taps), size, dtype=torch.bfloat16)
    final = torch.zeros(len(indices), longest + block_size, size, dtype=torch.bfloat16)
    anchors = torch.empty(len(indices), n_anchors, dtype=torch.long)
    for i, c in enumerate(conversations):
        length = len(c.token_ids)
        ids[i, :length] = c.token_ids
        features[i, :length] = c.states[:, chosen]
        final[i, :length] = c.states[:, -1]
        anchors[i] = c.prompt_length + (torch.rand(n_anchors, generator=generator) * (length - 1 - c.prompt_length)).long()
    guessed = anchors[..., None] + torch.arange(1, block_size)  # (C, A, B − 1)
    row = torch.arange(len(indices))[:, None, None]
    return Batch(
        features.flatten(2),
        anchors,
        ids.gather(1, anchors),
        ids[row, guessed],
        final[row, guessed - 1],
        guessed < lengths[:, None, None],
    )
