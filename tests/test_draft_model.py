"""The draft: equal to the published package's, strict about checkpoints, and its cache."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel, Qwen3Config

from dflash_core.draft_model import DFlashDraftModel

try:
    from dflash.model import DFlashDraftModel as ReferenceDraft
except ImportError:
    if os.environ.get("CI"):
        raise
    ReferenceDraft = None

needs_reference = pytest.mark.skipif(
    ReferenceDraft is None,
    reason="dflash is not installed, nothing to compare with: pip install --no-deps -r requirements-reference.txt",
)

EMBEDDED_DRAFT = Path(__file__).parents[1] / "assets" / "draft"
MASK, VOCAB, HIDDEN = 3, 50, 32
TOLERANCE = 1e-5
# New context positions of each block: the prompt, then 1 to 9. Soon far more than the windows hold.
CONTEXT_STEPS = (20, 1, 9, 3, 2, 8, 1, 4, 7, 3)
SLIDING = {"use_sliding_window": True, "sliding_window": 12}


def draft_config(**changes: Any) -> Qwen3Config:
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "rope_theta": 10_000.0,
        "num_target_layers": 9,
        "block_size": 8,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 6]},
    }
    return Qwen3Config(**{**fields, **changes})


def make_draft(**changes: Any) -> DFlashDraftModel:
    torch.manual_seed(5)
    draft = DFlashDraftModel(draft_config(**changes)).eval()
    with torch.no_grad():  # norms start at 1 and biases at 0: confusing two of them would not show
        for parameter in draft.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return draft


def make_target_parts() -> tuple[nn.Embedding, nn.Linear]:
    torch.manual_seed(6)
    return nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)


def make_features(draft: DFlashDraftModel, n: int) -> Tensor:
    return torch.randn(1, n, draft.fc.in_features)


@torch.no_grad()
def assert_equals_reference(ours: DFlashDraftModel, reference: Any, block_sizes: tuple[int, ...]) -> None:
    """Runs both over CONTEXT_STEPS as the package's own loop does, comparing the logits of every block."""
    torch.manual_seed(7)
    hidden_size = ours.config.hidden_size
    embed, head = nn.Embedding(VOCAB, hidden_size), nn.Linear(hidden_size, VOCAB, bias=False)
    scale = ours.input_embedding_scale
    cache = ours.new_cache()
    reference_cache = DynamicCache(config=reference.config)
    reference_cache.activate_past_recording()
    start = 0
    for n_new, block_size in zip(CONTEXT_STEPS, cycle(block_sizes), strict=False):
        features = make_features(ours, n_new)
        anchor = torch.randint(VOCAB, (1, 1))
        block = torch.cat([anchor, torch.full((1, block_size - 1), ours.mask_token_id)], dim=1)
        expected_hidden = reference(
            target_hidden=features,
            noise_embedding=embed(block) * scale,
            position_ids=torch.arange(start, start + n_new + block_size)[None],
            past_key_values=reference_cache,
            use_cache=True,
        )
        start += n_new
        reference_cache.crop(-block_size)
        logits = ours.propose(cache, features, anchor, block_size, embed, head)
        assert cache.length == start
        assert logits.shape == (1, block_size - 1, VOCAB)
        expected = reference.compute_logits(expected_hidden[:, 1:], head)
        largest = max((abs(value) for value in expected.flatten().tolist()), default=0.0)
        torch.testing.assert_close(logits, expected, atol=TOLERANCE * max(1.0, largest), rtol=0)


@needs_reference
@pytest.mark.parametrize("block_sizes", [(1, 2, 3), (8,), (16, 4, 9)], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="full"),
        pytest.param({"is_causal": True}, id="full-causal"),
        pytest.param({**SLIDING, "layer_types": ["sliding_attention"] * 2}, id="sliding"),
        pytest.param({**SLIDING, "layer_types": ["sliding_attention"] * 2, "is_causal": False}, id="sliding-two-sided"),
        pytest.param({**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}, id="mixed"),
        pytest.param({**SLIDING, "max_window_layers": 1}, id="sliding-from-max-window-layers"),
        pytest.param({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, id="window-inside-block"),
        pytest.param({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, id="rope"),
        pytest.param(
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 1000.0,
                    "original_max_position_embeddings": 128,
                }
            },
            id="yarn",
        ),
        pytest.param({"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [4]}}, id="one-tap"),
        pytest.param({"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3, 7]}}, id="three-taps"),
        pytest.param({"dflash_config": {"mask_token_id": MASK}, "num_hidden_layers": 3}, id="default-taps"),
        pytest.param({"num_key_value_heads": 1}, id="one-kv-head"),
        pytest.param({"num_key_value_heads": 4}, id="no-grouping"),
        pytest.param({"head_dim": 16}, id="wide-heads"),
        pytest.param({"attention_bias": True}, id="bias"),
        pytest.param(
            {
                "dflash_config": {
                    "mask_token_id": MASK,
                    "target_layer_ids": [1, 6],
                    "block_size": 4,
                    "input_embedding_scale": 5.6,
                    "output_multiplier": 0.5,
                    "final_logit_softcapping": 1.5,
                }
            },
            id="scales-in-dflash-config",
        ),
        pytest.param(
            {"input_embedding_scale": 0.2, "output_multiplier": 3.0, "final_logit_softcapping": 2.0}, id="scales-on-top"
        ),
    ],
)
def test_equals_the_published_package(changes: dict[str, Any], block_sizes: tuple[int, ...]) -> None:
    ours = make_draft(**changes)
    reference = ReferenceDraft(draft_config(**changes)).eval()
    reference.load_state_dict(ours.state_dict(), strict=True)
    assert ours.block_size == reference.block_size
    assert ours.mask_token_id == reference.mask_token_id
    assert ours.target_layer_ids == reference.target_layer_ids
    assert_equals_reference(ours, reference, block_sizes)


@needs_reference
def test_the_embedded_draft_equals_the_published_package() -> None:
    ours = DFlashDraftModel.from_pretrained(EMBEDDED_DRAFT, dtype=torch.float32)
    reference = ReferenceDraft.from_pretrained(EMBEDDED_DRAFT, dtype=torch.float32).eval()
    assert not ours.training
    assert_equals_reference(ours, reference, (ours.block_size, 1, 16))


@torch.no_grad()
def test_each_variant_matters() -> None:
    """Guards the comparison above: a setting that changed nothing would be compared in vain."""
    variants: list[dict[str, Any]] = [
        {},
        {"is_causal": True},
        {**SLIDING, "max_window_layers": 0},
        {**SLIDING, "max_window_layers": 0, "is_causal": False},
        {**SLIDING, "max_window_layers": 1},
        {"rope_theta": 500.0},
        {"input_embedding_scale": 0.2},
        {"output_multiplier": 3.0},
        {"final_logit_softcapping": 2.0},
    ]
    embed, head = make_target_parts()
    results = []
    for changes in variants:
        draft = make_draft(**changes)
        torch.manual_seed(1)
        features = make_features(draft, 20)
        results.append(draft.propose(draft.new_cache(), features, torch.tensor([[4]]), 8, embed, head))
    for i, one in enumerate(results):
        for other in results[:i]:
            assert (one - other).abs().max() > 0.01


def test_tensor_names_are_the_published_ones() -> None:
    layer = [f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]
    layer += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    expected = {f"layers.{i}.{name}.weight" for i in range(2) for name in layer}
    assert set(make_draft().state_dict()) == expected | {"fc.weight", "hidden_norm.weight", "norm.weight"}


@pytest.mark.parametrize(
    ("n_target_layers", "n_layers", "taps"),
    [(36, 5, [1, 9, 17, 25, 33]), (30, 3, [1, 14, 27]), (30, 1, [15]), (32, 2, [1, 29])],
)
def test_default_taps(n_target_layers: int, n_layers: int, taps: list[int]) -> None:
    draft = make_draft(num_target_layers=n_target_layers, num_hidden_layers=n_layers, dflash_config={"mask_token_id": MASK})
    assert draft.target_layer_ids == taps


def test_block_size_defaults_to_16_and_may_stand_in_dflash_config() -> None:
    assert make_draft(block_size=None).block_size == 16
    assert make_draft(dflash_config={"mask_token_id": MASK, "block_size": 10}).block_size == 10


# The cache


@torch.no_grad()
def test_blocks_never_enter_the_cache() -> None:
    draft = make_draft()
    embed, head = make_target_parts()
    context = make_features(draft, 12)
    last = torch.tensor([[9]])
    expected = draft.propose(draft.new_cache(), context, last, 6, embed, head)

    cache = draft.new_cache()
    for position, (n_new, block_size) in enumerate([(5, 16), (1, 2), (0, 8), (4, 16)]):
        start = cache.length
        draft.propose(cache, context[:, start : start + n_new], torch.tensor([[position]]), block_size, embed, head)
        assert cache.length == start + n_new
    result = draft.propose(cache, context[:, cache.length :], last, 6, embed, head)
    assert cache.length == 12
    torch.testing.assert_close(result, expected, atol=TOLERANCE, rtol=TOLERANCE)


@torch.no_grad()
def test_two_caches_do_not_touch() -> None:
    draft = make_draft()
    embed, head = make_target_parts()
    anchor = torch.tensor([[9]])
    features = make_features(draft, 6)
    alone = draft.new_cache()
    expected = [draft.propose(alone, part, anchor, 4, embed, head) for part in features.split(3, dim=1)]

    one, other = draft.new_cache(), draft.new_cache()
    for part, logits in zip(features.split(3, dim=1), expected, strict=True):
        assert torch.equal(draft.propose(one, part, anchor, 4, embed, head), logits)
        draft.propose(other, torch.randn_like(part)[:, :2], anchor, 8, embed, head)
    assert (one.length, other.length) == (6, 4)


@torch.no_grad()
def test_a_draft_without_context_works() -> None:
    draft = make_draft()
    cache = draft.new_cache()
    logits = draft.propose(cache, make_features(draft, 0), torch.tensor([[1]]), 4, *make_target_parts())
    assert logits.isfinite().all()
    assert cache.length == 0


@pytest.mark.parametrize(
    ("shape", "block_size", "message"),
    [
        ((1, 3, 2 * HIDDEN), 0, "at least 1, not 0"),
        ((1, 3, HIDDEN), 4, r"must have shape \(1, n, 64\), not \(1, 3, 32\): layers \[1, 6\]"),
        ((2, 3, 2 * HIDDEN), 4, r"not \(2, 3, 64\)"),
        ((3, 2 * HIDDEN), 4, r"not \(3, 64\)"),
    ],
)
def test_what_cannot_be_proposed_is_refused(shape: tuple[int, ...], block_size: int, message: str) -> None:
    draft = make_draft()
    with pytest.raises(ValueError, match=message):
        draft.propose(draft.new_cache(), torch.zeros(shape), torch.tensor([[1]]), block_size, *make_target_parts())


def test_spec_generate_returns_prompt_and_new_tokens(target: Any, draft: DFlashDraftModel) -> None:
    prompt = torch.tensor([[5, 6, 7]])
    ids = draft.spec_generate(
        target=target, input_ids=prompt, max_new_tokens=9, stop_token_ids=None, temperature=0.0, block_size=4
    )
    plain = target.generate(prompt, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ids.dtype == torch.long
    assert ids.tolist() == plain.tolist()


# Loading


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_draft().half().save_pretrained(tmp_path)
    return tmp_path


def change_config(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def change_tensors(checkpoint: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def refusal(checkpoint: Path) -> str:
    with pytest.raises(ValueError, match=re.escape(str(checkpoint))) as refused:
        DFlashDraftModel.from_pretrained(checkpoint)
    return str(refused.value)


def test_dtype_is_the_checkpoints_own_unless_asked(checkpoint: Path) -> None:
    saved = load_file(checkpoint / "model.safetensors")
    wanted: list[tuple[Any, torch.dtype]] = [("auto", torch.float16), (torch.float32, torch.float32)]
    for dtype, expected in wanted:
        draft = DFlashDraftModel.from_pretrained(checkpoint, dtype=dtype)
        assert draft.dtype == expected
        assert not draft.training
        assert draft.state_dict().keys() == saved.keys()
        for name, tensor in draft.state_dict().items():
            assert torch.equal(tensor, saved[name].to(expected)), name
    assert DFlashDraftModel.from_pretrained(checkpoint).dtype == torch.float16


def test_draft_and_target_may_differ_in_dtype(checkpoint: Path) -> None:
    draft = DFlashDraftModel.from_pretrained(checkpoint)
    embed, head = make_target_parts()
    logits = draft.propose(draft.new_cache(), make_features(draft, 3), torch.tensor([[1]]), 4, embed, head)
    assert logits.dtype == torch.float32


def test_missing_tensors_are_refused(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: [tensors.pop(f"layers.{i}.self_attn.q_norm.weight") for i in range(2)])
    message = refusal(checkpoint)
    assert "2 missing: layers.0.self_attn.q_norm.weight, layers.1.self_attn.q_norm.weight" in message
    assert "A fitting checkpoint has 25: fc (32, 64)" in message


def test_unexpected_tensors_are_refused(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update({f"layers.2.extra.{i}": torch.ones(2) for i in range(9)}))
    assert "9 unexpected: layers.2.extra.0, layers.2.extra.1, layers.2.extra.2)" in refusal(checkpoint)


def test_misshaped_tensors_are_refused(checkpoint: Path) -> None:
    change_config(checkpoint, lambda config: config["dflash_config"].update(target_layer_ids=[1, 4, 6]))
    assert "1 of a wrong shape: fc.weight (32, 64) instead of (32, 96)" in refusal(checkpoint)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.update(architectures=["DFlash2DraftModel"]),
        lambda config: config.update(conv_kernel_size=4),
        lambda config: config["dflash_config"].update(selector_rank=64),
    ],
)
def test_dflash_2_is_refused_by_its_config(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    change_config(checkpoint, change)
    assert "is a DFlash 2 draft" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["layers.0.attention_conv.base_kernel", "candidate_selector.predecessor_codebook"])
def test_dflash_2_is_refused_by_its_tensors(checkpoint: Path, name: str) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update({name: torch.ones(2)}))
    assert "is a DFlash 2 draft" in refusal(checkpoint)


def test_a_model_that_is_no_draft_is_refused(target: PreTrainedModel, tmp_path: Path) -> None:
    target.save_pretrained(tmp_path)
    message = refusal(tmp_path)
    assert "is not a DFlash draft" in message
    assert "ForCausalLM" in message
    with pytest.raises(ValueError, match="this config is not a DFlash draft"):
        DFlashDraftModel(Qwen3Config())


def test_wrong_directories_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no config.json" in refusal(empty)
    assert "no readable config.json and safetensors weights" in refusal(tmp_path / "nowhere")
    weights = checkpoint / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    assert "safetensors" in refusal(checkpoint)
    weights.unlink()
    assert "no readable config.json and safetensors weights" in refusal(checkpoint)
    (checkpoint / "config.json").write_text("{")
    assert "config" in refusal(checkpoint)


def test_pickled_weights_are_not_read(checkpoint: Path) -> None:
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    assert "safetensors" in refusal(checkpoint)


def test_remote_code_is_never_run(checkpoint: Path) -> None:
    (checkpoint / "dflash.py").write_text("raise SystemExit('remote code was run')")
    change_config(checkpoint, lambda config: config.update(auto_map={"AutoModel": "dflash.DFlashDraftModel"}))
    assert DFlashDraftModel.from_pretrained(checkpoint, trust_remote_code=True).mask_token_id == MASK


def test_a_sliding_checkpoint_keeps_its_window(checkpoint: Path) -> None:
    """Qwen3Config drops sliding_window unless use_sliding_window is set, which not every checkpoint does."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12, "use_sliding_window": False}
    change_config(checkpoint, lambda config: config.update(layers))
    attentions: list[Any] = [layer.self_attn for layer in DFlashDraftModel.from_pretrained(checkpoint).layers]
    assert [(attention.window, attention.is_causal) for attention in attentions] == [(12, True), (None, False)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 2}, "need sliding_window"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "'linear_attention'"),
        ({"dflash_config": {"mask_token_id": MASK}, "num_target_layers": None}, "needs target_layer_ids"),
    ],
)
def test_incomplete_configs_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_draft(**changes)
