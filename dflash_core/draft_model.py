"""DFlashDraftModel: the block-diffusion draft, compatible with the published (v1) checkpoints.

The draft is a small Qwen3-like stack without embedding or head: both are the target's. Its queries are the block
(anchor + masks); its keys and values are [context | block], the context being the target's tapped hidden states of
every committed position. The mathematics is that of DFlash (arXiv 2602.06036) and its package `dflash` 0.1.0.

Shapes: R rows (runs decoded together), n new context positions of a row, B block size, D hidden size, k taps, V vocabulary,
S positions of the longest row. Long, because the model and its checkpoint format belong together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

from .attention import attention, mask_for
from .blocks import require
from .kv_cache import FIRST_CAPACITY, KeyValueCache, Where

Rotary = tuple[Tensor, Tensor]  # cos and sin, each (1, positions, head_dim)
RowMap = Callable[[Tensor], Tensor]

_DFLASH2_TENSORS = ("attention_conv", "mlp_conv", "candidate_selector")
_IS_DFLASH2 = " is a DFlash 2 draft, which is not supported: take a v1 draft, of architecture DFlashDraftModel"


class Place(NamedTuple):
    """Where one pass stands: N = Σ n + R · B positions, the rows' new context side by side and then their blocks.

    rotary: of all N positions. where: in the cache, for all of them. end: of the longest row, its block included.
    blocks: (R, B), the blocks' positions.
    """

    rotary: Rotary
    where: Where
    end: int
    blocks: Tensor


class DraftAttention(nn.Module):
    """Attention of the block over [context | block], with grouped keys and values."""

    def __init__(self, config: Qwen3Config, layer_index: int) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.head_dim = config.head_dim
        hidden_size, bias, epsilon = config.hidden_size, config.attention_bias, config.rms_norm_eps
        query_size = config.num_attention_heads * self.head_dim
        key_size = (config.num_key_value_heads or config.num_attention_heads) * self.head_dim
        self.q_proj = nn.Linear(hidden_size, query_size, bias=bias)
        self.k_proj = nn.Linear(hidden_size, key_size, bias=bias)
        self.v_proj = nn.Linear(hidden_size, key_size, bias=bias)
        self.o_proj = nn.Linear(query_size, hidden_size, bias=bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, epsilon)
        self.k_norm = Qwen3RMSNorm(self.head_dim, epsilon)
        is_sliding = _layer_types(config)[layer_index] == "sliding_attention"
        self.window = config.sliding_window if is_sliding else None
        self.is_causal = bool(_setting(config, "is_causal", is_sliding))

    def forward(self, hidden: Tensor, context: Tensor, place: Place, cache: KeyValueCache) -> Tensor:
        rows, size = place.blocks.shape
        # Projected together: fewer, larger products. A block's keys and values are written behind the context of its row, so
        # that attention reads one slice, and the next pass overwrites them.
        inputs = torch.cat([context, hidden.reshape(1, rows * size, -1)], dim=1)
        query = _rotate(self.q_norm(self._heads(self.q_proj(inputs[:, context.shape[1] :]))), place.rotary)
        key = _rotate(self.k_norm(self._heads(self.k_proj(inputs))), place.rotary)
        value = self._heads(self.v_proj(inputs))
        key, value = cache.write(self.layer_index, key, value, place.where, rows=rows, end=place.end)
        query = query.view(rows, size, -1, self.head_dim)
        visible = self._visible(place)
        mask = None if visible is None else mask_for(visible, query.shape[2] // key.shape[1], query.dtype)
        return self.o_proj(attention(query, key, value, mask).flatten(2))

    def _heads(self, inputs: Tensor) -> Tensor:
        """(1, N, heads · head_dim) → (1, N, heads, head_dim)"""
        return inputs.unflatten(-1, (-1, self.head_dim))

    def _visible(self, place: Place) -> Tensor | None:
        """Which positions of its row each block position sees, (R, B, S) of bool; None if that is everything there is."""
        if isinstance(place.where, slice) and not self.is_causal and self.window is None:
            return None
        positions = torch.arange(place.end, device=place.blocks.device)
        distance = place.blocks[..., None] - positions  # > 0: the key lies before the query
        visible = distance >= 0 if self.is_causal else (positions <= place.blocks[:, -1:, None]).expand_as(distance)
        return visible if self.window is None else visible & (distance.abs() < self.window)


class DraftLayer(nn.Module):
    """One pre-norm layer: attention over [context | block], then the MLP on the block."""

    def __init__(self, config: Qwen3Config, layer_index: int) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config, layer_index)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, context: Tensor, place: Place, cache: KeyValueCache) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), context, place, cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class DFlashDraftModel(PreTrainedModel):
    """The draft. Built from a config, or read from a checkpoint with `from_pretrained`.

    block_size: what it was trained for, anchor included; other sizes work, larger ones draft poorly.
    mask_token_id: the target's token that stands for "to be drafted".
    target_layer_ids: the taps, target layers whose outputs side by side are the target features.
    draft_token_ids: the words that it may be narrowed to, empty for all. An addition of ours to the published format.
    Raises ValueError for a config that describes no DFlash v1 draft.
    """

    config_class = Qwen3Config
    _no_split_modules = ["DraftLayer"]  # noqa: RUF012
    _supports_sdpa = True
    batches = True  # takes several rows in one pass

    def __init__(self, config: Qwen3Config) -> None:
        _check_config(config, "this config")
        super().__init__(config)
        self.block_size = int(_setting(config, "block_size", 16))
        self.mask_token_id = int(_setting(config, "mask_token_id"))
        self.target_layer_ids = _taps(config)
        self.input_embedding_scale = float(_setting(config, "input_embedding_scale", 1.0))
        self.output_multiplier = float(_setting(config, "output_multiplier", 1.0))
        self.final_logit_softcapping = float(_setting(config, "final_logit_softcapping", 0.0))  # 0: none
        self.draft_token_ids = [int(token) for token in _setting(config, "draft_token_ids", [])]
        self._words: tuple[Tensor, RowMap] | None = None

        self.layers = nn.ModuleList([DraftLayer(config, i) for i in range(config.num_hidden_layers)])
        self.fc = nn.Linear(len(self.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.post_init()

    def new_cache(self, rows: int = 1) -> KeyValueCache:
        """An empty cache for the context of one run, or of several, a row each. Never shared: only context is kept in it."""
        config = self.config
        kv_heads = config.num_key_value_heads or config.num_attention_heads
        return KeyValueCache.empty(len(self.layers), rows, kv_heads, FIRST_CAPACITY, config.head_dim, like=self.norm.weight)

    def narrow(self, token_ids: Tensor, head: RowMap) -> None:
        """Draft these words only: the head over the whole vocabulary costs more than the layers.

        It stays lossless under every rule, since q is what is drawn from: 0 for all other words.
        token_ids: (W,), distinct. head: final hidden states → the target's logits (…, W) of these words.
        """
        self._words = token_ids, head

    def forward(
        self, *, target_features: Tensor, noise_embedding: Tensor, cache: KeyValueCache, n_new: Sequence[int] | None = None
    ) -> Tensor:
        """Hidden states (R, B, D) of one block for each of the first R rows of the cache.

        target_features: (1, Σ n, k·D), kept as context behind what each row has; those of the rows side by side.
        noise_embedding: (R, B, D), the blocks, which follow the context of their rows and are not kept.
        n_new: how many of the features belong to each row; may be left out for one row.
        """
        n_new = n_new or [target_features.shape[1]]
        hidden = self.run(target_features, noise_embedding, self._place(cache.lengths, n_new, noise_embedding), cache)
        for row, n in enumerate(n_new):
            cache.lengths[row] += n
        return hidden

    def run(self, target_features: Tensor, noise_embedding: Tensor, place: Place, cache: KeyValueCache) -> Tensor:
        """What `forward` returns, of a pass at a given place. The cache's lengths are neither read nor changed."""
        hidden, context = noise_embedding, self.hidden_norm(self.fc(target_features))
        for layer in self.layers:
            hidden = layer(hidden, context, place, cache)
        return self.norm(hidden)

    def _place(self, lengths: Sequence[int], n_new: Sequence[int], hidden: Tensor) -> Place:
        rows, size, _ = hidden.shape
        device = hidden.device
        starts = [length + n for length, n in zip(lengths, n_new, strict=False)]  # of the blocks
        where: Where
        if rows == 1:
            where = slice(lengths[0], starts[0] + size)
            positions = torch.arange(lengths[0], starts[0] + size, device=device)
        else:
            context = [(row, starts[row] - n + i) for row, n in enumerate(n_new) for i in range(n)]
            blocks = [(row, start + i) for row, start in enumerate(starts) for i in range(size)]
            row, positions = torch.tensor(context + blocks, device=device).T
            where = (row[None], positions[None])
        rotary = self.rotary_emb(hidden, positions[None])
        return Place(rotary, where, max(starts) + size, positions[-rows * size :].view(rows, size))

    @torch.no_grad()
    def propose(
        self,
        cache: KeyValueCache,
        target_features: Tensor,
        anchor: Tensor,
        block_size: int,
        embed: RowMap,
        head: RowMap,
        *,
        n_new: Sequence[int] | None = None,
    ) -> Tensor:
        """Draft one block for each row: logits (R, B - 1, V) of the positions after the anchors, in one pass.

        cache: of R rows or more, of which the first R are used; each grows by its part of target_features.
        target_features: (1, Σ n, k·D), of what was committed since the last call (at first the prompt), anchor excluded.
        anchor: (R, 1), the last known tokens.
        block_size: B ≥ 1, anchor included; may differ from the trained one.
        embed, head: the target's. ids → rows of its embedding matrix, unscaled; hidden states → logits.
        n_new: how many of the features belong to each row; may be left out for one row.
        Raises ValueError if block_size < 1 or the features do not have the shape that the draft's taps need.
        """
        require(block_size >= 1, f"block_size counts the anchor and must be at least 1, not {block_size}")
        n_features = len(self.target_layer_ids) * self.config.hidden_size
        require(
            target_features.ndim == 3 and target_features.shape[::2] == (1, n_features),
            f"target_features must have shape (1, n, {n_features}), not {tuple(target_features.shape)}: "
            f"layers {self.target_layer_ids} of a target of hidden size {self.config.hidden_size}, side by side",
        )
        features = target_features.to(self.dtype)
        return self.logits(
            anchor, block_size, embed, head,
            lambda noise: self(target_features=features, noise_embedding=noise, cache=cache, n_new=n_new),
        )  # fmt: skip

    def logits(self, anchor: Tensor, block_size: int, embed: RowMap, head: RowMap, layers: RowMap) -> Tensor:
        """What `propose` returns, the layers being given as a function from the embedded blocks to their hidden states."""
        ids = torch.full((len(anchor), block_size), self.mask_token_id, device=anchor.device)
        ids[:, :1] = anchor
        embedding = embed(ids)
        hidden = layers(embedding.to(self.dtype) * self.input_embedding_scale)
        drafted = hidden[:, 1:].to(embedding.dtype)
        logits = (self._words[1] if self._words else head)(drafted) * self.output_multiplier
        cap = self.final_logit_softcapping
        logits = torch.tanh(logits / cap) * cap if cap > 0 else logits
        if self._words is None:
            return logits
        everywhere = logits.new_full((*logits.shape[:-1], self.config.vocab_size), float("-inf"))
        everywhere[..., self._words[0]] = logits
        return everywhere

    def spec_generate(
        self,
        target: Any,
        input_ids: Tensor,
        max_new_tokens: int,
        stop_token_ids: Collection[int] | None,
        temperature: float = 0.0,
        **options: Any,
    ) -> Tensor:
        """Token ids (1, prompt + new). Options are those of `dflash_generate`, which also gives the blocks."""
        from .generate import dflash_generate  # here, so that the model can be used without the loop

        options |= {"max_new_tokens": max_new_tokens, "stop_token_ids": stop_token_ids, "temperature": temperature}
        generation = dflash_generate(self, target, input_ids, **options)
        return torch.cat([input_ids, input_ids.new_tensor([generation.token_ids])], dim=1)

    @classmethod
    def from_pretrained(
        cls, path_or_hub_id: str | os.PathLike[str], *, dtype: str | torch.dtype = "auto", **kwargs: Any
    ) -> DFlashDraftModel:
        """Read a published checkpoint (safetensors only), in eval mode. No weight is ever left at random.

        dtype: "auto" keeps the checkpoint's own.
        kwargs: transformers' (device_map, revision, token, cache_dir, …). trust_remote_code is accepted, because the
        published examples pass it, and ignored: no remote code is run.
        Raises ValueError if there is no checkpoint, it is no DFlash v1 draft, or its tensors do not fit its config.
        """
        kwargs.pop("trust_remote_code", None)
        name = os.fspath(path_or_hub_id)
        try:
            fields, _ = PreTrainedConfig.get_config_dict(name, **kwargs)
            require(bool(fields), f"{name} has no config.json: it is not a DFlash draft")
            _check_config(fields, name)
            if "sliding_attention" in (fields.get("layer_types") or ()) and fields.get("sliding_window"):
                fields["use_sliding_window"] = True  # without it Qwen3Config drops the window these layers need
            # Tensors of another shape are passed over here, to be reported below with the missing and unexpected ones.
            kwargs |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
            loaded: Any = super().from_pretrained(name, config=Qwen3Config.from_dict(fields), dtype=dtype, **kwargs)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{name} has no readable config.json and safetensors weights: {error}") from error
        model, info = loaded
        _check_tensors(model, info, name)
        return model


def _rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    """Rotary position embedding of heads (1, n, heads, head_dim), for the last of the positions that `rotary` covers."""
    cos, sin = (part[:, -heads.shape[1] :, None] for part in rotary)
    return heads * cos + rotate_half(heads) * sin


def _setting(config: Qwen3Config | dict[str, Any], name: str, default: Any = None) -> Any:
    """A DFlash setting: inside dflash_config or at the top level. null counts as absent."""
    fields = config if isinstance(config, dict) else vars(config)
    found = (source.get(name) for source in (fields.get("dflash_config") or {}, fields))
    return next((value for value in found if value is not None), default)


def _layer_types(config: Qwen3Config) -> list[str]:
    types = config.layer_types or ["full_attention"] * config.num_hidden_layers
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    require(not unknown, f"layer_types has {unknown}, but a draft has full_attention and sliding_attention layers only")
    has_window = config.sliding_window is not None or "sliding_attention" not in types
    require(has_window, "sliding_attention layers need sliding_window in the config, with use_sliding_window true")
    return types


def _taps(config: Qwen3Config) -> list[int]:
    """Indices of the tapped target layers; by default one a draft layer, evenly from the 2nd to the 3rd last."""
    taps = _setting(config, "target_layer_ids")
    if taps is not None:
        return [int(tap) for tap in taps]
    n_target, n_taps = _setting(config, "num_target_layers"), config.num_hidden_layers
    require(n_target is not None, "the config needs target_layer_ids, or num_target_layers to derive them from")
    return [round(1 + i * (n_target - 4) / (n_taps - 1)) for i in range(n_taps)] if n_taps > 1 else [n_target // 2]


def _check_config(config: Qwen3Config | dict[str, Any], name: str) -> None:
    architectures = _setting(config, "architectures", [])
    is_dflash2 = any(_setting(config, key) is not None for key in ("conv_kernel_size", "selector_rank"))
    require(not is_dflash2 and not any("DFlash2" in each for each in architectures), name + _IS_DFLASH2)
    require(
        _setting(config, "mask_token_id") is not None,
        f"{name} is not a DFlash draft: its config (architectures {architectures}) has no mask_token_id. "
        'A draft\'s config.json has "dflash_config": {"mask_token_id": …, "target_layer_ids": […]}',
    )
    words, vocabulary = _setting(config, "draft_token_ids", []), _setting(config, "vocab_size", 0)
    require(
        len({*words}) == len(words) and all(0 <= word < vocabulary for word in words),
        f"the draft_token_ids of {name} must be different tokens of its vocabulary of {vocabulary}",
    )


def _check_tensors(model: DFlashDraftModel, info: dict[str, Any], name: str) -> None:
    require(not any(part in key for key in info["unexpected_keys"] for part in _DFLASH2_TENSORS), name + _IS_DFLASH2)
    reshaped = [f"{key} {tuple(found)} instead of {tuple(right)}" for key, found, right in info["mismatched_keys"]]
    faults = {"missing": info["missing_keys"], "unexpected": info["unexpected_keys"], "of a wrong shape": reshaped}
    listed = "; ".join(f"{len(keys)} {fault}: {', '.join(sorted(keys)[:3])}" for fault, keys in faults.items() if keys)
    layer = "self_attn.{q,k,v,o}_proj, self_attn.{q,k}_norm, mlp.{gate,up,down}_proj, {input,post_attention}_layernorm"
    require(
        not listed,
        f"the tensors of {name} do not fit its config.json ({listed}). A fitting checkpoint has "
        f"{len(model.state_dict())}: fc {tuple(model.fc.weight.shape)}, hidden_norm, norm, and in each of "
        f"{len(model.layers)} layers {layer}",
    )
