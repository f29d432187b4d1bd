"""The draft's pass over many blocks of many conversations at once, for training. Decoding does the same one block at a time.

A block sees the context before its anchor and itself, nothing else: not its anchor's own features, nothing later, no other
block. Shapes: C conversations, L positions, A anchors a conversation, B block size, D hidden size, k taps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import rotate_half

from ..draft_model import DFlashDraftModel, DraftAttention

Rotary = tuple[Tensor, Tensor]


def block_hidden(draft: DFlashDraftModel, features: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
    """Final hidden states (C, A, B, D) of the blocks.

    features: (C, L, k·D), the tapped target states at every position. blocks: (C, A, B, D), embeddings of anchor and masks.
    anchors: (C, A), the anchors' positions, each below L.
    """
    length, size, device = features.shape[1], blocks.shape[2], blocks.device
    context = _norm(draft.hidden_norm, draft.fc(features))
    positions = (anchors[..., None] + torch.arange(size, device=device)).flatten(1)  # (C, A · B)
    context_positions = torch.arange(length, device=device).expand(len(anchors), -1)
    rotary = draft.rotary_emb(blocks, torch.cat([context_positions, positions], dim=1))
    hidden = blocks.flatten(1, 2)
    layers: Any = draft.layers
    biases: dict[tuple[bool, int | None], list[Tensor]] = {}
    for layer in layers:
        kind = layer.self_attn.is_causal, layer.self_attn.window
        if kind not in biases:
            biases[kind] = [_bias(mask, context.dtype) for mask in visible(anchors, length, size, *kind)]
        hidden = hidden + _attend(layer.self_attn, _norm(layer.input_layernorm, hidden), context, rotary, *biases[kind])
        hidden = hidden + layer.mlp(_norm(layer.post_attention_layernorm, hidden))
    return _norm(draft.norm, hidden).view_as(blocks)


def visible(anchors: Tensor, length: int, size: int, is_causal: bool = False, window: int | None = None) -> tuple[Tensor, Tensor]:
    """Which context positions each block position sees, (C, A · B, L), and which of its own block, (B, B), as bool."""
    context, inside = torch.arange(length, device=anchors.device), torch.arange(size, device=anchors.device)
    to_context = (context < anchors[..., None]).repeat_interleave(size, dim=1)
    gap = inside[:, None] - inside  # > 0: the key lies before the query
    to_block = gap >= 0 if is_causal else torch.ones_like(gap, dtype=torch.bool)
    if window is not None:
        queries = (anchors[..., None] + inside).flatten(1)
        to_context = to_context & (queries[..., None] - context < window)
        to_block = to_block & (gap.abs() < window)
    return to_context, to_block


def _attend(
    attention: DraftAttention, blocks: Tensor, context: Tensor, rotary: Rotary, context_bias: Tensor, own_bias: Tensor
) -> Tensor:
    """(C, A · B, D) from blocks (C, A · B, D), context (C, L, D), rotary of [context | blocks] and biases of `visible`."""

    def heads(rows: Tensor) -> Tensor:
        """(C, rows, heads · head_dim) → (C, heads, rows, head_dim)"""
        return rows.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    def rotated(rows: Tensor) -> Tensor:
        cos, sin = (part[:, None, -rows.shape[2] :].to(rows.dtype) for part in rotary)
        return rows * cos + rotate_half(rows) * sin

    length, n_queries, size = context.shape[1], blocks.shape[1], len(own_bias)
    rows = torch.cat([context, blocks], dim=1)
    query = rotated(_norm(attention.q_norm, heads(attention.q_proj(blocks)))) * attention.head_dim**-0.5
    key = rotated(_norm(attention.k_norm, heads(attention.k_proj(rows))))
    value = heads(attention.v_proj(rows))
    # Written out: its backward pass is twice as fast on the CPU as that of torch's fused attention with a mask. K heads of keys
    # with G query heads each; all of a context at once, a block's own positions block by block.
    query = query.unflatten(1, (key.shape[1], -1))  # (C, K, G, A · B, d)
    parts = length, n_queries
    (key, own_key), (value, own_value) = key.split(parts, dim=2), value.split(parts, dim=2)
    own_key, own_value = (_regrouped(each[:, :, None], size) for each in (own_key, own_value))  # (C, K, A, B, d)
    to_context = (query.flatten(2, 3) @ key.transpose(2, 3)).view(*query.shape[:-1], length) + context_bias[:, None, None]
    to_own = _regrouped(_regrouped(query, size) @ own_key.transpose(3, 4), size) + own_bias.repeat(n_queries // size, 1)
    weights = torch.cat([to_context, to_own], dim=-1).softmax(-1)  # (C, K, G, A · B, L + B)
    of_context, of_own = weights.split((length, size), dim=-1)
    attended = (of_context.flatten(2, 3) @ value).view_as(query) + _regrouped(_regrouped(of_own, size) @ own_value, size)
    return attention.o_proj(attended.flatten(1, 2).transpose(1, 2).flatten(2))


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 where the mask is True, else −∞."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def _regrouped(rows: Tensor, size: int) -> Tensor:
    """(C, K, X, Y · B, d) → (C, K, Y, X · B, d): from head by head to block by block, and back."""
    return rows.unflatten(3, (-1, size)).transpose(2, 3).flatten(3, 4)


class _RmsNorm(torch.autograd.Function):
    """x / rms(x) · weight with its gradient, in few passes over memory: a third of the time of the library's in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = norm.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_().to(x.dtype)
        unit = x * scale
        ctx.save_for_backward(unit, weight, scale)
        return unit * weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        unit, weight, scale = ctx.saved_tensors
        weight_grad = (grads[0] * unit).flatten(0, -2).sum(0, dtype=torch.float32)
        unit_grad = grads[0] * weight.to(unit.dtype)
        along = torch.linalg.vecdot(unit_grad, unit)[..., None] / unit.shape[-1]
        return (unit_grad - unit * along) * scale, weight_grad.to(weight.dtype), None


def _norm(module: Any, x: Tensor) -> Tensor:
    """What the library's RMS norm module computes."""
    normed: Tensor = _RmsNorm.apply(x, module.weight, module.variance_epsilon)
    return normed
