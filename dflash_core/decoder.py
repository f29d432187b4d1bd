"""Our own forward pass of a Llama-like decoder: fewer and larger operations than the library's, over a cache written in place.

It is the same mathematics as `transformers`' Llama and Qwen3 (full attention), for R rows that may stand at different
positions. Query, key and value weights are one matrix, gate and up weights another; on the CPU those that gain by it are put
once into the order that oneDNN multiplies fastest.

Shapes: R rows, n tokens a row in this pass, S cache positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import attention, mask_for
from .blocks import require
from .fast_linear import FastLinear
from .kv_cache import FIRST_CAPACITY, KeyValueCache, Where

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Place(NamedTuple):
    """Where one pass stands.

    positions: (R, n), or (1, n) if they are the same of every row. where: the same in the cache.
    end: positions of the cache that are looked at. visible: (R or 1, n, end) of bool, which of them a token sees; None for all.
    """

    positions: Tensor
    where: Where
    end: int
    visible: Tensor | None


def supports(model: PreTrainedModel) -> bool:
    """Whether `Decoder` can run this model: Llama or Qwen3 with full attention, on one device, in one dtype."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    return (
        type(model).__name__ in ("LlamaForCausalLM", "Qwen3ForCausalLM")
        and kinds == {"full_attention"}
        and rope in ("default", "linear", "llama3", "yarn")  # the others change with the length
        and len({(p.device, p.dtype) for p in model.parameters()}) == 1
    )


class Decoder:
    """The layers of a Llama or Qwen3 model. Takes the model's weights over: the model must not be used afterwards."""

    def __init__(self, model: PreTrainedModel) -> None:
        require(supports(model), f"{type(model).__name__} has no fast path")
        config = model.config.get_text_config()
        inner: Any = model.model
        head: Any = model.get_output_embeddings()
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.groups: int = config.num_attention_heads // self.kv_heads
        self.rotary = inner.rotary_emb
        # Copies, small but for the embedding: a single tensor that is still part of it would keep the whole file in memory.
        self.embedding: Tensor = inner.embed_tokens.weight.detach().clone()
        self.epsilon: float = config.rms_norm_eps
        self.norm: Tensor = inner.norm.weight.detach().clone()
        self.layers: list[_Layer] = []
        for index in range(len(inner.layers)):
            self.layers.append(_Layer(inner.layers[index], self))
            inner.layers[index] = nn.Identity()  # frees its weights, so that memory never holds them twice
        tied = head.weight is inner.embed_tokens.weight
        self.head = FastLinear(self.embedding if tied else head.weight, head.bias)

    def new_cache(self, rows: int = 1, capacity: int = FIRST_CAPACITY) -> KeyValueCache:
        return KeyValueCache.empty(len(self.layers), rows, self.kv_heads, capacity, self.head_dim, like=self.embedding)

    def forward(self, token_ids: Tensor, cache: KeyValueCache, *, taps: Sequence[int] = ()) -> tuple[Tensor, list[Tensor]]:
        """Appends token_ids (R, n) to the first R rows of the cache.

        Returns the final hidden states (R, n, D), after the norm, and the outputs (R, n, D) of the tapped layers. As in
        `transformers`, the last layer's output is given after the norm.
        """
        rows, n = token_ids.shape
        starts, device = cache.lengths[:rows], token_ids.device
        end = max(starts) + n
        where: Where
        if len(set(starts)) == 1:
            where = slice(starts[0], end)
            positions = torch.arange(starts[0], end, device=device)[None]
        else:
            positions = torch.tensor(starts, device=device)[:, None] + torch.arange(n, device=device)
            where = (torch.arange(rows, device=device)[:, None].expand_as(positions), positions)
        is_seen = n == 1 and isinstance(where, slice)
        visible = None if is_seen else torch.arange(end, device=device) <= positions[..., None]
        found = self.run(token_ids, Place(positions, where, end, visible), cache, taps=taps)
        cache.lengths[:rows] = [start + n for start in starts]
        return found

    def run(
        self, token_ids: Tensor, place: Place, cache: KeyValueCache, *, taps: Sequence[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """What `forward` returns, of a pass at a given place. The cache's lengths are neither read nor changed."""
        hidden = F.embedding(token_ids, self.embedding)
        cos, sin = self.rotary(hidden, place.positions)
        half = self.head_dim // 2
        # rotate_half(x) is x rolled by half a head with its first half negated: the sign goes into the sine.
        sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        rotary = (cos[:, :, None], sin[:, :, None])
        mask = None if place.visible is None else mask_for(place.visible, self.groups, hidden.dtype)
        features = []
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, rotary, mask, cache, index, place.where, place.end)
            if index in taps and index < len(self.layers) - 1:
                features.append(hidden)
        hidden = _normed(hidden, self.epsilon) * self.norm
        if len(self.layers) - 1 in taps:
            features.append(hidden)
        return hidden, features


class _Layer:
    """One pre-norm layer, with its weights fused."""

    def __init__(self, layer: Any, decoder: Decoder) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.head_dim, self.kv_heads, self.groups, self.epsilon = (
            decoder.head_dim,
            decoder.kv_heads,
            decoder.groups,
            decoder.epsilon,
        )
        self.qkv = _fused(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = _fused(attention.o_proj)
        self.gate_up = _fused(mlp.gate_proj, mlp.up_proj)
        self.down = _fused(mlp.down_proj)
        self.activation = mlp.act_fn
        self.norm_in: Tensor = layer.input_layernorm.weight.detach().clone()
        self.norm_mid: Tensor = layer.post_attention_layernorm.weight.detach().clone()
        self.norm_qk: Tensor | None = None
        if hasattr(attention, "q_norm"):  # Qwen3: one weight for every query head, another for every key head
            q, k = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
            self.norm_qk = torch.cat([q.expand(self.kv_heads * self.groups, -1), k.expand(self.kv_heads, -1)])

    def __call__(
        self,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KeyValueCache,
        index: int,
        where: Where,
        end: int,
    ) -> Tensor:
        rows, n, _ = hidden.shape
        heads, rotated = self.kv_heads * self.groups, self.kv_heads * (self.groups + 1)
        qkv = self.qkv(_normed(hidden, self.epsilon) * self.norm_in).view(rows, n, -1, self.head_dim)
        qk = qkv[:, :, :rotated]
        if self.norm_qk is not None:
            qk = _normed(qk, self.epsilon) * self.norm_qk
        qk = torch.addcmul(qk * rotary[0], qk.roll(self.head_dim // 2, -1), rotary[1])
        key, value = cache.write(index, qk[:, :, heads:], qkv[:, :, rotated:], where, rows=rows, end=end)
        attended = attention(qk[:, :, :heads], key, value, mask)
        hidden = hidden + self.out(attended.reshape(rows, n, heads * self.head_dim))
        gate, up = self.gate_up(_normed(hidden, self.epsilon) * self.norm_mid).chunk(2, dim=-1)
        return hidden + self.down(self.activation(gate) * up)


def _normed(x: Tensor, epsilon: float) -> Tensor:
    """x over its root mean square: RMS norm without the weight, in fewer operations than torch's on the CPU."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return x * norm.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_().to(x.dtype)


def _fused(*linears: nn.Linear) -> FastLinear:
    """Several linears of one input as one, their outputs side by side."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias for linear in linears]
    return FastLinear(weight, None if biases[0] is None else torch.cat([bias.detach() for bias in biases]))
