"""Pairs: what does not fit is refused with the reason, and what is loaded from disk is what was saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    FalconMambaConfig,
    FalconMambaForCausalLM,
    PreTrainedTokenizerBase,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from dflash_core import DFlashDraftModel, dflash_generate
from dflash_core.fast_linear import FastLinear
from dflash_core.pairs import DTYPES, EMBEDDED_DRAFT, PAIRS, Pair, PairError, check_pair, load_pair, stop_token_ids
from dflash_core.target import DecoderTarget, TransformersTarget, require_rollback
from dflash_core.toy import WORDS, ToyDraft, ToyTarget, toy_tokenizer
from dflash_core.verify import RULES
from dflash_core.weights import Progress

from .conftest import MASK, VOCAB, tiny_draft, tiny_target

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}the{% endif %}{{ tail }}"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tiny target (and its tokenizer) in `target` and a tiny draft in `draft`."""
    path = tmp_path_factory.mktemp("pair")
    tiny_target("llama").save_pretrained(path / "target")
    toy_tokenizer().save_pretrained(path / "target")
    tiny_draft().save_pretrained(path / "draft")
    return path


def load(saved: Path, **options: Any) -> Pair:
    values = {"target": str(saved / "target"), "draft": str(saved / "draft"), "device": "cpu", **options}
    return load_pair(**values)


# Fitting


def check(draft: DFlashDraftModel, tokenizer: PreTrainedTokenizerBase | None = None, stops: Sequence[int] = (2,)) -> None:
    check_pair(TransformersTarget(tiny_target("llama")), draft, tokenizer or toy_tokenizer(), tuple(stops))


def test_a_fitting_pair_passes() -> None:
    check(tiny_draft())


def large_tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = toy_tokenizer()
    tokenizer.add_tokens([f"extra{i}" for i in range(VOCAB)])
    return tokenizer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 40}, "the draft's hidden size is 40, the target's 32"),
        ({"vocab_size": 98}, "made for a vocabulary of 98, the target has 97"),
        ({"num_target_layers": 6}, "made for a target of 6 layers, this one has 4"),
        ({"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 4]}}, r"taps layers \[4\], the target's end at 3"),
        ({"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [-1, 0]}}, r"taps layers \[-1\]"),
        ({"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0, 2]}}, "mask token 97 lies outside .* of 97"),
        ({"dflash_config": {"mask_token_id": 2, "target_layer_ids": [0, 2]}}, "mask token 2 is a stop token"),
    ],
    ids=["hidden size", "vocabulary", "depth", "tap", "negative tap", "mask", "mask is stop"],
)
def test_each_misfit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PairError, match=f"^this target and this draft do not fit: .*{message}.*Use a draft made for this target"):
        check(tiny_draft(**changes))


def test_a_tokenizer_larger_than_the_vocabulary_is_named() -> None:
    with pytest.raises(PairError, match=f"tokenizer has {len(WORDS) + VOCAB} tokens, the target's vocabulary {VOCAB}"):
        check(tiny_draft(), large_tokenizer())


def test_all_misfits_are_named_at_once() -> None:
    with pytest.raises(PairError, match=r"hidden size.*vocabulary of 98.*6 layers.*tokenizer has"):
        check(tiny_draft(hidden_size=40, vocab_size=98, num_target_layers=6), large_tokenizer())


# Targets that cannot roll back


def test_a_target_with_linear_attention_is_refused() -> None:
    config = Qwen3NextConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )  # fmt: skip
    with pytest.raises(
        ValueError, match=r"qwen3_next cannot be a target: it has linear_attention layers.*such as Qwen3 or Llama"
    ):
        TransformersTarget(Qwen3NextForCausalLM(config))


def test_a_recurrent_target_is_refused() -> None:
    config = FalconMambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4)
    with pytest.raises(ValueError, match=r"falcon_mamba cannot be a target: it has .* layers, whose state cannot be rolled back"):
        TransformersTarget(FalconMambaForCausalLM(config))


@pytest.mark.parametrize(
    ("layer_types", "stateful", "fits"),
    [
        (["full_attention", "sliding_attention"], False, True),
        (None, False, True),
        (["full_attention", "chunked_attention"], False, False),
        (["full_attention", "conv"], False, False),
        (None, True, False),
    ],
    ids=str,
)
def test_only_full_and_sliding_attention_can_roll_back(layer_types: list[str] | None, stateful: bool, fits: bool) -> None:
    config = SimpleNamespace(layer_types=layer_types, model_type="odd")
    model: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config), _is_stateful=stateful)
    if fits:
        require_rollback(model)
    else:
        with pytest.raises(ValueError, match="odd cannot be a target"):
            require_rollback(model)


def test_a_recurrent_target_on_disk_is_refused_as_a_pair(saved: Path, tmp_path: Path) -> None:
    config = FalconMambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4)
    FalconMambaForCausalLM(config).save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(PairError, match="falcon_mamba cannot be a target"):
        load(saved, target=str(tmp_path))


# Stops


@pytest.mark.parametrize(
    ("configured", "own", "expected"),
    [
        (2, None, (2,)),
        ([7, 2], 5, (2, 5, 7)),
        ((2, 5), 5, (2, 5)),
        (None, 5, (5,)),
        (None, None, ()),
        (0, None, (0,)),
        ([], 5, (5,)),
    ],
)
def test_stops_are_those_of_the_config_and_of_the_tokenizer(configured: Any, own: int | None, expected: tuple[int, ...]) -> None:
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=configured))
    tokenizer: Any = SimpleNamespace(eos_token_id=own)
    assert stop_token_ids(model, tokenizer) == expected


# Prompts


def toy_pair(template: str | None = TEMPLATE, **chat_options: Any) -> Pair:
    target, tokenizer = ToyTarget(), toy_tokenizer()
    tokenizer.chat_template = template
    return Pair("toy", "Toy", target, ToyDraft(target), tokenizer, (1,), "cpu", "float32", chat_options)


def words(ids: torch.Tensor) -> list[str]:
    assert ids.ndim == 2 and ids.shape[0] == 1 and ids.dtype == torch.long
    return [WORDS[i] for i in ids[0].tolist()]


def test_a_raw_prompt_is_the_text_and_a_chat_its_template() -> None:
    pair = toy_pair()
    assert words(pair.encode("a cat", chat=False)) == ["Ġa", "Ġcat"]
    assert words(pair.encode("a cat")) == ["Ġa", "Ġcat", "Ġthe"]
    assert words(toy_pair(tail=" dog").encode("a cat")) == ["Ġa", "Ġcat", "Ġthe", "Ġdog"]  # options reach the template


def test_special_tokens_of_the_template_are_not_doubled() -> None:
    pair = toy_pair("<stop>{{ messages[0].content }}<stop>")
    assert pair.encode("cat")[0].tolist() == [1, WORDS.index("Ġcat"), 1]


def test_no_token_and_no_template_are_refused() -> None:
    with pytest.raises(ValueError, match="the prompt is empty: type something to continue"):
        toy_pair().encode("", chat=False)
    with pytest.raises(ValueError, match="the prompt is empty"):
        toy_pair("{{ '' }}").encode("cat")
    for template in (None, ""):
        with pytest.raises(ValueError, match="Toy has no chat template: switch to the raw prompt"):
            toy_pair(template).encode("cat")


# Loading


def test_the_toy_pair_needs_nothing_and_runs() -> None:
    pair = load_pair("toy")
    assert (pair.key, pair.label, pair.device, pair.dtype) == ("toy", PAIRS["toy"].label, "cpu", "float32")
    tokens = dflash_generate(pair.draft, pair.target, pair.encode("the cat", chat=False), max_new_tokens=20).token_ids
    assert len(tokens) == 20
    assert pair.stop_token_ids == (pair.tokenizer.eos_token_id,)


@pytest.mark.parametrize("name", ["", "other", "Embedded", "custom"])
def test_an_unknown_pair_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(
        PairError, match=f"there is no pair '{name}'; choose one of embedded, .*toy, or give a target and a draft"
    ):
        load_pair(name)


def test_an_unknown_dtype_is_refused_with_those_there_are(saved: Path) -> None:
    with pytest.raises(PairError, match="dtype must be auto, float32, bfloat16, float16, not 'int8'"):
        load(saved, dtype="int8")


def test_a_device_that_is_not_there_is_refused(saved: Path) -> None:
    with pytest.raises(PairError, match="cannot be loaded on abacus"):
        load(saved, device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(PairError, match="cannot be loaded on cuda"):
            load(saved, device="cuda")


@pytest.mark.parametrize("name", ["embedded", "qwen3-4b"])
def test_a_pair_by_path_generates_what_it_does_in_memory(saved: Path, name: str) -> None:
    seen: list[Progress] = []
    pair = load(saved, name=name, progress=seen.append)
    assert [step.phase for step in seen] == ["Loading the target", "Loading the draft"]
    assert (pair.key, pair.label, pair.device, pair.dtype) == ("custom", "target + draft", "cpu", "float32")
    assert pair.stop_token_ids == (1, 2)  # the tokenizer's and the config's
    assert pair.chat_options == {"enable_thinking": False}  # for any target that was given
    prompt = pair.encode("the cat saw", chat=False)
    assert prompt[0].tolist() == toy_tokenizer()("the cat saw").input_ids
    for temperature in (0.0, 1.0):
        options: dict[str, Any] = {"max_new_tokens": 30, "temperature": temperature, "seed": 4}
        loaded = dflash_generate(pair.draft, pair.target, prompt, **options)
        memory = dflash_generate(tiny_draft(), tiny_target("llama"), prompt, **options)
        assert loaded.token_ids == memory.token_ids
        assert [block.drafted for block in loaded.blocks] == [block.drafted for block in memory.blocks]


@pytest.mark.parametrize("dtype", DTYPES)
def test_target_and_draft_get_the_dtype_that_is_asked_for(saved: Path, dtype: str) -> None:
    pair: Any = load(saved, dtype=dtype)
    assert pair.dtype == dtype
    assert pair.target.dtype == pair.draft.dtype == DTYPES[dtype]
    assert not pair.draft.training


@pytest.mark.parametrize("fast", [True, False])
def test_a_draft_may_be_narrowed_to_some_words(saved: Path, tmp_path: Path, fast: bool) -> None:
    """Its logits of those words stay what they were, the others are never drafted, and the text is the target's."""
    words = [60, 3, 41, 5, 96, 12]
    settings = {"mask_token_id": MASK, "target_layer_ids": [0, 2], "draft_token_ids": words}
    tiny_draft(dflash_config=settings).save_pretrained(tmp_path / "draft")
    wide, narrow = load(saved, fast=fast), load(saved, draft=str(tmp_path / "draft"), fast=fast)
    prompt = wide.encode("the cat saw", chat=False)
    features = torch.randn(1, 3, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, found = (
            pair.draft.propose(pair.draft.new_cache(), features, prompt[:, -1:], 6, pair.target.embed, pair.target.head)
            for pair in (wide, narrow)
        )
    assert found.shape == expected.shape
    torch.testing.assert_close(found[..., words], expected[..., words], rtol=1e-5, atol=1e-5)
    assert found.isneginf().sum() == 5 * (VOCAB - len(words))
    for rule in RULES:
        for temperature in (0.0, 0.8):
            options: dict[str, Any] = {"max_new_tokens": 30, "temperature": temperature, "seed": 4, "rule": rule}
            run = dflash_generate(narrow.draft, narrow.target, prompt, **options)
            assert {token for block in run.blocks for token in block.drafted} <= {*words}
            if temperature == 0 or RULES[rule].same_text:
                assert run.token_ids == dflash_generate(None, narrow.target, prompt, block_size=1, **options).token_ids


def test_words_outside_the_vocabulary_are_refused(saved: Path, tmp_path: Path) -> None:
    settings = {"mask_token_id": MASK, "target_layer_ids": [0, 2]}
    tiny_draft().save_pretrained(tmp_path)
    for words in ([1, 2, 1], [0, VOCAB], [-1]):
        config = json.loads((tmp_path / "config.json").read_text())
        config["dflash_config"] = {**settings, "draft_token_ids": words}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(PairError, match=r"draft_token_ids .* must be different tokens of its vocabulary of 97"):
            load(saved, draft=str(tmp_path))


def test_the_fast_path_is_taken_where_there_is_one(saved: Path) -> None:
    assert isinstance(load(saved).target, DecoderTarget)
    plain: Any = load(saved, fast=False)
    assert isinstance(plain.target, TransformersTarget) and not plain.target.model.training
    assert not any(isinstance(module, FastLinear) for module in plain.draft.modules())


def test_a_path_that_is_not_there_is_named(saved: Path) -> None:
    missing = str(saved / "nothing")
    with pytest.raises(PairError, match=r"the target .*nothing cannot be loaded.*must be a directory with a model.*hub id"):
        load(saved, target=missing)
    with pytest.raises(PairError, match=r"nothing has no readable config.json and safetensors weights"):
        load(saved, draft=missing)


def test_a_file_in_place_of_a_model_is_refused(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.txt"
    file.write_text("hello")
    with pytest.raises(PairError, match=r"model.txt"):
        load(saved, target=str(file))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(PairError, match="broken"):
        load(saved, target=str(tmp_path / "broken"))
    with pytest.raises(PairError, match="broken"):
        load(saved, draft=str(tmp_path / "broken"))


def test_a_target_in_place_of_a_draft_is_refused(saved: Path) -> None:
    with pytest.raises(PairError, match="is not a DFlash draft"):
        load(saved, draft=str(saved / "target"))


def test_a_target_that_lacks_weights_is_not_left_with_random_ones(saved: Path, tmp_path: Path) -> None:
    """A draft looks like a target to transformers, which would make up the embedding and the head."""
    toy_tokenizer().save_pretrained(tmp_path)
    tiny_draft().save_pretrained(tmp_path)
    with pytest.raises(PairError, match=r"lacks weights: lm_head.weight, model.embed_tokens.weight"):
        load(saved, target=str(tmp_path))


def test_a_draft_of_another_target_is_refused_when_loaded(saved: Path, tmp_path: Path) -> None:
    tiny_draft(num_target_layers=6).save_pretrained(tmp_path)
    with pytest.raises(PairError, match="made for a target of 6 layers, this one has 4"):
        load(saved, draft=str(tmp_path))


# The embedded draft


def test_the_embedded_draft_loads_and_describes_itself() -> None:
    draft = DFlashDraftModel.from_pretrained(EMBEDDED_DRAFT, dtype="float32")
    config = json.loads((EMBEDDED_DRAFT / "config.json").read_text())
    assert (draft.block_size, draft.mask_token_id) == (config["block_size"], config["dflash_config"]["mask_token_id"])
    assert draft.config.hidden_size == 576 and draft.config.vocab_size == 49152 and draft.config.num_target_layers == 30
    assert all(torch.isfinite(parameter).all() for parameter in draft.parameters())


def test_the_registry_says_what_a_menu_needs() -> None:
    for key, spec in PAIRS.items():
        assert spec.key == key and spec.label and spec.memory and spec.dtype in DTYPES
    assert len({spec.label for spec in PAIRS.values()}) == len(PAIRS)
    assert Path(PAIRS["embedded"].draft) == EMBEDDED_DRAFT and EMBEDDED_DRAFT.is_dir()
