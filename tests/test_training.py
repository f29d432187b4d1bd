"""Making a draft: its data is what the target says, its training is what decoding will be, and a stopped run loses nothing."""

from __future__ import annotations

import argparse
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from dflash_core import dflash_generate
from dflash_core.decoder import Decoder
from dflash_core.draft_model import DFlashDraftModel
from dflash_core.metrics import run_stats
from dflash_core.pairs import load_pair
from dflash_core.toy import toy_tokenizer
from dflash_core.training import evaluate, synthesise, train
from dflash_core.training.batches import make_batch
from dflash_core.training.data import Conversation, Shards, word_runs, write_shard
from dflash_core.training.decode_rows import Request, decode_rows
from dflash_core.training.loss import GuessLoss, LossMix
from dflash_core.training.parallel import block_hidden, visible
from dflash_core.training.warm_start import new_draft
from dflash_ui import training_chart

from .conftest import MASK, VOCAB, tiny_draft, tiny_target

TEMPLATE = "{% for m in messages %}the {{ m.content }} {% endfor %}{% if add_generation_prompt %}cat{% endif %}"
TAPS = [0, 2]


def tokens(n: int, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (rows, n), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module", params=["qwen3"])
def target_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with a tokenizer and a chat template: nothing of what makes a draft is tied to SmolLM2."""
    path = tmp_path_factory.mktemp(request.param)
    tiny_target(request.param).save_pretrained(path)
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


def synthesise_some(target_path: Path, out: Path, *more: str) -> None:
    synthesise.main(
        [
            *("--target", str(target_path), "--out", str(out), "--taps", "0", "2", "--dtype", "float32", "--rows", "5"),
            *("--prompts", "40", "--responses", "2", "--max-new-tokens", "24", "--tokens", "1500", "--device", "cpu", *more),
        ]
    )


@pytest.fixture(scope="module")
def data(target_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "shards"
    synthesise_some(target_path, out)
    return out


def train_options(target_path: Path, data: Path, out: Path, *more: str) -> list[str]:
    return [
        *("--target", str(target_path), "--data", str(data), "--out", str(out), "--device", "cpu", "--float32"),
        *("--layers", "2", "--mask-token", str(MASK), "--steps", "8", "--conversations", "3", "--block-tokens", "32"),
        *("--words", "32", "--evaluate-every", "4", "--held-out-one-in", "5", *more),
    ]


# Data


@torch.inference_mode()
def test_rows_say_what_plain_decoding_says(target: PreTrainedModel) -> None:
    """At temperature 0, whatever the number of rows, their lengths, and what the rows held before."""
    decoder = Decoder(copy.deepcopy(target))
    prompts = [tokens(n, seed=n)[0].tolist() for n in (2, 9, 5, 3, 7)]
    requests = [Request(prompt, (0.0, 0.0), 6 + 5 * i) for i, prompt in enumerate(prompts)]
    expected = []
    for request in requests:
        prompt = torch.tensor([request.prompt_ids])
        plain = dflash_generate(None, target, prompt, max_new_tokens=request.max_new_tokens, stop_token_ids=[5], seed=0)
        expected += [(*request.prompt_ids, *plain.token_ids)] * 2
    for rows in (1, 3, 64):
        found = list(decode_rows(decoder, requests, rows=rows, stop_token_ids=[5], generator=torch.Generator(), taps=(0, 3)))
        assert sorted(tuple(c.token_ids.tolist()) for c in found) == sorted(expected)
        for c in found:
            ids = c.token_ids[None, :-1]
            states = target(ids, output_hidden_states=True).hidden_states
            library = torch.stack([states[1], states[4], states[4]], dim=2)[0]
            torch.testing.assert_close(c.states[:-1].float(), library, rtol=2e-2, atol=2e-2)  # kept in bfloat16
            assert not c.states[-1].any()


def test_temperatures_are_those_asked_for(target: PreTrainedModel) -> None:
    """Two answers to one prompt differ above temperature 0, and one seed gives one text."""
    decoder = Decoder(target)
    requests = [Request([1, 2, 3], (0.0, 1.0, 1.0), 12)]

    def answers(seed: int) -> list[tuple[float, list[int]]]:
        generator = torch.Generator().manual_seed(seed)
        found = decode_rows(decoder, requests, rows=8, stop_token_ids=[], generator=generator, taps=())
        return sorted((c.temperature, c.token_ids.tolist()) for c in found)

    first = answers(0)
    assert [temperature for temperature, _ in first] == [0.0, 1.0, 1.0]
    assert first[1][1] != first[2][1]
    assert first == answers(0) and first[0] == answers(1)[0] and first[1:] != answers(1)[1:]


def test_shards_hold_conversations_and_stopped_work_is_taken_up(target_path: Path, data: Path, tmp_path: Path) -> None:
    paths = sorted(data.glob("*.safetensors"))
    assert len(paths) >= 2 and not list(data.glob("*partial*"))
    shards = Shards([data])
    assert shards.taps == TAPS
    assert {round(shards[i].temperature, 3) for i in range(len(shards))} == set(synthesise.TEMPERATURES)
    # The second shard is lost, and the first is as it was: what is made again is the same.
    shutil.copytree(data, tmp_path / "again")
    (tmp_path / "again" / paths[1].name).unlink()
    synthesise_some(target_path, tmp_path / "again")
    before, after = load_file(paths[1]), load_file(tmp_path / "again" / paths[1].name)
    assert before.keys() == after.keys() and all(before[name].equal(after[name]) for name in before)


def test_given_conversations_get_the_same_states(target_path: Path, data: Path, tmp_path: Path) -> None:
    shards = Shards([data])
    lines = []
    for i in range(len(shards)):
        c = shards[i]
        ids, n = c.token_ids.tolist(), c.prompt_length
        lines.append(json.dumps({"prompt": ids[:n], "response": ids[n:], "temperature": c.temperature}))
    (tmp_path / "given.jsonl").write_text("\n".join(lines))
    synthesise_some(target_path, tmp_path / "out", "--given", str(tmp_path / "given.jsonl"))
    again = Shards([tmp_path / "out"])
    assert len(again) > 20
    for i in range(len(again)):
        assert again[i].token_ids.equal(shards[i].token_ids) and again[i].prompt_length == shards[i].prompt_length
        torch.testing.assert_close(again[i].states[:-1], shards[i].states[:-1], rtol=3e-2, atol=3e-2)


def test_what_resembles_held_out_texts_is_dropped(target_path: Path, data: Path, tmp_path: Path) -> None:
    shards = Shards([data])
    tokenizer = toy_tokenizer()
    texts = [tokenizer.decode(shards[i].token_ids.tolist()) for i in range(len(shards))]
    victim = next(text for text in texts if len(word_runs(text)) > 3)
    held_out = tmp_path / "held_out.txt"
    held_out.write_text(victim.upper() + "\n")
    synthesise_some(target_path, tmp_path / "out", "--held-out", str(held_out))
    kept = Shards([tmp_path / "out"])
    for i in range(len(kept)):
        assert not word_runs(victim) & word_runs(tokenizer.decode(kept[i].token_ids.tolist()))


def test_word_runs() -> None:
    assert word_runs("One, two three! four FIVE six seven eight nine") == {
        ("one", "two", "three", "four", "five", "six", "seven", "eight"),
        ("two", "three", "four", "five", "six", "seven", "eight", "nine"),
    }
    assert word_runs("too short") == set()


def shards_of(path: Path, lengths: tuple[int, ...] = (12, 30)) -> Shards:
    """Conversations whose token at position i is i, and whose states hold i too."""
    conversations = []
    for length in lengths:
        ids = torch.arange(length)
        states = ids[:, None, None].expand(length, 3, 4).float() + torch.tensor([0.0, 0.25, 0.5])[:, None]
        conversations.append(Conversation(ids, 5, 0.0, states))
    write_shard(path / "shard.safetensors", conversations, taps=TAPS)
    return Shards([path])


# Training is decoding


def test_labels_are_the_tokens_that_follow_and_states_those_that_predict_them(tmp_path: Path) -> None:
    shards = shards_of(tmp_path)
    for block_size in (2, 5, 16):
        batch = make_batch(shards, [0, 1], [2], block_size, 40, torch.Generator().manual_seed(0))
        assert batch.features.shape == (2, 30, 4) and batch.features[1, 7].tolist() == [7.25] * 4
        for row, length in enumerate((12, 30)):
            anchors = batch.anchors[row]
            assert set(anchors.tolist()) <= set(range(5, length - 1)) and len(set(anchors.tolist())) > 4
            assert batch.anchor_ids[row].equal(anchors)
            for k in range(1, block_size):
                known = anchors + k < length
                assert batch.known[row, :, k - 1].equal(known)
                assert batch.labels[row, known, k - 1].equal(anchors[known] + k)
                assert batch.target_hidden[row, known, k - 1, 0].float().equal(anchors[known] + k - 1 + 0.5)


DRAFTS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6, "use_sliding_window": True},
    "two-sided window": {
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 5,
        "use_sliding_window": True,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAPS, "is_causal": False},
    },
}


@torch.no_grad()
@pytest.mark.parametrize("kind", DRAFTS)
def test_training_and_decoding_compute_the_same_draft(target: PreTrainedModel, kind: str) -> None:
    """Every block of a batch, in several conversations, against the block that the loop would draft there."""
    draft = tiny_draft(**DRAFTS[kind])
    embedding, head = target.get_input_embeddings(), target.get_output_embeddings()
    ids = tokens(20, rows=2)
    states = target(ids, output_hidden_states=True).hidden_states
    features = torch.cat([states[tap + 1] for tap in TAPS], dim=-1)
    anchors = torch.tensor([[1, 19, 7, 7, 12], [3, 4, 5, 18, 11]])
    for size in (2, 8):
        blocks = torch.full((2, 5, size), MASK)
        blocks[..., 0] = ids.gather(1, anchors)
        found = head(block_hidden(draft, features, embedding(blocks), anchors)[..., 1:, :])
        for row in range(2):
            for i, anchor in enumerate(anchors[row].tolist()):
                expected = draft.propose(
                    draft.new_cache(),
                    features[row : row + 1, :anchor],
                    ids[row : row + 1, anchor : anchor + 1],
                    size,
                    embedding,
                    head,
                )
                torch.testing.assert_close(found[row, i], expected[0], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", DRAFTS)
def test_a_block_sees_what_lies_before_its_anchor_and_itself(kind: str) -> None:
    draft = tiny_draft(**DRAFTS[kind])
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 20, 64, generator=generator)
    blocks = torch.randn(1, 3, 4, 32, generator=generator)
    anchors = torch.tensor([[6, 9, 15]])
    before = block_hidden(draft, features, blocks, anchors)

    def changed(place: int | None = None, block: int | None = None) -> list[bool]:
        more_features, more_blocks = features.clone(), blocks.clone()
        if place is not None:
            more_features[0, place] += 3.0
        if block is not None:
            more_blocks[0, block] += 3.0
        after = block_hidden(draft, more_features, more_blocks, anchors)
        return [not torch.equal(before[0, i], after[0, i]) for i in range(3)]

    assert changed(place=5) == [True, True, kind != "two-sided window"]
    assert changed(place=6) == [False, True, kind != "two-sided window"]
    assert changed(place=9) == [False, False, kind != "two-sided window"]
    assert changed(place=14) == [False, False, True]
    for place in range(15, 20):
        assert changed(place=place) == [False, False, False]
    for block in range(3):
        assert changed(block=block) == [i == block for i in range(3)]


def test_the_mask_counts_what_is_visible() -> None:
    anchors = torch.tensor([[2, 5]])
    to_context, to_block = visible(anchors, 6, 3)
    assert to_context[0].int().tolist() == [[1, 1, 0, 0, 0, 0]] * 3 + [[1, 1, 1, 1, 1, 0]] * 3
    assert to_block.int().tolist() == [[1, 1, 1]] * 3
    to_context, to_block = visible(anchors, 6, 3, is_causal=True, window=2)
    assert to_context.sum(-1).tolist() == [[1, 0, 0, 1, 0, 0]]  # the nearest one, at the anchor alone
    assert to_block.int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize("mix", [LossMix(1, 0, 0), LossMix(0, 1, 0), LossMix(0, 0, 1), LossMix(0.2, 0.5, 0.7)])
def test_the_loss_and_its_gradient(mix: LossMix) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 6, generator=generator, requires_grad=True)
    target_hidden, head = torch.randn(300, 6, generator=generator), torch.randn(11, 6, generator=generator)
    labels, weights = torch.randint(11, (300,), generator=generator), torch.rand(300, generator=generator)
    log_q, p = (hidden @ head.T).log_softmax(-1), (target_hidden @ head.T).softmax(-1)
    tokens_part = -log_q.gather(-1, labels[:, None])[:, 0]
    overlap = torch.minimum(p, log_q.exp()).sum(-1)
    expected = mix.tokens * tokens_part - mix.distillation * (p * log_q).sum(-1) + mix.overlap * (1 - overlap)
    (expected * weights).sum().backward()
    slope = hidden.grad
    assert slope is not None
    hidden.grad = None
    loss: Any = GuessLoss.apply(hidden, target_hidden, labels, weights, head, mix)
    (2 * loss).backward()
    torch.testing.assert_close(loss, (expected * weights).sum())
    torch.testing.assert_close(hidden.grad, 2 * slope)


def test_a_new_draft_begins_as_the_target_s_upper_layers(target: PreTrainedModel, tmp_path: Path) -> None:
    draft: Any = new_draft(target, tokens(20), taps=TAPS, n_layers=2, block_size=8, mask_token_id=MASK)
    upper: Any = target
    for mine, theirs in zip(draft.layers, upper.model.layers[-2:], strict=True):
        assert mine.mlp.down_proj.weight.equal(theirs.mlp.down_proj.weight)
        assert mine.self_attn.q_proj.weight.equal(theirs.self_attn.q_proj.weight)
    draft.save_pretrained(tmp_path)
    loaded = DFlashDraftModel.from_pretrained(tmp_path)
    assert loaded.target_layer_ids == TAPS and loaded.mask_token_id == MASK and loaded.block_size == 8
    with pytest.raises(ValueError, match="1 to 4 layers"):
        new_draft(target, tokens(20), taps=TAPS, n_layers=9, block_size=8, mask_token_id=MASK)
    with pytest.raises(ValueError, match="different layers"):
        new_draft(target, tokens(20), taps=[1, 1], n_layers=2, block_size=8, mask_token_id=MASK)


def weights_of(path: Path) -> dict[str, Tensor]:
    return DFlashDraftModel.from_pretrained(path / "draft").state_dict()


def test_a_stopped_run_ends_as_if_it_had_not_been_stopped(target_path: Path, data: Path, tmp_path: Path) -> None:
    train.main(train_options(target_path, data, tmp_path / "whole"))
    options = train.parse_arguments(train_options(target_path, data, tmp_path / "parts"))
    trainer = train.make_trainer(options)
    for _ in range(3):
        trainer.train_step(trainer.batch(trainer.step))
    trainer.save(options.out)
    trainer.train_step(trainer.batch(trainer.step))  # this one is lost
    train.main(train_options(target_path, data, tmp_path / "parts"))
    whole, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    assert all(whole[name].equal(parts[name]) for name in whole)
    state = torch.load(tmp_path / "parts" / "state.pt", weights_only=True)
    assert state["step"] == 8
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 4, 8]
    for figures in (line[side] for line in lines for side in ("held_out", "training")):
        for name in ("agreement", "overlap"):
            value, low, high = figures[f"{name}_at_1"]
            assert value == pytest.approx(figures[name][0])
            assert low is None or low < value < high
    assert all(0 <= value <= 1 for value in lines[0]["held_out"]["agreement"] + lines[0]["held_out"]["overlap"])
    with pytest.raises(SystemExit, match="a draft of another shape"):
        train.main(train_options(target_path, data, tmp_path / "parts", "--layers", "1"))


def test_steps_draw_from_the_block_sizes_and_temperatures_asked_for(target_path: Path, data: Path, tmp_path: Path) -> None:
    more = ("--block-sizes", "3", "7", "--temperatures", "0.5", "0.8")
    trainer = train.make_trainer(train.parse_arguments(train_options(target_path, data, tmp_path, *more)))
    assert {trainer.batch(step).labels.shape[-1] + 1 for step in range(20)} == {3, 7}
    temperatures = [round(trainer.shards[i].temperature, 3) for i in trainer.training]
    assert set(temperatures) == {0.5, 0.8} == {trainer.shards.temperature(i) for i in trainer.training}
    # What is measured on stays the same, so that runs can be compared.
    assert 0.0 in {trainer.shards.temperature(i) for i in trainer.held_out}


def test_a_save_that_is_broken_off_leaves_the_last_draft_whole(
    target_path: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = train.make_trainer(train.parse_arguments(train_options(target_path, data, tmp_path)))
    trainer.save(tmp_path)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "draft").iterdir()}

    def broken_off(model: Any, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "model.safetensors").write_bytes(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DFlashDraftModel, "save_pretrained", broken_off)
        with pytest.raises(KeyboardInterrupt):
            trainer.save(tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "draft").iterdir()} == whole
    trainer.save(tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "draft").iterdir()} == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "state.pt"]


def test_every_seed_has_batches_of_its_own(target_path: Path, data: Path, tmp_path: Path) -> None:
    def anchors(seed: int, step: int) -> list[int]:
        options = train_options(target_path, data, tmp_path, "--seed", str(seed), "--block-sizes", "4")
        found: list[int] = train.make_trainer(train.parse_arguments(options)).batch(step).anchors.flatten().tolist()
        return found

    assert anchors(0, 3) == anchors(0, 3)
    assert anchors(0, 3) != anchors(1, 3) != anchors(0, 4)


def test_training_learns_and_the_draft_serves(target_path: Path, data: Path, tmp_path: Path) -> None:
    """The whole path for a target that is not SmolLM2: better guesses on what it was trained on, and a pair that loads."""
    train.main(train_options(target_path, data, tmp_path, "--steps", "150", "--learning-rate", "5e-3", "--evaluate-every", "25"))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["training"]["loss"][0] < lines[0]["training"]["loss"][0] - 0.2
    assert lines[-1]["training"]["overlap"][0] > lines[0]["training"]["overlap"][0]

    training_chart.main([str(tmp_path / "log.jsonl"), "--out", str(tmp_path / "curves.html")])
    figure = training_chart.training_figure(lines)
    assert len(figure.data) == 3 * len(training_chart.POSITIONS) * 2
    assert list(figure.data[0].y) == [line["held_out"]["loss"][0] for line in lines]
    assert "Training of the draft" in (tmp_path / "curves.html").read_text()

    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps({"one kind": ["the cat saw", "a dog"], "another": ["birds", "the old house"]}))
    arguments = ["--target", str(target_path), "--draft", str(tmp_path / "draft"), "--prompts", str(prompts), "--tokens", "16"]
    grid = ["--temperatures", "0", "1", "--rules", "match", "speculative", "--block-sizes", "2", "8"]
    evaluate.main([*arguments, *grid, "--out", str(tmp_path / "evaluation")])
    cells = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert [(c["temperature"], c["rule"], c["block_size"]) for c in cells] == [
        *((0.0, "any", size) for size in (2, 8)),
        *((1.0, rule, size) for rule in ("match", "speculative") for size in (2, 8)),
    ]
    pair = load_pair(target=str(target_path), draft=str(tmp_path / "draft"), device="cpu", dtype="float32")
    runs = [
        dflash_generate(
            pair.draft, pair.target, pair.encode(prompt), max_new_tokens=16, stop_token_ids=pair.stop_token_ids,
            temperature=1.0, block_size=8, rule="speculative", seed=seed,
        )
        for seed, prompt in enumerate(["the cat saw", "a dog", "birds", "the old house"])
    ]  # fmt: skip
    stats = run_stats([block for run in runs for block in run.blocks], 8)
    low, high = cells[-1]["tau_low"], cells[-1]["tau_high"]
    assert cells[-1]["tau"] == pytest.approx(stats.tau) and (low is None or low <= stats.tau <= high)
    assert [p["accepted"] for p in cells[-1]["positions"]] == [p.accepted for p in stats.positions]
    # A stopped evaluation goes on with what is missing.
    name = evaluate.cell_name(1.0, "match", 2)
    (tmp_path / "evaluation" / name).unlink()
    kept = tmp_path / "evaluation" / evaluate.cell_name(1.0, "match", 8)
    kept.write_text(kept.read_text().replace('"repeated_share": 0', '"repeated_share": 9'))
    evaluate.main([*arguments, *grid, "--out", str(tmp_path / "evaluation")])
    again = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert [c["repeated_share"] >= 9 for c in again] == [False, False, False, True, False, False]
    assert "| 1 | speculative | " in (tmp_path / "evaluation" / "evaluation.md").read_text()
    # What is there is not taken for that of other options, nor for that of a draft that has changed in its place.
    with pytest.raises(SystemExit, match=r"of another measurement \(it differs in tokens, first_seed\): choose another"):
        evaluate.main([*arguments, "--tokens", "17", "--first-seed", "5", "--out", str(tmp_path / "evaluation")])
    train.main(train_options(target_path, data, tmp_path, "--steps", "151", "--learning-rate", "5e-3", "--evaluate-every", "25"))
    with pytest.raises(SystemExit, match=r"it differs in draft\)"):
        evaluate.main([*arguments, *grid, "--out", str(tmp_path / "evaluation")])
    five = ["--first-seed", "5", "--temperatures", "1", "--rules", "speculative", "--block-sizes", "8"]
    evaluate.main([*arguments, *five, "--out", str(tmp_path / "other")])
    assert json.loads((tmp_path / "other" / "evaluation.json").read_text())[0]["first_seed"] == 5


def test_a_saved_draft_fits_float16_and_says_frequent_words(target_path: Path, data: Path, tmp_path: Path) -> None:
    options = train.parse_arguments(train_options(target_path, data, tmp_path, "--draft-words", "20"))
    trainer = train.make_trainer(options)
    trainer.average["fc.weight"] *= 1e5  # as where the target's states are huge
    trainer.save(tmp_path)
    saved = DFlashDraftModel.from_pretrained(tmp_path / "draft", dtype=torch.float16)
    batch = make_batch(trainer.shards, trainer.held_out[:4], TAPS, 2, 1, torch.Generator())
    with torch.no_grad():
        found = saved.hidden_norm(saved.fc(batch.features.half()))
        expected = torch.nn.functional.rms_norm(batch.features.float() @ trainer.average["fc.weight"].T, (32,))
    assert trainer._excess() > 1 and saved.fc(batch.features.half()).isfinite().all()
    is_token = batch.features.abs().sum(-1) > 0
    torch.testing.assert_close(found.float()[is_token], expected[is_token] * saved.hidden_norm.weight, rtol=2e-2, atol=2e-2)

    counts = trainer.shards.token_counts(VOCAB)
    said = saved.draft_token_ids
    assert len(said) == 20 and said == sorted(said)
    again = train.parse_arguments(
        train_options(target_path, data, tmp_path, "--draft-words", "0", "--init", str(tmp_path / "draft"))
    )
    train.make_trainer(again).save(tmp_path / "whole")
    assert DFlashDraftModel.from_pretrained(tmp_path / "whole" / "draft").draft_token_ids == []
    assert counts[said].min() >= counts[[token for token in range(VOCAB) if token not in said]].max()


def test_what_cannot_work_is_said(target_path: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no training data in"):
        train.main(train_options(target_path, tmp_path, tmp_path / "out"))
    with pytest.raises(SystemExit, match=r"the data has states of layers \[0, 2\], not of \[1\]"):
        train.main(train_options(target_path, data, tmp_path / "out", "--taps", "1", "2"))
    with pytest.raises(SystemExit, match="block sizes must be at least 2"):
        train.main(train_options(target_path, data, tmp_path / "out", "--block-sizes", "1", "4"))
    for seed in ("-1", "4096"):
        with pytest.raises(SystemExit, match=f"seed must be 0 to 4,095, not {seed}"):
            train.main(train_options(target_path, data, tmp_path / "out", "--seed", seed))
        with pytest.raises(SystemExit, match=f"seed must be 0 to 4,095, not {seed}"):
            synthesise_some(target_path, tmp_path / "out", "--seed", seed)
    with pytest.raises(SystemExit, match="block_tokens must be at least 40"):
        train.main(train_options(target_path, data, tmp_path / "out", "--block-sizes", "40"))
    with pytest.raises(SystemExit, match="there is too little data"):
        train.main(train_options(target_path, data, tmp_path / "out", "--temperatures", "3", "4"))
    with pytest.raises(SystemExit, match="the target's layers are 0 to 3"):
        synthesise.main(["--target", str(target_path), "--out", str(tmp_path), "--taps", "4", "--device", "cpu"])
    evaluation = ["--target", str(target_path), "--draft", str(target_path), "--out", str(tmp_path / "out")]
    (tmp_path / "prompts.json").write_text('["a prompt"]')
    with pytest.raises(SystemExit, match="must be JSON with lists of prompts by kind"):
        evaluate.main([*evaluation, "--prompts", str(tmp_path / "prompts.json")])
    (tmp_path / "given.jsonl").write_text('{"prompt": [1], "response": [2, 99999], "temperature": 0}')
    with pytest.raises(SystemExit, match="line 1: must be a JSON object with token ids of the target"):
        synthesise_some(target_path, tmp_path / "out", "--given", str(tmp_path / "given.jsonl"))
    with pytest.raises(SystemExit, match="each layer once"):
        synthesise_some(target_path, tmp_path / "out", "--taps", "2", "2")
    with pytest.raises(SystemExit, match="the mask token must be below"):
        train.main(train_options(target_path, data, tmp_path / "out", "--mask-token", "99999999"))
    with pytest.raises(SystemExit, match="temperatures must be the lowest and the highest"):
        train.main(train_options(target_path, data, tmp_path / "out", "--temperatures", "1", "0"))
    with pytest.raises(SystemExit, match="nothing to learn from"):
        train.main(train_options(target_path, data, tmp_path / "out", "--mix", "0", "0", "0"))
    assert not (tmp_path / "out").exists()


WRONG_VALUES: dict[Any, dict[tuple[str, ...], str]] = {
    train: {
        **{("--steps", value): "must be at least 1, not " for value in ("0", "-3")},
        ("--layers", "two"): "must be a whole number, not 'two'",
        ("--mask-token", "-1"): "must be at least 0, not -1",
        ("--mix", "-1", "1", "1"): "must be a number, at least 0, not '-1'",
        ("--averaging", "1.5"): "must be a number, 0 to 0.99999, not '1.5'",
        ("--learning-rate", "nan"): "must be a number, at least 1e-09, not 'nan'",
        ("--evaluate-every", "0"): "must be at least 1, not 0",
        ("--held-out-one-in", "1"): "must be at least 2, not 1",
        ("--init", "/nowhere"): "there is no directory /nowhere",
        ("--device", "quux"): "must be cpu or cuda",
    },
    synthesise: {
        ("--tokens", "-1"): "must be at least 1, not -1",
        ("--rows", "0"): "must be at least 1, not 0",
        ("--part", "3", "2"): "I must be 0 to N − 1, not 3 of 2",
        ("--part", "0", "0"): "I must be 0 to N − 1, not 0 of 0",
        ("--held-out", "/nowhere"): "there is no file /nowhere",
        ("--target", "/nowhere"): "there is no directory /nowhere",
    },
    evaluate: {
        ("--temperatures", "-1"): "must be a number, at least 0, not '-1'",
        ("--block-sizes", "0"): "must be at least 1, not 0",
        ("--prompts", "/nowhere"): "there is no file /nowhere",
        ("--part", "5", "2"): "I must be 0 to N − 1",
    },
}


@pytest.mark.parametrize(("tool", "wrong"), [(tool, wrong) for tool, values in WRONG_VALUES.items() for wrong in values])
def test_a_wrong_value_is_told_before_anything_runs(
    tool: Any, wrong: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    required = ["--data", str(tmp_path)] if tool is train else []
    with pytest.raises(SystemExit):
        tool.main([*required, "--out", str(tmp_path / "out"), *wrong])
    assert WRONG_VALUES[tool][wrong] in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        tool.main([*required, "--out", str(tmp_path / "file")])
    assert "is a file; a directory is needed" in capsys.readouterr().err


def test_what_changed_since_a_run_was_begun_is_told(
    target_path: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train.main(train_options(target_path, data, tmp_path))
    assert "was begun with" not in capsys.readouterr().err
    train.main(train_options(target_path, data, tmp_path, "--steps", "9", "--seed", "5"))
    told = capsys.readouterr().err
    assert "goes on at step 8 of a run that was begun with steps = 8, now 9" in told and "seed = 0, now 5" in told


def test_default_taps() -> None:
    assert synthesise.default_taps(30, 3) == [1, 14, 27]
    assert synthesise.default_taps(36, 5) == [1, 9, 17, 25, 33]
    assert synthesise.default_taps(3, 5) == [1]


def test_help_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    for module in (synthesise, train, evaluate, training_chart):
        with pytest.raises(SystemExit):
            module.main(["--help"])
        assert "--out" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="is not the log of a training run"):
        training_chart.main(["nowhere.jsonl"])
    assert isinstance(train.parse_arguments(["--data", "a", "--out", "b"]), argparse.Namespace)


def test_held_out_prompts_are_forty_eight_of_eight_kinds() -> None:
    prompts = json.loads(evaluate.PROMPTS.read_text(encoding="utf-8"))
    assert len(prompts) == 8 and all(len(some) == 6 for some in prompts.values())
    assert len({prompt for some in prompts.values() for prompt in some}) == 48
