"""Many generations as rows of one batch: the tokens, blocks and numbers of each are those it has alone."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash_core import RULES, Block, SamplingParams, iter_blocks
from dflash_core.pairs import Pair
from dflash_core.rows import Request, iter_rows
from dflash_core.sampling import Randomness, probabilities
from dflash_core.target import DecoderTarget
from dflash_core.toy import ToyDraft, ToyTarget
from dflash_ui.text import presets

from .conftest import OracleDraft, tiny_draft, tiny_target

# In float32, passes of other shapes give logits that differ by rounding, and probabilities by about as much. A draw could fall
# between the two: with the tiny pair and the toy none does on these seeds, so tokens are compared exactly.
TOLERANCE = 1e-3
MARGIN = 1e-4
LAWS = list(itertools.product(("match", "greedy-match", "speculative"), (0.0, 0.3, 0.7, 1.0)))


@functools.cache
def decoder_target(kind: str) -> DecoderTarget:
    return DecoderTarget(tiny_target(kind))


def toy_pair() -> tuple[ToyDraft, ToyTarget]:
    target = ToyTarget()
    return ToyDraft(target), target


def request(
    i: int = 0, *, rule: str = "match", temperature: float = 0.7, block_size: int = 4, cap: int = 16, length: int | None = None,
    stops: Sequence[int] = (), **more: Any,
) -> Request:  # fmt: skip
    """A request whose prompt, of its own length, and seed follow from i."""
    length = 1 + 7 * i % 23 if length is None else length
    ids = torch.randint(4, 40, (length,), generator=torch.Generator().manual_seed(i)).tolist()
    return Request(tuple(ids), SamplingParams(temperature, rule=rule, seed=i, **more), block_size, cap, tuple(stops))


def alone(draft: Any, target: Any, wanted: Request, **options: Any) -> list[Block]:
    return list(
        iter_blocks(
            draft, target, torch.tensor([wanted.prompt_ids]), max_new_tokens=wanted.max_new_tokens, params=wanted.params,
            block_size=wanted.block_size, stop_token_ids=wanted.stop_token_ids, **options,
        )
    )  # fmt: skip


def in_rows(draft: Any, target: Any, wanted: Sequence[Request], **options: Any) -> list[list[Block]]:
    runs: list[list[Block]] = [[] for _ in wanted]
    for index, block in iter_rows(draft, target, wanted, **options):
        runs[index].append(block)
    return runs


def decided(block: Block) -> tuple[Any, ...]:
    """All of a block but its numbers and times."""
    return (
        block.index, block.start, block.anchor, block.drafted, block.n_accepted, block.next_token, block.next_kind, block.emitted,
        block.finish_reason,
    )  # fmt: skip


def numbers(block: Block) -> list[float]:
    judged = [
        value
        for token in block.judged
        for value in (token.target_prob, token.draft_prob, token.accept_prob, token.target_entropy, token.draft_entropy)
    ]
    tables = [value for token in block.judged for row in token.table for value in row[1:]]
    return [*judged, *tables] if block.next_target_prob is None else [*judged, *tables, block.next_target_prob]


def assert_as_alone(draft: Any, target: Any, wanted: Sequence[Request], *, table_size: int = 0, **options: Any) -> None:
    found = in_rows(draft, target, wanted, table_size=table_size, **options)
    for each, run in zip(wanted, found, strict=True):
        expected = alone(draft, target, each, table_size=table_size)
        assert [decided(block) for block in run] == [decided(block) for block in expected], each
        for ours, theirs in zip(run, expected, strict=True):
            assert numbers(ours) == pytest.approx(numbers(theirs), abs=TOLERANCE)


@pytest.mark.parametrize("block_size", [1, 4, 8])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_rows_are_the_runs_one_by_one(kind: str, block_size: int) -> None:
    """Three rules × four temperatures side by side in fewer rows than there are requests, with prompts of many lengths."""
    wanted = [request(i, rule=rule, temperature=t, block_size=block_size) for i, (rule, t) in enumerate(LAWS)]
    if block_size > 1:
        wanted += [request(20, rule="coupled", block_size=block_size), request(21, rule="block", block_size=block_size)]
    wanted.append(request(22, length=90, block_size=block_size, top_p=0.9, top_k=30, draft_temperature=0.4))
    assert_as_alone(tiny_draft(), decoder_target(kind), wanted, rows=5, table_size=3)


@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_rows_of_the_toy_are_its_runs_one_by_one(block_size: int) -> None:
    wanted = [
        request(i, rule=rule, temperature=t, block_size=block_size, cap=30)
        for i, (rule, t) in enumerate(itertools.product(RULES, (0.0, 0.3, 0.7, 1.0)))
    ]
    assert_as_alone(*toy_pair(), wanted, rows=8, table_size=3)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0, "is_causal": False},
        {"is_causal": True},
    ],
    ids=["sliding", "sliding-two-sided", "causal"],
)
def test_drafts_that_do_not_see_everything(changes: dict[str, Any]) -> None:
    draft = tiny_draft(**changes)
    assert_as_alone(draft, decoder_target("llama"), [request(i, block_size=8) for i in range(4)], rows=3)


def test_a_narrowed_draft() -> None:
    draft, target = tiny_draft(), decoder_target("llama")
    words = torch.arange(0, 90, 3)
    draft.narrow(words, target.head_of(words))
    assert_as_alone(draft, target, [request(i, rule="speculative") for i in range(4)], rows=3)


@pytest.mark.parametrize("pair", ["toy", "llama"])
def test_mixed_block_sizes(pair: str) -> None:
    """Plain decoding among them. They come back to a block size that was there before, and to its caches."""
    draft, target = toy_pair() if pair == "toy" else (tiny_draft(), decoder_target("llama"))
    sizes = [4, 4, 1, 8, 8, 8, 1, 1, 2, 4]
    assert_as_alone(draft, target, [request(i, block_size=b, cap=9 + i) for i, b in enumerate(sizes)], rows=3)


def test_a_prompt_that_comes_again_at_once_is_prefilled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, target = tiny_draft(), decoder_target("llama")
    first, other = request(1, length=9), request(2, length=11)
    again = [dataclasses.replace(first, params=SamplingParams(t, seed=seed)) for seed, t in enumerate((0.0, 0.7, 1.0, 1.3))]
    wanted = [first, *again, other, first, dataclasses.replace(first, block_size=1)]
    assert_as_alone(draft, target, wanted, rows=3)
    prefills: list[int] = []
    forward = target.forward

    def watched(token_ids: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        prefills.extend([token_ids.shape[1]] if options["last_only"] else [])
        return forward(token_ids, *args, **options)

    monkeypatch.setattr(target, "forward", watched)
    in_rows(draft, target, wanted, rows=3)
    assert prefills == [9, 11, 9, 9]  # plain decoding taps no layer, so it cannot take what the draft's prefill gave


def test_a_pass_holds_one_block_size() -> None:
    """So that the time of a row is never that of another's larger block."""
    draft, target = toy_pair()
    shapes: list[tuple[int, ...]] = []
    forward = target.forward

    def watched(token_ids: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        shapes.append(tuple(token_ids.shape))
        return forward(token_ids, *args, **options)

    target.forward = watched  # type: ignore[method-assign]
    in_rows(draft, target, [request(i, block_size=b, length=20) for i, b in enumerate((3, 3, 3, 5, 5, 1))], rows=2)
    steps = [shape for shape in shapes if shape[1] != 20]
    assert [width for width, _ in itertools.groupby(shape[1] for shape in steps)] == [3, 5, 1]
    assert max(rows for rows, _ in steps) == 2


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 6])
def test_stops_and_caps_at_any_offset(offset: int) -> None:
    """Each row ends by itself, wherever in its block that is, and its successor begins with a clean row."""
    draft, target = tiny_draft(), decoder_target("llama")
    texts = [[token for block in alone(draft, target, request(i)) for token in block.emitted] for i in range(5)]
    wanted = [request(i, stops=[texts[i][offset + i]]) for i in range(5)]
    wanted += [request(i, cap=1 + offset + i) for i in range(5)]
    assert_as_alone(draft, target, wanted, rows=4)
    for run, text in zip(in_rows(draft, target, wanted[:5], rows=4), texts, strict=False):
        emitted = [token for block in run for token in block.emitted]
        assert emitted == text[: len(emitted)] and run[-1].finish_reason == "stop"


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_any_number_of_rows(rows: int) -> None:
    assert_as_alone(*toy_pair(), [request(i, rule="speculative") for i in range(6)], rows=rows)


def test_one_row_is_iter_blocks() -> None:
    draft, target = tiny_draft(), decoder_target("qwen3")
    for wanted in (request(3, rule="speculative", block_size=8, cap=40), request(4, block_size=1)):
        (found,), expected = in_rows(draft, target, [wanted], rows=1), alone(draft, target, wanted)
        assert [decided(block) for block in found] == [decided(block) for block in expected]
        assert [numbers(block) for block in found] == [numbers(block) for block in expected]


def test_the_cache_grows_with_the_longest_row() -> None:
    """Beyond its first capacity, while the others stay short."""
    draft, target = tiny_draft(), decoder_target("llama")
    target.max_positions = 700
    try:
        wanted = [request(0, length=480, cap=60), request(1, cap=60), request(2, length=560, cap=10), request(3, cap=10)]
        assert_as_alone(draft, target, wanted, rows=3)
    finally:
        target.max_positions = 512


@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_pair_that_cannot_batch_goes_row_by_row(which: str) -> None:
    draft: Any = tiny_draft() if which == "target" else OracleDraft(lambda position: position % 7)
    target: Any = tiny_target("llama") if which == "target" else decoder_target("llama")
    wanted = [request(i) for i in range(3)]
    assert_as_alone(draft, target, wanted, rows=8)
    order = [index for index, _ in iter_rows(draft, target, wanted)]
    assert order == sorted(order)


def test_without_details_nothing_is_recorded() -> None:
    wanted = [request(i) for i in range(3)]
    recorded, bare = (in_rows(*toy_pair(), wanted, record=record) for record in (True, False))
    assert [[decided(b) for b in run] for run in bare] == [[decided(b) for b in run] for run in recorded]
    assert any(block.judged for run in recorded for block in run)
    assert all(not block.judged and block.next_target_prob is None for run in bare for block in run)


def test_requests_are_drawn_when_a_row_is_free() -> None:
    drawn = 0

    def requests() -> Iterator[Request]:
        nonlocal drawn
        for i in range(100):
            drawn += 1
            yield request(i, cap=5 + i)

    run = iter_rows(*toy_pair(), requests(), rows=4)
    begun: set[int] = set()
    ended = 0
    for index, block in run:
        begun.add(index)
        ended += block.finish_reason is not None
        assert drawn <= 4 + ended
        if ended == 10:
            break
    run.close()
    assert next(run, None) is None and drawn < 20


def test_closing_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, target = toy_pair()
    run = iter_rows(draft, target, (request(i, cap=100) for i in range(50)), rows=3)
    list(itertools.islice(run, 9))
    run.close()
    assert not torch.is_inference_mode_enabled()

    def fails(*args: Any, **options: Any) -> Any:
        raise AssertionError("a pass after closing")

    monkeypatch.setattr(target, "forward", fails)
    assert next(run, None) is None


def test_the_time_of_all_blocks_is_the_time_in_the_loop() -> None:
    draft, target = tiny_draft(), decoder_target("llama")
    wanted = [request(i, block_size=8) for i in range(8)]
    in_rows(draft, target, wanted[:2])  # warm
    begun, inside, waited = time.perf_counter(), 0.0, 0.0
    for _, block in iter_rows(draft, target, wanted, rows=4, record=False):
        before = time.perf_counter()
        assert min(block.draft_seconds, block.verify_seconds, block.other_seconds) >= 0
        inside += block.seconds
        time.sleep(0.002)
        waited += time.perf_counter() - before
    spent = time.perf_counter() - begun - waited
    assert 0.7 * spent < inside <= spent


def test_what_cannot_work_is_said_when_it_is_drawn() -> None:
    draft, target = toy_pair()
    with pytest.raises(ValueError, match="rows must be at least 1"):
        iter_rows(draft, target, [], rows=0)
    with pytest.raises(ValueError, match="table_size must be"):
        iter_rows(draft, target, [], table_size=-1)
    assert list(iter_rows(draft, target, [])) == []
    run = iter_rows(draft, target, [request(0), Request((10**6,), SamplingParams(), 4, 5)], rows=2)
    assert next(run)[0] == 0
    with pytest.raises(ValueError, match="vocabulary ends at"):
        list(run)
    with pytest.raises(ValueError, match="needs a draft model"):
        list(iter_rows(None, target, [request(0)]))
    assert len(in_rows(None, target, [request(i, block_size=1) for i in range(3)])) == 3


@pytest.mark.embedded
@pytest.mark.parametrize("block_size", [4, 8])
def test_rows_of_the_embedded_pair_are_its_runs_one_by_one(embedded_pair: Pair, block_size: int) -> None:
    """Block for block, but for draws on a border. Above temperature 0 the draft's q spreads over thousands of words, so that
    the borders of its draws lie as close as rounding moves them: a row may part there, and is compared up to that place."""
    texts = itertools.cycle(list(presets().values())[:4])
    wanted = []
    for i, (rule, t) in enumerate(LAWS):
        preset = next(texts)
        ids = embedded_pair.encode(preset["prompt"], chat=preset["chat"])[0].tolist()
        params = SamplingParams(t, rule=rule, seed=i)
        wanted.append(Request(tuple(ids), params, block_size, 8, embedded_pair.stop_token_ids))
    draft, target = embedded_pair.draft, embedded_pair.target
    whole = 0
    for each, run in zip(wanted, in_rows(draft, target, wanted, rows=5), strict=True):
        expected = alone(draft, target, each)
        pairs = list(zip(run, expected, strict=False))
        same = next((n for n, (ours, theirs) in enumerate(pairs) if decided(ours) != decided(theirs)), len(pairs))
        for ours, theirs in pairs[:same]:
            assert numbers(ours) == pytest.approx(numbers(theirs), abs=TOLERANCE)
        if same < len(pairs):
            assert parts_at_a_border(draft, target, each, *pairs[same]), (each.params, *map(decided, pairs[same]))
            if RULES[each.params.rule].same_text:  # another draft, the same text
                assert [t for b in run for t in b.emitted] == [t for b in expected for t in b.emitted]
        else:
            assert len(run) == len(expected)
            whole += 1
    assert whole >= len(wanted) - 4


def parts_at_a_border(draft: Any, target: Any, wanted: Request, found: Block, expected: Block) -> bool:
    """Whether two blocks part at a draw that, in the numbers of the run alone, lies within MARGIN of going the other way."""
    params, rule = wanted.params, RULES[wanted.params.rule]
    p_logits, q_logits = logits_alone(draft, target, wanted, expected.index)
    p, q = (probabilities(each, temperature=params.temperature) for each in (p_logits, q_logits))
    draws = Randomness(params.seed, p.device).draws(expected.start, len(expected.drafted), fresh=rule.joint)
    at = next((k for k, (x, y) in enumerate(zip(found.drafted, expected.drafted, strict=True)) if x != y), None)
    if at is not None:
        x, y = found.drafted[at], expected.drafted[at]
        if rule.key == "greedy-match" or params.temperature == 0:
            return abs(float(q_logits[at, x] - q_logits[at, y])) < MARGIN
        return is_at_border(q[at], float(draws.draft[0, at]), x, y)
    k = min(found.n_accepted, expected.n_accepted)
    x, y = ([*block.drafted[: block.n_accepted], block.next_token][k] for block in (found, expected))
    if params.temperature == 0:
        return abs(float(p_logits[k, x] - p_logits[k, y])) < MARGIN
    if rule.same_text:  # a race
        scores = p_logits[k] / params.temperature - draws.race(p.shape[-1])[0, k].log()
        return abs(float(scores[x] - scores[y])) < MARGIN
    if found.n_accepted != expected.n_accepted:
        token = expected.drafted[k]
        return abs(float(draws.accept[0, k] * q[k, token] - p[k, token])) < MARGIN
    rejected = k < len(expected.drafted)
    weights, uniforms = ((p[k] - q[k]).clamp_min(0), draws.residual) if rejected else (p[k], draws.target)
    return is_at_border(weights, float(uniforms[0, k]), x, y)


def logits_alone(draft: Any, target: Any, wanted: Request, index: int) -> tuple[Tensor, Tensor]:
    """The target's and the draft's logits, (γ + 1, V) and (γ, V), that a block of the run alone is decided from."""
    seen: dict[str, Tensor] = {}

    def watched(model: Any, name: str) -> Any:
        method = getattr(model, name)

        def call(*args: Any, **options: Any) -> Any:
            result = method(*args, **options)
            seen[name] = (result[0] if isinstance(result, tuple) else result)[0]
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", watched(target, "forward"))
        patch.setattr(draft, "propose", watched(draft, "propose"))
        run = iter_blocks(
            draft, target, torch.tensor([wanted.prompt_ids]), max_new_tokens=wanted.max_new_tokens, params=wanted.params,
            block_size=wanted.block_size,
        )  # fmt: skip
        list(itertools.islice(run, index + 1))
        run.close()
    return seen["forward"], seen["propose"]


def is_at_border(weights: Tensor, uniform: float, x: int, y: int) -> bool:
    """Whether an inverse-CDF draw with this number lies within MARGIN of both tokens."""
    upto = weights.double().cumsum(-1) / weights.double().sum()
    first, last = sorted((x, y))
    low, high = float(upto[first]), float(upto[last - 1])
    return high - low < MARGIN and low - MARGIN < uniform < high + MARGIN
