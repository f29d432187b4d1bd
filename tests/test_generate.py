"""The loop: equal to plain decoding, exact about stops and the cap, honest about what it reports."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Collection
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from dflash_core import RULES, Block, DFlashDraftModel, SamplingParams, dflash_generate, iter_blocks
from dflash_core.lossless import chi_square_p_value
from dflash_core.target import TransformersTarget
from dflash_core.toy import ToyDraft, ToyTarget

from .conftest import FALSE_ALARM, MASK, VOCAB, OracleDraft, tiny_draft, tiny_target

PROMPTS = [[1], [5, 9, 13, 44, 2, 60], list(range(10, 50))]
BLOCK_SIZES = [1, 2, 3, 5, 8, 16, 33]
SAME_TEXT = [key for key, rule in RULES.items() if rule.same_text]


def plain_greedy(model: PreTrainedModel, prompt: list[int], n: int) -> list[int]:
    """The transformers library's own greedy decoding."""
    return _plain_greedy(model, tuple(prompt))[:n]


@functools.cache
def _plain_greedy(model: PreTrainedModel, prompt: tuple[int, ...]) -> list[int]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    output: Tensor = model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=60, eos_token_id=None, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


def generate(draft: Any, target: Any, prompt: list[int], n: int, **options: Any) -> Any:
    return dflash_generate(draft, target, torch.tensor([prompt]), max_new_tokens=n, **options)


def hostile_drafts() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randint(VOCAB, (2000,), generator=generator).tolist()
    return {
        "random": OracleDraft(lambda position: noise[position]),
        "constant": OracleDraft(lambda position: 7),
        "always-stop": OracleDraft(lambda position: 2),
    }


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("rule", RULES)
def test_greedy_equals_plain_decoding(target: PreTrainedModel, draft: DFlashDraftModel, block_size: int, rule: str) -> None:
    for prompt in PROMPTS:
        generation = generate(draft, target, prompt, 40, block_size=block_size, rule=rule)
        assert list(generation.token_ids) == plain_greedy(target, prompt, 40)
        assert generation.finish_reason == "length"


@pytest.mark.parametrize("name", ["random", "constant", "always-stop"])
@pytest.mark.parametrize("block_size", [2, 5, 16])
def test_a_hostile_draft_changes_nothing_but_acceptance(target: PreTrainedModel, name: str, block_size: int) -> None:
    expected = plain_greedy(target, PROMPTS[1], 30)
    expected = expected[: expected.index(2) + 1] if 2 in expected else expected
    generation = generate(hostile_drafts()[name], target, PROMPTS[1], 30, stop_token_ids=[2], block_size=block_size)
    assert list(generation.token_ids) == expected
    sampled = [
        generate(d, target, PROMPTS[1], 30, block_size=block_size, temperature=1.0, seed=4).token_ids
        for d in (*hostile_drafts().values(), tiny_draft())
    ]
    assert len(set(sampled)) == 1


@pytest.mark.parametrize("rule", SAME_TEXT)
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_the_same_seed_gives_the_same_text_for_every_block_size(
    target: PreTrainedModel, draft: DFlashDraftModel, rule: str, temperature: float
) -> None:
    texts = {
        generate(draft, target, PROMPTS[1], 40, block_size=b, rule=rule, temperature=temperature, seed=11).token_ids
        for b in BLOCK_SIZES
    }
    other = generate(draft, target, PROMPTS[1], 40, block_size=8, rule=rule, temperature=temperature, seed=12).token_ids
    assert len(texts) == 1 and other not in texts


@pytest.mark.parametrize("rule", RULES)
def test_a_run_repeats_exactly(target: PreTrainedModel, draft: DFlashDraftModel, rule: str) -> None:
    options = {"block_size": 8, "rule": rule, "temperature": 1.0, "seed": 3, "top_p": 0.95, "top_k": 50}
    first, second = (generate(draft, target, PROMPTS[2], 40, **options) for _ in range(2))
    assert first.token_ids == second.token_ids


def test_runs_after_each_other_do_not_touch() -> None:
    llama, qwen = tiny_target("llama"), tiny_target("qwen3", seed=9)
    one, two = tiny_draft(0), tiny_draft(1, num_hidden_layers=1)
    alone = generate(one, llama, PROMPTS[1], 25, block_size=8).token_ids
    generate(two, qwen, PROMPTS[2], 33, block_size=5, temperature=1.0)
    with contextlib.closing(iter_blocks(two, llama, torch.tensor([PROMPTS[0]]), max_new_tokens=50, block_size=16)) as run:
        list(islice(run, 3))
        assert generate(one, llama, PROMPTS[1], 25, block_size=8).token_ids == alone
        list(islice(run, 3))
    assert generate(one, llama, PROMPTS[1], 25, block_size=8).token_ids == alone


@pytest.mark.parametrize("rule", [key for key, rule in RULES.items() if rule.lossless])
@pytest.mark.parametrize("block_size", [1, 3])
def test_sampled_text_follows_the_target(rule: str, block_size: int) -> None:
    """Three tokens of a four-word chain over many seeds, against the chain's exact law."""
    target = ToyTarget()
    target.vocab_size = 4
    target.logits = 1.5 * torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    draft = ToyDraft(target, noise=0.3)
    n, temperature = 1500, 0.9
    counts = np.zeros(64)
    for seed in range(n):
        a, b, c = generate(draft, target, [1], 3, block_size=block_size, rule=rule, temperature=temperature, seed=seed).token_ids
        counts[16 * a + 4 * b + c] += 1
    step = (target.logits.double() / temperature).softmax(-1)
    law = (step[1][:, None, None] * step[:, :, None] * step[None]).flatten().numpy()
    assert chi_square_p_value(counts, law) > FALSE_ALARM


# Stops and the cap. With the target's own greedy text as the draft, every verdict can be forced.


def oracle(text: list[int], prompt: list[int], wrong_at: Collection[int] = ()) -> OracleDraft:
    """Drafts the text itself, but for the offsets in `wrong_at`."""

    def choose(position: int) -> int:
        offset = position - len(prompt)
        token = text[offset] if offset < len(text) else 0
        return (token + 1) % VOCAB if offset in wrong_at else token

    return OracleDraft(choose)


@pytest.mark.parametrize("offset", range(14))
@pytest.mark.parametrize("wrong_at", [set(), {1}, {4}, {3, 6, 9}], ids=str)
def test_a_stop_token_at_every_offset(offset: int, wrong_at: set[int]) -> None:
    """Wherever it falls (first token, accepted, last drafted, resampled, bonus), the output ends with it, inclusive."""
    target = tiny_target("llama")
    prompt = PROMPTS[1]
    text = plain_greedy(target, prompt, 40)
    stop = text[offset]
    end = text.index(stop)
    unused = next(token for token in range(VOCAB) if token not in text)
    generation = generate(oracle(text, prompt, wrong_at), target, prompt, 40, block_size=5, stop_token_ids=[stop, unused])
    assert list(generation.token_ids) == text[: end + 1]
    assert generation.finish_reason == "stop"


def test_a_stop_token_in_the_prompt_or_drafted_but_rejected_does_not_stop() -> None:
    target = tiny_target("llama")
    text = plain_greedy(target, PROMPTS[1], 20)
    stop = next(token for token in range(VOCAB) if token not in text and token not in PROMPTS[1])
    prompt = PROMPTS[1]
    generation = generate(OracleDraft(lambda position: stop), target, prompt, 20, block_size=4, stop_token_ids=[stop, prompt[0]])
    expected = text if prompt[0] not in text else text[: text.index(prompt[0]) + 1]
    assert list(generation.token_ids) == expected


@pytest.mark.parametrize("cap", range(1, 13))
@pytest.mark.parametrize("wrong_at", [set(), {2}, {5, 6}], ids=str)
def test_the_cap_is_exact_for_every_remainder(cap: int, wrong_at: set[int]) -> None:
    target = tiny_target("llama")
    text = plain_greedy(target, PROMPTS[1], 20)
    generation = generate(oracle(text, PROMPTS[1], wrong_at), target, PROMPTS[1], cap, block_size=5)
    assert list(generation.token_ids) == text[:cap]
    assert generation.finish_reason == "length"
    last = generation.blocks[-1]
    assert last.acceptance_length == len(last.emitted) >= 1
    assert last.accepted + last.rejected + last.not_judged == len(last.drafted)


def test_verdicts_and_counts_of_forced_blocks() -> None:
    """Full acceptance with its bonus, rejection at 0, in the middle, at the last: counted as they happened."""
    target = tiny_target("llama")
    prompt = PROMPTS[1]
    text = plain_greedy(target, prompt, 60)
    # offset 0 is the prefill's token; a block of 4 drafts 3
    generation = generate(oracle(text, prompt, {5, 7, 10}), target, prompt, 14, block_size=4)
    blocks = generation.blocks
    assert [b.n_accepted for b in blocks] == [0, 3, 0, 1, 2, 3]
    assert [b.next_kind for b in blocks] == ["bonus", "bonus", "resampled", "resampled", "resampled", "bonus"]
    assert [b.start for b in blocks] == [len(prompt) - 1 + n for n in (0, 1, 5, 6, 8, 11)]
    assert [b.is_cut for b in blocks] == [False, False, False, False, False, True]
    assert [(b.accepted, b.rejected, b.not_judged) for b in blocks] == [
        (0, 0, 0), (3, 0, 0), (0, 1, 2), (1, 1, 1), (2, 1, 0), (3, 0, 0)
    ]  # fmt: skip
    assert [b.anchor for b in blocks] == [prompt[-1], *(text[b.start - len(prompt)] for b in blocks[1:])]


class WatchedTarget(TransformersTarget):
    """Checks after each roll-back that the caches hold the committed tokens and nothing else."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.seen: list[int] = []

    def roll_back(self, cache: Any, length: int) -> None:
        super().roll_back(cache, length)
        self.seen.append(self.cache_length(cache))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_caches_hold_the_committed_tokens_after_every_block(target: PreTrainedModel, temperature: float) -> None:
    watched = WatchedTarget(target)
    draft = tiny_draft()  # its own: new_cache is replaced
    caches: list[Any] = []
    new_cache = draft.new_cache

    def watched_cache() -> Any:
        caches.append(new_cache())
        return caches[-1]

    draft.new_cache = watched_cache  # type: ignore[method-assign, assignment]
    committed = len(PROMPTS[1])
    run = iter_blocks(
        draft, watched, torch.tensor([PROMPTS[1]]), max_new_tokens=40, block_size=6,
        params=SamplingParams(temperature=temperature),
    )  # fmt: skip
    for block in run:
        assert caches[0].length == (0 if block.index == 0 else block.start)
        committed += len(block.emitted)
        assert watched.seen[-1] == committed - 1  # the last token is the next anchor: not scored yet


def test_plain_decoding_never_touches_the_draft(target: PreTrainedModel) -> None:
    class Untouchable:
        block_size = 8

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"plain decoding touched draft.{name}")

    assert len(generate(Untouchable(), target, PROMPTS[1], 10, block_size=1, temperature=1.0).token_ids) == 10
    assert len(generate(None, target, PROMPTS[1], 10).token_ids) == 10


# What a block reports


def acceptance_of_token(rule: str, p: Tensor, q: Tensor, x: int) -> float:
    """P(x is accepted | x was drafted), from the formulas in the design."""
    if rule in ("match", "greedy-match"):
        return float(p[x])
    if rule == "coupled":
        return float(1 / torch.maximum(p / p[x], q / q[x]).sum() / q[x])
    return min(1.0, float(p[x] / q[x]))


@pytest.mark.parametrize("rule", RULES)
def test_reported_numbers_are_the_models_own(rule: str) -> None:
    """p(x), q(x), acceptance, entropies and the table against a fresh pass of the target and the toy's exact q."""
    target = ToyTarget()
    draft = ToyDraft(target)
    generation = generate(
        draft,
        target,
        [4],
        60,
        block_size=5,
        rule=rule,
        temperature=0.8,
        seed=2,
        on_block=lambda block: None,
        table_size=6,
    )
    sequence = [4, *generation.token_ids]
    step = (target.logits.double() / 0.8).softmax(-1)
    for block in generation.blocks[1:]:
        assert len(block.judged) == min(block.n_accepted + 1, len(block.drafted))
        marginal = step_k = target.logits.double().softmax(-1)
        known = sequence[block.start]
        for x, judged in zip(block.drafted, block.judged, strict=False):
            q = ((marginal[sequence[block.start]] * 0.98 + 0.02 / target.vocab_size).log() / 0.8).softmax(-1)
            p = step[known]
            assert judged.target_prob == pytest.approx(float(p[x]), abs=1e-5)
            assert judged.draft_prob == pytest.approx(float(q[x]), abs=1e-5)
            if rule != "block":  # whose verdict on x depends on the whole block; see test_verify
                assert judged.accept_prob == pytest.approx(acceptance_of_token(rule, p, q, x), abs=1e-4)
            assert judged.target_entropy == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)
            assert judged.draft_entropy == pytest.approx(float(-(q * q.log()).sum()), abs=1e-4)
            best = torch.maximum(p, q).topk(6).indices.tolist()
            assert [row[0] for row in judged.table] == best
            for token, p_value, q_value in judged.table:
                assert (p_value, q_value) == pytest.approx((float(p[token]), float(q[token])), abs=1e-5)
            marginal, known = marginal @ step_k, x
        assert block.next_target_prob == pytest.approx(
            float(step[block.drafted[block.n_accepted - 1] if block.n_accepted else block.anchor][block.next_token]),
            abs=1e-5,
        )


def test_the_hook_sees_every_block_and_nothing_is_recorded_without_it(target: PreTrainedModel, draft: DFlashDraftModel) -> None:
    seen: list[Block] = []
    watched = generate(draft, target, PROMPTS[1], 20, on_block=seen.append)
    assert tuple(seen) == watched.blocks and any(block.judged for block in seen)
    bare = generate(draft, target, PROMPTS[1], 20)
    assert bare.token_ids == watched.token_ids
    assert all(not block.judged and block.next_target_prob is None for block in bare.blocks)


def test_time_of_the_consumer_is_not_counted(target: PreTrainedModel, draft: DFlashDraftModel) -> None:
    run = iter_blocks(draft, target, torch.tensor([PROMPTS[1]]), max_new_tokens=6, block_size=2)
    started = time.perf_counter()
    inside = 0.0
    for block in run:
        time.sleep(0.05)
        assert min(block.draft_seconds, block.verify_seconds, block.other_seconds) >= 0
        inside += block.seconds
    assert inside <= time.perf_counter() - started - 0.05


def test_inference_mode_does_not_leak_out_of_the_generator(target: PreTrainedModel, draft: DFlashDraftModel) -> None:
    run = iter_blocks(draft, target, torch.tensor([PROMPTS[1]]), max_new_tokens=20)
    next(run)
    assert not torch.is_inference_mode_enabled()
    run.close()
    assert not torch.is_inference_mode_enabled()


def test_prompts_longer_than_a_prefill_chunk(monkeypatch: pytest.MonkeyPatch, target: PreTrainedModel) -> None:
    whole = generate(tiny_draft(), target, PROMPTS[2], 20)
    monkeypatch.setattr("dflash_core.target.PREFILL_CHUNK", 7)
    assert generate(tiny_draft(), target, PROMPTS[2], 20).token_ids == whole.token_ids


def test_sliding_window_targets_roll_back_beyond_the_window() -> None:
    torch.manual_seed(0)
    config = tiny_target("qwen3").config.to_dict()
    config.update(use_sliding_window=True, sliding_window=6, max_window_layers=0, layer_types=["sliding_attention"] * 4)
    model = Qwen3ForCausalLM(Qwen3Config(**config)).eval()
    expected = plain_greedy(model, PROMPTS[2], 30)
    assert list(generate(tiny_draft(), model, PROMPTS[2], 30, block_size=8).token_ids) == expected


# The seed's interface


def test_spec_generate_returns_ids_with_the_prompt(target: PreTrainedModel, draft: DFlashDraftModel) -> None:
    ids = torch.tensor([PROMPTS[1]])
    output = draft.spec_generate(target=target, input_ids=ids, max_new_tokens=12, stop_token_ids=[], temperature=0.0)
    assert isinstance(output, Tensor) and output.shape == (1, len(PROMPTS[1]) + 12)
    assert output[0].tolist() == PROMPTS[1] + plain_greedy(target, PROMPTS[1], 12)
    torch.manual_seed(1)
    sampled = draft.spec_generate(target=target, input_ids=ids, max_new_tokens=12, stop_token_ids=None, temperature=1.0)
    torch.manual_seed(1)
    again = draft.spec_generate(target=target, input_ids=ids, max_new_tokens=12, stop_token_ids=None, temperature=1.0)
    assert torch.equal(sampled, again) and not torch.equal(sampled, output)


# What cannot work is said before the first pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [VOCAB]}, "vocabulary ends at 96"),
        ({"prompt": [-1]}, "negative"),
        ({"n": 0}, "max_new_tokens must be at least 1"),
        ({"n": 600}, "shorten the prompt"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"draft": None, "block_size": 4}, "needs a draft model"),
        ({"temperature": -0.1}, "temperature must be"),
        ({"temperature": math.nan}, "temperature must be"),
        ({"temperature": math.inf}, "temperature must be"),
        ({"temperature": "hot"}, "temperature must be"),
        ({"draft_temperature": -1.0}, "draft_temperature must be"),
        ({"top_p": 0.0}, "top_p must be"),
        ({"top_p": 1.1}, "top_p must be"),
        ({"top_k": -1}, "top_k must be"),
        ({"top_k": 2.5}, "top_k must be"),
        ({"rule": "lucky"}, "rule must be one of match"),
        ({"seed": -1}, "seed must be"),
        ({"table_size": -1}, "table_size must be"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_refused_with_a_reason(options: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"draft": tiny_draft(), "prompt": PROMPTS[1], "n": 5, **options}
    draft, prompt, n = (values.pop(name) for name in ("draft", "prompt", "n"))
    with pytest.raises(ValueError, match=message):
        dflash_generate(draft, tiny_target("llama"), torch.tensor([prompt], dtype=torch.long), max_new_tokens=n, **values)


def test_a_batch_of_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, L\)"):
        dflash_generate(tiny_draft(), tiny_target("llama"), torch.ones(2, 3, dtype=torch.long), max_new_tokens=5)


def test_the_mask_token_in_a_prompt_is_an_ordinary_token(target: PreTrainedModel, draft: DFlashDraftModel) -> None:
    prompt = [5, MASK, 9, MASK]
    assert list(generate(draft, target, prompt, 20).token_ids) == plain_greedy(target, prompt, 20)
