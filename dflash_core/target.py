"""What the loop needs of a target: forward passes over a cache, features tapped from its layers, embedding, head, roll-back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from .blocks import require
from .decoder import Decoder
from .fast_linear import FastLinear
from .kv_cache import KeyValueCache

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

PREFILL_CHUNK = 1024


class Target(Protocol):
    """A model that can score a block of tokens in one pass and forget the tail of it again.

    One that also has `batches = True` does it for R rows in one pass, R runs that are decoded together. Then new_cache takes
    the number of rows; its caches have `put(row, other, other_row=0)`, which makes a row a copy of one in another cache or
    the same; forward takes (R, n) for the first R rows of the cache; and roll_back takes the lengths of these rows.
    """

    vocab_size: int
    max_positions: int

    @property
    def device(self) -> torch.device: ...

    def new_cache(self) -> Any:
        """An empty cache for one run."""

    def forward(self, token_ids: Tensor, cache: Any, *, taps: Sequence[int], last_only: bool) -> tuple[Tensor, Tensor]:
        """Appends token_ids (1, n) to the cache.

        Returns logits (1, n, V), or (1, 1, V) of the last token if `last_only`; and features (1, n, k·D), the outputs of
        the k tapped layers side by side, of width 0 if nothing is tapped.
        """

    def roll_back(self, cache: Any, length: int) -> None:
        """Forgets everything after the first `length` tokens."""

    def cache_length(self, cache: Any) -> int:
        """Tokens in the cache."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """Rows of the embedding matrix, unscaled: (…) → (…, D)."""

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of final hidden states: (…, D) → (…, V)."""


class TransformersTarget:
    """A causal language model of the transformers library as a target. Batch size 1."""

    def __init__(self, model: PreTrainedModel) -> None:
        require_rollback(model)
        self.model = model
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.max_positions: int = getattr(config, "max_position_embeddings", None) or 2**31
        self.dtype: torch.dtype = model.dtype
        embedding = model.get_input_embeddings().weight
        assert isinstance(embedding, Tensor)
        self._embedding = embedding
        self._head = model.get_output_embeddings()
        # The cache's argument has a new name since transformers 5.2x, and the old one warns there.
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    def new_cache(self) -> DynamicCache:
        from transformers import DynamicCache  # who has a model has imported it already

        cache = DynamicCache(config=self.model.config)
        # Sliding-window layers drop old states at once unless told that a roll-back will come.
        cache.activate_past_recording()
        return cache

    def forward(self, token_ids: Tensor, cache: DynamicCache, *, taps: Sequence[int], last_only: bool) -> tuple[Tensor, Tensor]:
        features: list[Tensor] = []
        # A long prompt goes through in chunks, so that the memory of one pass stays bounded.
        for chunk in token_ids.split(PREFILL_CHUNK if last_only else token_ids.shape[1], dim=1):
            if features:
                self.roll_back(cache, cache.get_seq_length())  # lets sliding-window layers drop what they no longer need
            output = self.model(
                chunk,
                **{self._cache_argument: cache},
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
                output_hidden_states=bool(taps),
            )
            # Entry 0 is the embedding, so layer i is entry i + 1.
            tapped = [output.hidden_states[tap + 1] for tap in taps]
            features.append(torch.cat(tapped, dim=-1) if tapped else output.logits.new_empty((1, chunk.shape[1], 0)))
        return output.logits, torch.cat(features, dim=1)

    def roll_back(self, cache: DynamicCache, length: int) -> None:
        cache.crop(length - cache.get_seq_length())

    def cache_length(self, cache: DynamicCache) -> int:
        return int(cache.get_seq_length())

    def embed(self, token_ids: Tensor) -> Tensor:
        return torch.nn.functional.embedding(token_ids, self._embedding)

    def head(self, hidden: Tensor) -> Tensor:
        return self._head(hidden).to(self.device)  # spread over several devices, the head may be on another

    def head_of(self, token_ids: Tensor) -> Callable[[Tensor], Tensor]:
        """The head for these words alone: (…, D) → (…, W)."""
        bias = getattr(self._head, "bias", None)
        return _part_of_head(self._head.weight.to(self.device), None if bias is None else bias.to(self.device), token_ids)


class DecoderTarget:
    """A Llama or Qwen3 model as a target, through our own forward pass: the fast path. It takes the model's weights over."""

    batches = True

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self.decoder = Decoder(model)
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.max_positions: int = config.max_position_embeddings
        self.dtype: torch.dtype = self.decoder.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.decoder.embedding.device

    def new_cache(self, rows: int = 1) -> KeyValueCache:
        return self.decoder.new_cache(rows)

    def forward(self, token_ids: Tensor, cache: KeyValueCache, *, taps: Sequence[int], last_only: bool) -> tuple[Tensor, Tensor]:
        features: list[Tensor] = []
        for chunk in token_ids.split(PREFILL_CHUNK if last_only else token_ids.shape[1], dim=1):
            hidden, tapped = self.decoder.forward(chunk, cache, taps=taps)
            features.append(torch.cat(tapped, dim=-1) if tapped else hidden[..., :0])
        return self.decoder.head(hidden[:, -1:] if last_only else hidden), torch.cat(features, dim=1)

    def roll_back(self, cache: KeyValueCache, *lengths: int) -> None:
        cache.lengths[: len(lengths)] = lengths

    def cache_length(self, cache: KeyValueCache) -> int:
        return cache.length

    def embed(self, token_ids: Tensor) -> Tensor:
        return torch.nn.functional.embedding(token_ids, self.decoder.embedding)

    def head(self, hidden: Tensor) -> Tensor:
        return self.decoder.head(hidden)

    def head_of(self, token_ids: Tensor) -> Callable[[Tensor], Tensor]:
        """The head for these words alone: (…, D) → (…, W)."""
        head = self.decoder.head
        weight = head.weight.to_dense() if head.packed else head.weight
        return _part_of_head(weight, head.bias, token_ids)


def _part_of_head(weight: Tensor, bias: Tensor | None, token_ids: Tensor) -> FastLinear:
    return FastLinear(weight[token_ids], None if bias is None else bias[token_ids])


def as_target(target: Target | PreTrainedModel) -> Target:
    """A transformers model wrapped as a Target; a Target as it is."""
    return target if hasattr(target, "roll_back") else TransformersTarget(target)


def require_rollback(model: PreTrainedModel) -> None:
    """Refuses, with ValueError, a model whose state cannot be rolled back by cropping a key-value cache."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    unfit = sorted(kinds - {"full_attention", "sliding_attention"})
    recurrent = bool(getattr(model, "_is_stateful", False))
    require(
        not unfit and not recurrent,
        f"{config.model_type} cannot be a target: it has {', '.join(unfit) or 'recurrent'} layers, whose state cannot be "
        "rolled back after a rejection. Choose a target with full or sliding attention only, such as Qwen3 or Llama.",
    )
