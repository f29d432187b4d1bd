"""Passes of fixed shapes over a cache of fixed capacity: what a CUDA graph can record once and replay at other positions.

The same layers as in the ordinary passes. But where the pass stands is read from tensors on the device, never from numbers of
the host, and attention always goes over the same number of cache positions, those not valid being masked.

Shapes: one row, n tokens, `end` cache positions looked at, B block size, D hidden size, k taps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import decoder, draft_model
from .draft_model import DFlashDraftModel, RowMap
from .kv_cache import KeyValueCache
from .target import DecoderTarget


def verify(
    target: DecoderTarget, cache: KeyValueCache, end: int, taps: Sequence[int], token_ids: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits (1, n, V) and features (1, n, k·D) of token_ids (1, n), as `DecoderTarget.forward` gives them.

    start: (1,), tokens in the cache. end: at least start + n, at most the cache's capacity.
    """
    positions = start[:, None] + torch.arange(token_ids.shape[1], device=token_ids.device)
    visible = torch.arange(end, device=token_ids.device) <= positions[..., None]
    place = decoder.Place(positions, (torch.zeros_like(positions), positions), end, visible)
    hidden, tapped = target.decoder.run(token_ids, place, cache, taps=taps)
    return target.head(hidden), torch.cat(tapped, dim=-1) if tapped else hidden[..., :0]


def propose(
    draft: DFlashDraftModel,
    cache: KeyValueCache,
    end: int,
    embed: RowMap,
    head: RowMap,
    features: Tensor,
    n_new: Tensor,
    anchor: Tensor,
    start: Tensor,
) -> tuple[Tensor]:
    """Logits (1, B − 1, V), as `DFlashDraftModel.propose` gives them.

    features: (1, B, k·D), of which the first n_new are the new context: a block commits B tokens at most.
    n_new: (1,), 1 or more. anchor: (1, 1). start: (1,), positions of context in the cache before.
    end: at least start + n_new + B, at most the cache's capacity.
    """
    block_size = features.shape[1]
    order = torch.arange(block_size, device=features.device)
    # Past the new context its last position comes again: the same keys and values are written once more to the same place.
    new = torch.minimum(order, n_new - 1)
    blocks = start + n_new + order
    positions = torch.cat([start + new, blocks])[None]

    def layers(noise: Tensor) -> Tensor:
        where = torch.zeros_like(positions), positions
        place = draft_model.Place(draft.rotary_emb(noise, positions), where, end, blocks[None])
        return draft.run(features[:, new].to(draft.dtype), noise, place, cache)

    return (draft.logits(anchor, block_size, embed, head, layers),)
