"""A new draft whose layers begin as copies of the target's upper layers: it learns several times faster than one from noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config

from ..blocks import require
from ..draft_model import DFlashDraftModel


@torch.no_grad()
def new_draft(
    target: Any, token_ids: Tensor, *, taps: Sequence[int], n_layers: int, block_size: int, mask_token_id: int
) -> DFlashDraftModel:
    """A float32 draft of the target's shape, in the published format.

    token_ids: (1, L), some text, on which the scale of the target's queries and keys is measured: the draft has norms there.
    """
    config = target.config.get_text_config()
    require(len({*taps}) == len(taps) >= 1, f"the taps must be different layers, not {list(taps)}")
    require(
        1 <= n_layers <= config.num_hidden_layers,
        f"the draft may have 1 to {config.num_hidden_layers} layers, the target's own, not {n_layers}",
    )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    draft_config = Qwen3Config(
        architectures=["DFlashDraftModel"],
        attention_bias=False,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=n_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=head_dim,
        hidden_act=config.hidden_act,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=1e-6,
        rope_parameters=dict(config.rope_parameters),
        tie_word_embeddings=False,
        vocab_size=config.vocab_size,
        layer_types=["full_attention"] * n_layers,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        num_target_layers=config.num_hidden_layers,
        block_size=block_size,
        dflash_config={"mask_token_id": mask_token_id, "target_layer_ids": list(taps)},
    )
    draft = DFlashDraftModel(draft_config).float()
    sources = list(target.model.layers)[-n_layers:]
    layers: Any = draft.layers
    scales = _query_key_scales(target, sources, token_ids, head_dim)
    for layer, source, (query_scale, key_scale) in zip(layers, sources, scales, strict=True):
        state = {name: value for name, value in source.state_dict().items() if not name.endswith(".bias")}
        layer.load_state_dict(state, strict=False)
        if "self_attn.q_norm.weight" not in state:
            layer.self_attn.q_norm.weight.copy_(query_scale)
            layer.self_attn.k_norm.weight.copy_(key_scale)
    # The context begins as what the first copied layer saw: the last tap, in that layer's own norm.
    size = config.hidden_size
    draft.fc.weight.zero_()
    draft.fc.weight[:, -size:] = torch.eye(size)
    draft.hidden_norm.weight.copy_(sources[0].input_layernorm.weight)
    draft.norm.weight.copy_(target.model.norm.weight)
    return draft


def _query_key_scales(target: Any, layers: Sequence[Any], token_ids: Tensor, head_dim: int) -> list[tuple[Tensor, Tensor]]:
    """Root mean square of the query and of the key in each layer, as norm weights (head_dim,) each."""
    found: dict[Any, Tensor] = {}

    def note(module: Any, _: object, output: Tensor) -> None:
        found[module] = output.float().square().mean().sqrt().expand(head_dim)

    linears = [(layer.self_attn.q_proj, layer.self_attn.k_proj) for layer in layers]
    handles = [linear.register_forward_hook(note) for pair in linears for linear in pair]
    target(token_ids)
    for handle in handles:
        handle.remove()
    return [(found[q], found[k]) for q, k in linears]
