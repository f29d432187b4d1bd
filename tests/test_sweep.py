"""Sweeps: the plan, resuming, the command line, its files, and what it says to bad input."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_core.pairs import Pair, load_pair
from dflash_core.sweep import command
from dflash_core.sweep.plan import Cell, Prompt, SweepError, SweepPlan
from dflash_core.sweep.prompts import parse_prompts, preset_names, preset_prompts
from dflash_core.sweep.results import sweep_results
from dflash_core.sweep.runs import encode_prompts, estimate_time, sweep_runs
from dflash_core.sweep.store import SweepDirectory
from dflash_core.trace import dump_trace, parse_trace
from dflash_core.whatif import expected_tau, rescore
from tests.sweeps import PROMPTS, plan, timeless

GRID = ["--temperatures", "0", "0.8", "--block-sizes", "2", "5", "--rules", "match", "speculative", "--tokens", "12"]


MILLION = {
    "temperatures": tuple(i / 100 for i in range(1000)),
    "block_sizes": tuple(range(2, 252)),
    "rules": ("match", "block", "naive", "coupled"),
}


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("toy")


@pytest.fixture(scope="module")
def processes() -> Any:
    """Makes processes that have imported everything: a start takes milliseconds, not seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.test_sweep", "transformers"])
    return context


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a whole sweep by the command line, three prompts on the toy pair."""
    directory = tmp_path_factory.mktemp("sweep")
    command.main(arguments(directory))
    return directory / "out"


def arguments(directory: Path, *more: str) -> list[str]:
    prompts = directory / "prompts.jsonl"
    if not prompts.exists():
        prompts.write_text("".join(json.dumps({"prompt": p.text, "name": p.name, "kind": p.kind}) + "\n" for p in PROMPTS[:3]))
    return ["--out", str(directory / "out"), "--pair", "toy", "--raw", "--prompts", str(prompts), *GRID, "--no-report", *more]


def child(directory: Path, said: Path, environment: dict[str, str], file_limit: int | None) -> None:
    """The command line in a process of its own; what it has to say goes into `said`."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    try:
        command.main(arguments(directory))
    except SystemExit as error:
        said.write_text(str(error))


def start(processes: Any, directory: Path, *, file_limit: int | None = None, **environment: str) -> Any:
    process = processes.Process(target=child, args=(directory, directory / "said", environment, file_limit))
    process.start()
    return process


def test_killed_at_twenty_places_it_ends_with_the_files_of_an_undisturbed_sweep(
    tmp_path: Path, undisturbed: Path, processes: Any
) -> None:
    whole = (undisturbed / "runs.jsonl").stat().st_size
    there = tmp_path / "out" / "runs.jsonl"
    arguments(tmp_path)
    for kill in range(20):
        process = start(processes, tmp_path)
        # Anywhere after its share of the sweep: in a run, in the writing of one, between two.
        share = whole * (kill + 0.5) / 23
        while process.is_alive() and not (there.exists() and there.stat().st_size >= share):
            time.sleep(0.0005)
        time.sleep(0.003 * (kill % 5))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"the sweep had ended before kill {kill}"
    # What a kill in the middle of a write can leave behind.
    with there.open("a") as file:
        file.write(there.read_text().splitlines()[0][:200])
    process = start(processes, tmp_path)
    process.join()
    assert process.exitcode == 0 and not (tmp_path / "said").exists()
    assert timeless(there) == timeless(undisturbed / "runs.jsonl")
    assert figures(tmp_path / "out") == figures(undisturbed)
    assert (tmp_path / "out" / "positions.csv").read_bytes() == (undisturbed / "positions.csv").read_bytes()


def test_two_processes_give_what_one_gives(tmp_path: Path, undisturbed: Path, processes: Any) -> None:
    arguments(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    both = [
        start(processes, tmp_path, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for rank in ("0", "1")
    ]
    seen = 0
    while any(process.is_alive() for process in both):
        seen = max(seen, len(list((tmp_path / "out").glob("runs.*-of-2.jsonl"))))
        time.sleep(0.001)
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0] and seen == 2
    assert timeless(tmp_path / "out" / "runs.jsonl") == timeless(undisturbed / "runs.jsonl")
    assert figures(tmp_path / "out") == figures(undisturbed)
    assert not list((tmp_path / "out").glob("runs.*-of-*"))


def test_a_full_disk_loses_nothing_finished(tmp_path: Path, undisturbed: Path, processes: Any) -> None:
    arguments(tmp_path)
    process = start(processes, tmp_path, file_limit=20_000)
    process.join()
    assert (
        "cannot be written" in (tmp_path / "said").read_text() and "start the same sweep again" in (tmp_path / "said").read_text()
    )
    there = tmp_path / "out" / "runs.jsonl"
    kept = timeless(there)
    expected = timeless(undisturbed / "runs.jsonl")
    assert kept and kept == expected[: len(kept)] and there.stat().st_size <= 20_000
    command.main(arguments(tmp_path))
    assert timeless(there) == expected


def test_the_outputs(undisturbed: Path) -> None:
    """One row a cell, consistent with the summary; everything a reader needs to repeat it."""
    rows = list(csv.DictReader((undisturbed / "cells.csv").read_text().splitlines()))
    assert len(rows) == 8
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert summary["n_runs"] == summary["n_runs_planned"] == 3 * (2 + 4 + 2)  # greedy shared, warm, and plain at both
    for row, cell in zip(rows, summary["cells"], strict=True):
        assert float(row["tau"]) == pytest.approx(cell["tau"]["value"], rel=1e-5)
        assert row["rule"] == cell["cell"]["rule"] and int(row["tau_n"]) == 3
        assert float(row["speedup"]) > 0 and float(row["repeated_share"]) >= 0
        assert row["shared"] == str(int(float(row["temperature"]) == 0 and row["rule"] == "speculative"))
    positions = list(csv.DictReader((undisturbed / "positions.csv").read_text().splitlines()))
    assert len(positions) == 4 * 1 + 4 * 4
    about = summary["about"]
    assert about["command"].startswith("python -m dflash_core.sweep --out") and "--rules match speculative" in about["command"]
    assert {"pair", "sources", "device", "dtype", "hardware", "versions", "date"} <= set(about)
    assert len(summary["recommendations"]) == 4 and all(r["text"] for r in summary["recommendations"])
    assert [d["tau"]["n"] for d in summary["differences"]] == [3, 3]


def test_the_same_contexts_curves_pool_the_what_ifs_of_the_runs(pair: Pair, undisturbed: Path) -> None:
    """With one prompt the curve is that of `expected_tau`; with three it has an interval over the prompts."""
    directory = SweepDirectory.open(undisturbed)
    scored = [run for run in directory.runs() if run.contexts]
    assert {run.key.cell for run in scored} == {Cell(0.8, 2, "match"), Cell(0.8, 5, "match")} and len(scored) == 6
    run = next(run for run in scored if run.key.cell.block_size == 5)
    whatif = rescore(pair.draft, pair.target, directory.trace(run).generation, (0.0, 0.8), rules=("match", "speculative"))
    curves = {(c.rule, c.block_size): c for c in sweep_results(directory.plan, [run]).curves}
    assert set(curves) == {("match", 5), ("speculative", 5)}
    for rule in ("match", "speculative"):
        taus = [point.tau for point in expected_tau(whatif, rule)]
        assert [tau.value for tau in curves[rule, 5].taus] == pytest.approx(taus, rel=1e-4)
    pooled = json.loads((undisturbed / "summary.json").read_text())["curves"]
    assert len(pooled) == 4 and all(point["n"] == 3 for curve in pooled for point in curve["taus"])


def test_closing_stops_and_the_rest_comes_later(pair: Pair, tmp_path: Path) -> None:
    """As the page does it: stopped in the middle of a run, what had finished is kept and not decoded again."""
    small = plan()
    directory = SweepDirectory.create(tmp_path / "out", small, encode_prompts(pair, small), {"pair": "toy"})
    steps = sweep_runs(pair, small, directory.prompt_ids)
    finished = 0
    for step in steps:
        if step.run:
            directory.append(step.run)
            finished += 1
        elif finished == 3:
            steps.close()  # with a run begun
            break
    assert len(directory.runs()) == 3
    again = SweepDirectory.create(tmp_path / "out", small, encode_prompts(pair, small), {"pair": "toy"})
    later = [step for step in sweep_runs(pair, small, again.prompt_ids, done={run.key for run in again.runs()}) if step.run]
    assert len(later) == len(small.keys) - 3 and later[0].n_done == 4 and later[-1].seconds_left == 0
    for step in later:
        again.append(step.run)  # type: ignore[arg-type]
    straight = [step.run for step in sweep_runs(pair, small, again.prompt_ids) if step.run]
    assert [run.token_ids for run in again.runs()] == [run.token_ids for run in straight]


def test_a_run_comes_back_from_its_line_and_is_a_trace(undisturbed: Path) -> None:
    directory = SweepDirectory.open(undisturbed)
    for run in directory.runs()[:5]:
        trace = directory.trace(run)
        assert parse_trace(dump_trace(trace)).generation == trace.generation
        assert trace.generation.params == directory.plan.params(run.key)


def test_plain_and_dflash_are_interleaved_and_share_no_luck_between_prompts() -> None:
    small = plan(seeds=(0, 1))
    for group in small.groups:
        assert len({(key.prompt, key.seed, key.cell.temperature) for key in group}) == 1
    warm = [group for group in small.groups if group[0].cell.temperature == 0.8]
    assert len(warm) == 6 and all(sum(key.cell.is_plain for key in group) == 1 and len(group) == 5 for group in warm)
    assert len({[key.cell.is_plain for key in group].index(True) for group in warm}) > 1
    assert len(set(small.keys)) == len(small.keys)
    seeds = {(key.prompt, key.seed): small.params(key).seed for key in small.keys}
    assert len(set(seeds.values())) == len(seeds) and seeds[0, 0] == 0
    # At temperature 0 all rules and all seeds give one run.
    assert len([key for key in small.keys if key.cell.temperature == 0]) == 3 * 3
    assert small.decoded_as(Cell(0.0, 5, "speculative")) == Cell(0.0, 5, "match")
    hot_draft = plan(draft_temperatures=(None, 0.5))
    assert hot_draft.decoded_as(Cell(0.0, 5, "speculative", 0.5)) == Cell(0.0, 5, "speculative", 0.5)


def test_rows_time_the_first_prompts_only_and_give_the_same_tokens(pair: Pair) -> None:
    one, many = plan(prompts=PROMPTS), plan(prompts=PROMPTS, rows=4, timed_prompts=2)
    ids = encode_prompts(pair, one)
    runs, batched = ({s.run.key: s.run for s in sweep_runs(pair, p, ids) if s.run} for p in (one, many))
    assert {key.prompt for key, run in batched.items() if run.rows == 1} == {0, 1}
    assert {key.prompt for key in batched if key.cell.is_plain} == {0, 1}
    assert all(batched[key].token_ids == runs[key].token_ids for key in batched)
    assert {key for key in runs if not key.cell.is_plain} <= set(batched)


def test_the_time_is_estimated_before_the_start(pair: Pair) -> None:
    small = plan()
    estimate = estimate_time(pair, small, encode_prompts(pair, small), seconds=0.5)
    assert set(estimate.seconds_of_run) == {1, 2, 5} and estimate.n_runs == len(small.keys)
    scored = sum(small.has_contexts(key.cell) * estimate.seconds_of_run[key.cell.block_size] for key in small.keys)
    assert estimate.seconds == pytest.approx(sum(estimate.seconds_of_run[k.cell.block_size] for k in small.keys) + scored)
    assert estimate.seconds > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n \n", "no prompt"),
        ('{"prompt": "a"}\nnot json\n', "line 2 is not JSON"),
        ('{"prompt": "a"}\n{"prompt": "b", "name": "\\ud800"}\n', "line 2 holds half of a surrogate pair"),
        ('["a"]', "line 1 must be an object"),
        ('{"text": "a"}', '"prompt" or "messages"'),
        ('{"prompt": "a", "messages": []}', '"prompt" or "messages"'),
        ('{"prompt": " "}', '"prompt" must be a text'),
        ('{"messages": [{"role": "user"}]}', '"messages" must be a list'),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "ends with the user"),
    ],
)
def test_bad_prompts_are_told_by_line(text: str, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        parse_prompts(text, jsonl=True)


def test_prompts_of_every_form() -> None:
    plain = parse_prompts("One line\n\nAnother one\nOne line\n", jsonl=False)
    assert [p.text for p in plain] == ["One line", "Another one", "One line"]
    assert [p.name for p in plain] == ["One line", "Another one", "One line (4)"]
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "kind": "greetings"}
    (one,) = parse_prompts(json.dumps(chat), jsonl=True)
    assert one.messages == (("system", "Be brief."), ("user", "Hi")) and one.kind == "greetings" and one.name == "Hi"
    assert preset_prompts(preset_names()[:1])[0].name == preset_names()[0]
    with pytest.raises(SweepError, match="no preset 'Nothing'"):
        preset_prompts(["Nothing"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (MILLION, "1,000,000 cells"),
        ({"temperatures": ()}, "temperatures is empty"),
        ({"temperatures": (0.5, 0.5)}, "more than once"),
        ({"temperatures": (-1.0,)}, "temperature must be"),
        ({"block_sizes": (1,)}, "from 2 to"),
        ({"rules": ("none",)}, "rule must be one of"),
        ({"seeds": (-1,)}, "seed must be"),
        ({"max_new_tokens": 1}, "max_new_tokens must be"),
        ({"prompts": (PROMPTS[0], PROMPTS[0])}, "names must differ"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_swept_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(**changes)


def test_a_plan_survives_json() -> None:
    chat = Prompt("chat", "", "chats", messages=(("user", "Hi"),))
    small = plan(prompts=(*PROMPTS, chat), draft_temperatures=(None, 0.3), top_k=5)
    assert SweepPlan.from_dict(json.loads(json.dumps(small.to_dict()))) == small
    with pytest.raises(ValueError, match="must be an object"):
        SweepPlan.from_dict({"prompts": []})


def test_prompts_that_do_not_fit_are_named(pair: Pair) -> None:
    long = Prompt("the long one", " cat" * 8185, "long", chat=False)
    with pytest.raises(SweepError, match=r"'the long one' has 8,185 tokens; .* leaves room for 8,176"):
        encode_prompts(pair, plan(prompts=(*PROMPTS, long)))
    with pytest.raises(SweepError, match=r"'spoken' cannot be encoded: Toy .* has no chat template"):
        encode_prompts(pair, plan(prompts=(Prompt("spoken", "Hi", "chats"),)))


def test_the_command_line_says_what_is_wrong_before_it_loads_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_pair", lambda *args, **options: pytest.fail("loaded"))
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    (tmp_path / "file").write_text("")
    for more, message in (
        (["--prompts", str(empty)], "there is no prompt"),
        (["--prompts", str(tmp_path / "missing.txt")], "cannot be read"),
        (["--temperatures", *(str(i) for i in range(1000)), "--block-sizes", *(str(i) for i in range(2, 252))], "cells"),
        (["--out", str(tmp_path / "file" / "below")], "cannot be written"),
        (["--presets", "none"], "there is no preset 'none'"),
    ):
        with pytest.raises(SystemExit, match=f"sweep: .*{message}"):
            command.main(arguments(tmp_path, *more))


def test_another_sweep_is_not_mixed_in(undisturbed: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds another sweep \(it differs in plan\).*--tokens 12"):
        command.main(arguments(undisturbed.parent, "--tokens", "13"))


def test_a_damaged_line_is_named_and_nothing_overwritten(tmp_path: Path, undisturbed: Path) -> None:
    copy = tmp_path / "out"
    copy.mkdir()
    for name in ("sweep.json", "runs.jsonl"):
        (copy / name).write_bytes((undisturbed / name).read_bytes())
    lines = (copy / "runs.jsonl").read_text().splitlines()
    for wrong in ("{", lines[1].replace('"n_accepted":1', '"n_accepted":99'), lines[1].replace('"seed":0', '"seed":7')):
        assert wrong != lines[1]
        (copy / "runs.jsonl").write_text("\n".join([lines[0], wrong, *lines[2:]]) + "\n")
        before = (copy / "runs.jsonl").read_bytes()
        with pytest.raises(SystemExit, match=r"runs\.jsonl, line 2"):
            command.main(arguments(tmp_path))
        assert (copy / "runs.jsonl").read_bytes() == before


def figures(directory: Path) -> list[dict[str, str]]:
    """cells.csv without what was measured by a clock."""
    timed = ("speedup", "tokens_per_second", "batched_tokens_per_second", "plain_tokens_per_second", "draft_cost", "verify_cost")
    rows = csv.DictReader((directory / "cells.csv").read_text().splitlines())
    return [{name: value for name, value in row.items() if not name.startswith(timed)} for row in rows]
