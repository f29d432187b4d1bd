"""Attention of grouped heads under a mask, in the form that the device has fast kernels for.

torch's kernels for the GPU take either a mask or several query heads for one key head, not both; what takes both there repeats
keys and values in float32. So the query heads of a group go as further queries of one head, which is the same sum.

Shapes: R rows, n queries, S keys; heads = kv_heads · groups, those of a group side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

TAKES_GROUPS = {"cpu"}  # types of devices whose kernels take a mask and grouped heads at once


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """query (R, n, heads, head_dim), key and value (R, kv_heads, S, head_dim) → (R, n, heads, head_dim).

    mask: from `mask_for`, or None if every query sees every key.
    """
    if query.device.type in TAKES_GROUPS:
        return F.scaled_dot_product_attention(query.transpose(1, 2), key, value, mask, enable_gqa=True).transpose(1, 2)
    groups = query.shape[2] // key.shape[1]
    folded = query.unflatten(2, (-1, groups)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # (R, kv_heads, groups · n, head_dim)
    attended = F.scaled_dot_product_attention(folded, key, value, mask)
    return attended.unflatten(2, (groups, -1)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def mask_for(visible: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """The additive mask, 0 or −inf, for `attention`: visible (R or 1, n, S) of bool → (R or 1, 1, n or groups · n, S)."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
    return (mask if visible.device.type in TAKES_GROUPS else mask.repeat(1, groups, 1))[:, None]
