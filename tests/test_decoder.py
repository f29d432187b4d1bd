"""Our own forward pass computes what the library's does, in every shape that the loop and the training ask for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dflash_core import dflash_generate
from dflash_core.decoder import Decoder, supports
from dflash_core.fast_linear import FastLinear, can_pack, pack_linears
from dflash_core.target import PREFILL_CHUNK, DecoderTarget, TransformersTarget
from dflash_core.verify import RULES

from .conftest import VOCAB, tiny_draft, tiny_target

TAPS = (0, 2, 3)  # the last layer among them


def fast(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> DecoderTarget:
    return DecoderTarget(copy.deepcopy(model).to(dtype))


def tokens(n: int, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (rows, n), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
@pytest.mark.parametrize("n_context", [1, 5, 64, 300])
def test_logits_and_features_are_those_of_the_library(target: PreTrainedModel, n_context: int) -> None:
    library, own = TransformersTarget(target), fast(target)
    theirs, ours = library.new_cache(), own.new_cache()
    for ids in (tokens(n_context), *(tokens(n, seed=n) for n in range(1, 18))):
        expected = library.forward(ids, theirs, taps=TAPS, last_only=False)
        found = own.forward(ids, ours, taps=TAPS, last_only=False)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        length = library.cache_length(theirs) - ids.shape[1] // 2  # as after a rejection
        library.roll_back(theirs, length)
        own.roll_back(ours, length)
        assert own.cache_length(ours) == length


@torch.inference_mode()
def test_a_long_prompt_goes_through_in_chunks_and_the_cache_grows(target: PreTrainedModel) -> None:
    ids = tokens(PREFILL_CHUNK + 300)
    target.config.max_position_embeddings = 4096
    library, own = TransformersTarget(target), fast(target)
    expected = library.forward(ids, library.new_cache(), taps=TAPS, last_only=True)
    found = own.forward(ids, own.new_cache(), taps=TAPS, last_only=True)
    assert found[0].shape == (1, 1, VOCAB)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def test_nothing_tapped_gives_features_of_no_width(target: PreTrainedModel) -> None:
    own = fast(target)
    _, features = own.forward(tokens(5), own.new_cache(), taps=(), last_only=False)
    assert features.shape == (1, 5, 0)


@torch.inference_mode()
def test_bfloat16_is_as_close_to_float32_as_the_library_s(target: PreTrainedModel) -> None:
    ids = tokens(40)
    exact = target(ids).logits
    own, library = fast(target, torch.bfloat16), TransformersTarget(copy.deepcopy(target).to(torch.bfloat16))
    ours, _ = own.forward(ids, own.new_cache(), taps=(), last_only=False)
    theirs, _ = library.forward(ids, library.new_cache(), taps=(), last_only=False)
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


@torch.inference_mode()
def test_rows_at_different_positions_do_not_see_each_other(target: PreTrainedModel) -> None:
    """A ragged batch gives each row what it gets alone, whatever lies in the other rows and behind its own end."""
    decoder = Decoder(target)
    prompts = [tokens(n, seed=n) for n in (3, 17, 9)]
    alone = [decoder.new_cache(1) for _ in prompts]
    for prompt, one in zip(prompts, alone, strict=True):
        decoder.forward(prompt, one)
    cache = decoder.new_cache(len(prompts), 32)
    for buffer in cache.buffers:
        buffer.fill_(1e4)  # what an earlier conversation left
    for row, one in enumerate(alone):
        for mine, theirs in zip(cache.buffers, one.buffers, strict=True):
            mine[:, row, :, : one.lengths[0]] = theirs[:, 0, :, : one.lengths[0]]
        cache.lengths[row] = one.lengths[0]
    for step, n in enumerate((1, 4, 20)):  # the last one makes the cache grow
        ids = tokens(n, rows=3, seed=step)
        hidden, features = decoder.forward(ids, cache, taps=TAPS)
        for row, one in enumerate(alone):
            expected, expected_features = decoder.forward(ids[row : row + 1], one, taps=TAPS)
            torch.testing.assert_close(hidden[row : row + 1], expected, rtol=1e-4, atol=1e-4)
            for a, b in zip(features, expected_features, strict=True):
                torch.testing.assert_close(a[row : row + 1], b, rtol=1e-4, atol=1e-4)
    kept = cache.rows([2, 0])
    assert kept.lengths == [cache.lengths[2], cache.lengths[0]]
    ids = tokens(1, rows=2)
    hidden, _ = decoder.forward(ids, kept)
    for i, row in enumerate((2, 0)):
        torch.testing.assert_close(hidden[i : i + 1], decoder.forward(ids[i : i + 1], alone[row])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_a_run_is_the_same_on_both_paths(target: PreTrainedModel, rule: str) -> None:
    own, draft, packed = fast(target), tiny_draft(), tiny_draft()
    pack_linears(packed)
    assert not any(isinstance(module, nn.Linear) for module in packed.modules())
    for block_size in range(1, 18):
        prompt = tokens((7, 64, 130)[block_size % 3])
        options: dict[str, Any] = {"max_new_tokens": 20, "block_size": block_size, "rule": rule, "temperature": 0.7, "seed": 3}
        expected = dflash_generate(draft, target, prompt, **options)
        found = dflash_generate(packed, own, prompt, **options)
        assert found.token_ids == expected.token_ids
        assert [block.drafted for block in found.blocks] == [block.drafted for block in expected.blocks]


def test_what_has_no_fast_path_is_refused() -> None:
    model = tiny_target("qwen3")
    assert supports(model)
    model.config.layer_types = ["full_attention", "sliding_attention"] * 2
    assert not supports(model)
    with pytest.raises(ValueError, match="Qwen3ForCausalLM has no fast path"):
        Decoder(model)


@pytest.mark.parametrize("shape", [(96, 32), (32, 96)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_fast_linear_is_a_linear(shape: tuple[int, int], has_bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(shape[1], shape[0], bias=has_bias)
    quick = FastLinear(linear.weight, linear.bias)
    with torch.inference_mode():
        for rows in (1, 3, 40):
            x = torch.randn(1, rows, shape[1])
            torch.testing.assert_close(quick(x), linear(x), rtol=1e-5, atol=1e-5)
    assert quick.packed == can_pack(linear.weight) == torch.backends.mkldnn.is_available()
    assert not can_pack(linear.weight.half())
