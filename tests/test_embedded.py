"""The embedded pair, with its real weights: what the rules promise holds for it, and the draft is worth its time."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash_core import DFlashDraftModel, dflash_generate
from dflash_core.blocks import Generation
from dflash_core.metrics import run_stats
from dflash_core.pairs import EMBEDDED_DRAFT, Pair
from dflash_core.verify import RULES
from dflash_core.weights import ensure_target
from dflash_ui.text import presets

pytestmark = pytest.mark.embedded

GREEDY = ("List of facts", "Short code")


@pytest.fixture(autouse=True, scope="module")
def its_share_of_the_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))  # more than there are would wait for each other
    yield
    torch.set_num_threads(before)


@functools.cache  # the tests share some
def generate(
    pair: Pair, preset: str, max_new_tokens: int, block_size: int, *, temperature: float = 0.0, rule: str = "match"
) -> Generation:
    return dflash_generate(
        pair.draft,
        pair.target,
        pair.encode(presets()[preset]["prompt"], chat=presets()[preset]["chat"]),
        max_new_tokens=max_new_tokens,
        stop_token_ids=pair.stop_token_ids,
        temperature=temperature,
        block_size=block_size,
        seed=1,
        rule=rule,
    )


def test_it_ends_with_the_end_of_a_turn(embedded_pair: Pair) -> None:
    assert 2 in embedded_pair.stop_token_ids
    assert embedded_pair.tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"


def test_greedy_is_the_library_s_greedy_decoding(embedded_pair: Pair) -> None:
    library: Any = AutoModelForCausalLM.from_pretrained(ensure_target(), dtype=torch.float32).eval()
    for preset in GREEDY:
        prompt = embedded_pair.encode(presets()[preset]["prompt"])
        mask = torch.ones_like(prompt)
        plain = library.generate(prompt, attention_mask=mask, max_new_tokens=64, do_sample=False, pad_token_id=2)
        for block_size in (1, 4, 8, 16) if preset == GREEDY[0] else (8,):
            assert list(generate(embedded_pair, preset, 64, block_size).token_ids) == plain[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("rule", [key for key, rule in RULES.items() if rule.same_text])
def test_sampled_text_is_that_of_plain_decoding_for_every_block_size(embedded_pair: Pair, rule: str, temperature: float) -> None:
    plain = generate(embedded_pair, "Open story", 64, 1, temperature=temperature)  # one text for all these rules
    drafted = [generate(embedded_pair, "Open story", 64, size, temperature=temperature, rule=rule) for size in (2, 4, 8, 16)]
    assert len(plain.token_ids) == 64
    assert all(run.token_ids == plain.token_ids for run in drafted)


def test_the_draft_is_worth_having(embedded_pair: Pair) -> None:
    n_tokens = {preset: 64 if preset in GREEDY else 48 for preset in presets()}
    taus = [run_stats(generate(embedded_pair, preset, n, 8).blocks, 8).tau for preset, n in n_tokens.items()]
    assert sum(tau for tau in taus if tau) / len(taus) > 1.35, taus


def test_models_loaded_by_hand_work_as_in_the_readme() -> None:
    directory = ensure_target()
    draft = DFlashDraftModel.from_pretrained(EMBEDDED_DRAFT, dtype="auto", device_map="cpu").eval()
    target = AutoModelForCausalLM.from_pretrained(directory, dtype="auto", device_map="cpu").eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer([text], return_tensors="pt").to(draft.device)

    def spec_generate(temperature: float) -> torch.Tensor:
        return draft.spec_generate(
            target=target,
            input_ids=inputs.input_ids,
            max_new_tokens=12,
            stop_token_ids=[tokenizer.eos_token_id],
            temperature=temperature,
        )

    output = spec_generate(0.0)
    n_prompt = inputs.input_ids.shape[1]
    assert output[:, :n_prompt].equal(inputs.input_ids) and n_prompt < output.shape[1] <= n_prompt + 12
    assert "Paris" in tokenizer.decode(output[0, n_prompt:], skip_special_tokens=True)
    torch.manual_seed(3)
    warm = spec_generate(0.7)
    torch.manual_seed(3)
    assert spec_generate(0.7).equal(warm)
