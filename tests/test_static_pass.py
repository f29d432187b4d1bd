"""Passes of fixed shapes, and their replay, compute what the ordinary ones do, wherever they stand."""

from __future__ import annotations

import copy
import gc
import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash_core import attention, dflash_generate, pairs, static_pass
from dflash_core.cuda_graphs import GraphedDraft, GraphedTarget, Replays, warm_up
from dflash_core.draft_model import DFlashDraftModel
from dflash_core.target import DecoderTarget
from dflash_core.toy import toy_tokenizer

from .conftest import VOCAB, tiny_draft, tiny_target
from .tape import Recorder

TAPS = (0, 2, 3)
WINDOW = {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True, "sliding_window": 6}


def tokens(n: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (1, n), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["grouped", "folded"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention as on the CPU, and as on a GPU."""
    if request.param == "folded":
        monkeypatch.setattr(attention, "TAKES_GROUPS", set())


@torch.inference_mode()
@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("n_context", [1, 64, 490])
def test_a_static_verification_is_an_ordinary_one(target: PreTrainedModel, n_context: int) -> None:
    exact = DecoderTarget(copy.deepcopy(target))
    rough = DecoderTarget(copy.deepcopy(target).to(torch.bfloat16))
    caches = [each.new_cache() for each in (exact, rough)]
    for each, cache in zip((exact, rough), caches, strict=True):
        cache.reserve(1024)
        for buffer in cache.buffers:
            buffer.fill_(1e4)  # what an earlier run left
        each.forward(tokens(n_context), cache, taps=(), last_only=False)
    errors: dict[str, list[float]] = {"static": [], "ordinary": []}
    for n in range(1, 18):
        ids, start = tokens(n, seed=n), torch.tensor([n_context])
        references = exact.forward(ids, caches[0], taps=TAPS, last_only=False)
        ordinary = rough.forward(ids, caches[1], taps=TAPS, last_only=False)
        for each, cache in zip((exact, rough), caches, strict=True):
            each.roll_back(cache, n_context)
        for end in (n_context + n, 1024):
            found = static_pass.verify(exact, caches[0], end, TAPS, ids, start)
            for a, b in zip(found, references, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        found = static_pass.verify(rough, caches[1], 1024, TAPS, ids, start)
        errors["static"].append((found[0] - references[0]).abs().mean().item())
        errors["ordinary"].append((ordinary[0] - references[0]).abs().mean().item())
    assert found[0].dtype == found[1].dtype == torch.bfloat16
    assert sum(errors["static"]) < 1.2 * sum(errors["ordinary"])


@torch.inference_mode()
@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("changes", [{}, WINDOW, {"is_causal": True}], ids=["full", "window", "causal"])
def test_a_static_draft_is_an_ordinary_one(target: PreTrainedModel, changes: dict[str, Any]) -> None:
    own, draft = DecoderTarget(copy.deepcopy(target)), tiny_draft(**changes)
    words = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0))[:40]
    for narrowed in (False, True):
        if narrowed:
            draft.narrow(words, own.head_of(words))
        for block_size in (2, 5, 17):
            ordinary, static = draft.new_cache(), draft.new_cache()
            features = torch.randn(1, 90, 64, generator=torch.Generator().manual_seed(block_size))
            first = 20  # the prompt
            for cache in (ordinary, static):
                draft.propose(cache, features[:, :first], tokens(1), block_size, own.embed, own.head)
            for n in {1, block_size // 2 + 1, block_size}:
                anchor, new = tokens(1, seed=n), features[:, first : first + n]
                expected = draft.propose(ordinary, new, anchor, block_size, own.embed, own.head)
                padded = torch.full((1, block_size, 64), torch.nan)  # what is behind the context must not matter
                padded[:, :n] = new
                (found,) = static_pass.propose(
                    draft, static, 512, own.embed, own.head, padded, torch.tensor([n]), anchor, torch.tensor(static.lengths)
                )
                static.lengths[0] += n
                first += n
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def graphed(target: PreTrainedModel, capacity: int = 512) -> tuple[GraphedDraft, GraphedTarget, Recorder]:
    """The replayed pair of `target` and `tiny_draft`, with tapes for graphs."""
    recorder, plain = Recorder(), tiny_draft()
    draft = GraphedDraft(plain.config).eval()
    draft.load_state_dict(plain.state_dict())
    own = GraphedTarget(copy.deepcopy(target))
    own.replays, draft.replays = Replays(recorder, capacity), Replays(recorder, capacity)
    return draft, own, recorder


@pytest.mark.parametrize("rule", ["match", "block"])
def test_a_replayed_run_is_an_ordinary_one(target: PreTrainedModel, rule: str) -> None:
    draft, own, recorder = graphed(target)
    for block_size in (1, 5, 16, 5):
        options: dict[str, Any] = {"max_new_tokens": 9, "block_size": block_size, "rule": rule, "temperature": 0.7, "seed": 3}
        expected = dflash_generate(tiny_draft(), target, tokens(7), **options)
        found = dflash_generate(draft, own, tokens(7), **options)
        assert found.token_ids == expected.token_ids
        assert [block.drafted for block in found.blocks] == [block.drafted for block in expected.blocks]
    assert len(recorder.tapes) == 5  # the target's of three block sizes, the draft's of two
    assert all(tape.n_replays >= 2 for tape in recorder.tapes)


@torch.inference_mode()
def test_replays_follow_inputs_positions_and_roll_backs(target: PreTrainedModel) -> None:
    """What changes from pass to pass reaches the recording: tokens, their position, and how much context is new."""
    draft, own, recorder = graphed(target)
    plain_target, plain_draft = DecoderTarget(copy.deepcopy(target)), tiny_draft()
    caches = [each.new_cache() for each in (own, draft, plain_target, plain_draft)]
    block_size = 6
    for each, cache in ((own, caches[0]), (plain_target, caches[2])):
        each.forward(tokens(30), cache, taps=(0, 2), last_only=True)
    kept = None
    for step, n in enumerate([4, 1, 6, 2, 5, 3, 1, 6]):
        ids = tokens(block_size, seed=step)
        found = own.forward(ids, caches[0], taps=(0, 2), last_only=False)
        expected = plain_target.forward(ids, caches[2], taps=(0, 2), last_only=False)
        drafted = [
            each.propose(cache, features[:, :n], ids[:, :1], block_size, plain.embed, plain.head)
            for each, cache, features, plain in (
                (draft, caches[1], found[1], own),
                (plain_draft, caches[3], expected[1], plain_target),
            )
        ]
        for a, b in ((found[0], expected[0]), (found[1], expected[1]), (drafted[0], drafted[1])):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        length = own.cache_length(caches[0]) - block_size + n
        own.roll_back(caches[0], length)
        plain_target.roll_back(caches[2], length)
        if kept is not None:  # what a pass returned stays as it was
            torch.testing.assert_close(kept[0], kept[1])
        kept = found[0], found[0].clone()
    assert [tape.n_replays for tape in recorder.tapes] == [7, 7]


def test_a_run_outgrows_its_room(target: PreTrainedModel) -> None:
    """The lent cache moves when it grows: recordings over the old one are not used again."""
    target.config.max_position_embeddings = 4096
    draft, own, recorder = graphed(target)
    options: dict[str, Any] = {"max_new_tokens": 9, "block_size": 4, "rule": "match", "seed": 1, "temperature": 0.5}
    plain = DecoderTarget(target)
    for n_prompt, n_recordings in ((505, 4), (1020, 8), (505, 12)):
        prompt = tokens(n_prompt, seed=n_recordings)  # another one each time: what an old cache holds must not help
        expected = dflash_generate(tiny_draft(), plain, prompt, **options)
        found = dflash_generate(draft, own, prompt, **options)
        assert found.token_ids == expected.token_ids
        assert len(recorder.tapes) <= n_recordings
    last = len(recorder.tapes)
    dflash_generate(draft, own, tokens(505), **options)
    assert len(recorder.tapes) == last, "a room that has been recorded once stays so"


def test_a_recording_that_fails_leaves_the_plain_way(target: PreTrainedModel, caplog: pytest.LogCaptureFixture) -> None:
    draft, own, _ = graphed(target)

    def fail(compute: Any, device: torch.device) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    own.replays = Replays(fail)
    options: dict[str, Any] = {"max_new_tokens": 20, "block_size": 4, "rule": "match", "seed": 1}
    with caplog.at_level(logging.WARNING):
        found = dflash_generate(draft, own, tokens(9), **options)
    assert found.token_ids == dflash_generate(tiny_draft(), target, tokens(9), **options).token_ids
    assert [record.message for record in caplog.records] == [
        "CUDA graphs are off, and all passes go the plain way: operation not permitted when stream is capturing"
    ]
    assert own.replays.reason == "operation not permitted when stream is capturing"


def test_one_run_at_a_time_has_the_lent_cache(target: PreTrainedModel) -> None:
    _, own, _ = graphed(target)
    first, second = own.new_cache(), own.new_cache()
    lent = first.buffers
    assert second.buffers is not lent and own.new_cache(3).buffers is not lent
    with torch.inference_mode():
        own.forward(tokens(5), first, taps=(), last_only=True)
    assert lent[0].any()
    del first
    gc.collect()
    third = own.new_cache()
    assert third.buffers is lent and third.length == 0 and not any(buffer.any() for buffer in lent)


def test_the_warm_up_records_what_a_run_needs(target: PreTrainedModel) -> None:
    draft, own, recorder = graphed(target)
    warm_up(draft, own)
    n_recorded = len(recorder.tapes)
    dflash_generate(draft, own, tokens(9), max_new_tokens=20, seed=1)
    dflash_generate(draft, own, tokens(9), max_new_tokens=20, seed=1, block_size=1)
    assert len(recorder.tapes) == n_recorded == 3


def test_a_graphed_draft_is_read_like_any_other(tmp_path: Path) -> None:
    plain = tiny_draft()
    plain.save_pretrained(tmp_path)
    loaded = GraphedDraft.from_pretrained(tmp_path)
    assert isinstance(loaded, GraphedDraft) and isinstance(loaded, DFlashDraftModel)
    for name, parameter in plain.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], parameter)


def test_a_pair_is_replayed_where_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From the files to the text. Where recording fails, as it does without CUDA, the pair works all the same."""
    tiny_target("qwen3").save_pretrained(tmp_path / "target")
    toy_tokenizer().save_pretrained(tmp_path / "target")
    tiny_draft().save_pretrained(tmp_path / "draft")
    options: dict[str, Any] = {"target": str(tmp_path / "target"), "draft": str(tmp_path / "draft"), "device": "cpu"}
    plain = pairs.load_pair(**options)
    assert type(plain.target) is DecoderTarget and type(plain.draft) is DFlashDraftModel
    monkeypatch.setattr(pairs, "REPLAYED_ON", {"cpu"})
    pair = pairs.load_pair(**options)
    assert isinstance(pair.target, GraphedTarget) and isinstance(pair.draft, GraphedDraft)
    assert pair.target.replays.reason and pair.draft.replays.reason and len(caplog.records) == 2
    texts = [dflash_generate(each.draft, each.target, tokens(9), max_new_tokens=20, seed=1).token_ids for each in (plain, pair)]
    assert texts[0] == texts[1]
    assert not isinstance(pairs.load_pair(**options, fast=False).target, GraphedTarget)


def test_folded_attention_is_grouped_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """For rows at different places too."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(*shape, generator=generator) for shape in ((3, 5, 6, 8), (3, 2, 40, 8), (3, 2, 40, 8)))
    visible = torch.arange(40) <= torch.tensor([[3], [20], [34]])[:, :, None] + torch.arange(5)[:, None]
    results = []
    for grouped in ({"cpu"}, set()):
        monkeypatch.setattr(attention, "TAKES_GROUPS", grouped)
        mask = attention.mask_for(visible, 3, torch.float32)
        results += [attention.attention(query, key, value, mask), attention.attention(query, key, value, None)]
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[1], results[3])


def test_the_gpu_script_runs_on_tiny_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent.parent / "benchmarks" / "gpu.py"
    spec = importlib.util.spec_from_file_location("gpu_script", path)
    assert spec and spec.loader
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    options = ["--device", "cpu", "--tiny", "--tokens", "5", "--rounds", "1", "--minutes", "0", "--contexts", "40", "90"]
    script.main([*options, "--shapes", "tiny Qwen3", "--out", str(tmp_path / "gpu.json")])
    results, report = json.loads((tmp_path / "gpu.json").read_text()), capsys.readouterr().out
    checks = results["tiny Qwen3"]["checks"]
    assert all(value == "yes, 5 tokens" for name, value in checks.items() if "equal texts" in name)
    assert checks["recording"] == "no fault"
    assert all(value > 0 for values in results["tiny Qwen3"]["tokens_per_second"].values() for value in values)
    for row in ("| ours, B = 16, graphs |", "| transformers generate |", "| dflash 0.1.0, B = 8 |", "| 90 |"):
        assert row in report
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            script.main([])
        assert "torch sees no CUDA device here. To try the script itself: --device cpu --tiny" in capsys.readouterr().err
