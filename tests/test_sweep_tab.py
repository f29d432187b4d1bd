"""The Sweep tab: figures say what was measured, a sweep can be stopped, gone on with, looked into and taken away."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_core.pairs import Pair, load_pair
from dflash_core.sweep.command import chosen_prompts, make_plan, parse_arguments
from dflash_core.sweep.plan import Cell, Prompt, SweepPlan
from dflash_core.sweep.prompts import read_prompts
from dflash_core.sweep.results import sweep_results
from dflash_core.sweep.runs import CellRun, encode_prompts, estimate_time, sweep_runs
from dflash_core.sweep.store import SweepDirectory
from dflash_core.verify import RULES
from dflash_ui.models import Shelf, make_decode
from dflash_ui.record_sweep import record
from dflash_ui.recorded_sweep import RecordedSweep, recorded_sweep
from dflash_ui.runs import Runs
from dflash_ui.stage import encode
from dflash_ui.sweep_board import board, cell_runs
from dflash_ui.sweep_charts import Slice, sweep_charts
from dflash_ui.sweep_report import main as make_report
from dflash_ui.sweep_report import report_html
from dflash_ui.sweep_request import MAX_CELLS, SweepRequest
from dflash_ui.sweep_tab import sweep_functions, time_words
from dflash_ui.sweep_words import told
from dflash_ui.sweeps import Sweep, Sweeps
from dflash_ui.theme import rule_looks
from tests.served import ServedPage, Visitor, until

PAIRS = ("toy",)
ABOUT = {"pair": "Toy word chain", "dtype": "float32", "device": "cpu", "date": "2026-11-30"}
HOSTILE = "<b>a & c</b>"


def prompts_file(folder: Path, text: str, name: str = "mine.txt") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def asked(file: str | None, **changes: Any) -> SweepRequest:
    values: dict[str, Any] = {
        "pair": "toy",
        "temperatures": ["0", "0.8"],
        "block_sizes": ["3", "5"],
        "rules": ["speculative", "match"],
        "presets": [],
        "file": file,
        "seeds": 1,
        "tokens": 14,
        "draft_temperatures": [],
        "rows": 1,
        "chat": False,
    }
    return SweepRequest.parse(*(values | changes).values(), pairs=PAIRS)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("toy")


@pytest.fixture(scope="module")
def plan() -> SweepPlan:
    texts = {"one": ("the cat", "animals"), HOSTILE: ("the old dog", "animals"), "three": ("a river", HOSTILE)}
    prompts = tuple(Prompt(name, said, kind, chat=False) for name, (said, kind) in texts.items())
    return SweepPlan(prompts, (0.0, 0.8), (3, 5), ("match", "speculative"), max_new_tokens=14)


@pytest.fixture(scope="module")
def finished(pair: Pair, plan: SweepPlan) -> list[CellRun]:
    return [step.run for step in sweep_runs(pair, plan, encode_prompts(pair, plan)) if step.run]


@pytest.fixture
def sweeps(pair: Pair, tmp_path: Path) -> Sweeps:
    """As on a page, in this process."""
    shelf = Shelf(lambda name, progress: pair, "toy")
    runs = Runs(shelf.steps, make_decode(shelf))
    return Sweeps(
        runs,
        lambda plan, ids, done: sweep_runs(pair, plan, ids, done=done),
        lambda plan, ids, done: estimate_time(pair, plan, ids, done=done, seconds=0.2),
        tmp_path / "sweeps",
    )


def test_the_figures_show_the_numbers_that_were_measured(plan: SweepPlan, finished: list[CellRun]) -> None:
    results = sweep_results(plan, finished)
    charts = sweep_charts(results, ABOUT, Slice(0.8, 5))
    assert [chart.key for chart in charts] == ["tau", "heat", "heat", "speed", "kind", "kind"]
    for chart in charts:
        assert "Toy word chain, float32 on cpu" in chart.caption and "95 %" in chart.caption and "bootstrap" in chart.caption
    by_cell = {result.cell: (i, result) for i, result in enumerate(results.cells)}

    tau = charts[0].figure
    assert "n = 3 prompts" in charts[0].caption and "B = 5" in charts[0].title
    for rule in plan.rules:
        (line,) = (trace for trace in tau.data if trace.name == rule)
        for k, t in enumerate(plan.temperatures):
            i, result = by_cell[Cell(t, 5, rule)]
            assert result.tau and result.tau.high is not None and result.tau.low is not None
            assert line.y[k] == result.tau.value and abs(line.x[k] - t) < 0.02
            assert line.error_y.array[k] == pytest.approx(result.tau.high - result.tau.value)
            assert line.error_y.arrayminus[k] == pytest.approx(result.tau.value - result.tau.low)
            assert line.customdata[k][0] == i and told(result.tau) in line.customdata[k][1]
        (curve,) = (c for c in results.curves if (c.rule, c.block_size) == (rule, 5))
        (theory,) = (trace for trace in tau.data if trace.name == f"{rule}: same contexts (theory)")
        assert theory.line.dash == "dash" and list(theory.y) == [value.value for value in curve.taus]
    assert f"the runs at T = {curve.from_temperature:g} under {curve.from_rule}" in charts[0].caption

    for rule, chart in zip(plan.rules, charts[1:3], strict=True):
        (heat,) = chart.figure.data
        assert rule in chart.title and list(heat.x) == ["3", "5"] and list(heat.y) == ["0", "0.8"]
        for row, t in enumerate(plan.temperatures):
            for column, size in enumerate(plan.block_sizes):
                i, result = by_cell[Cell(t, size, rule)]
                assert result.tau and heat.z[row][column] == result.tau.value and heat.customdata[row][column][0] == i
                (number,) = (a for a in chart.figure.layout.annotations if (a.x, a.y) == (column, row))
                assert number.text == f"{result.tau.value:.2f}"
    assert charts[1].figure.data[0].zmax == charts[2].figure.data[0].zmax  # one scale for all rules

    speed = charts[3].figure
    assert "T = 0.8" in charts[3].title and any(shape.y0 == shape.y1 == 1 for shape in speed.layout.shapes)
    for rule in plan.rules:
        (points,) = (trace for trace in speed.data if trace.name == rule)
        speeds = [by_cell[Cell(0.8, size, rule)][1].speed for size in plan.block_sizes]
        assert list(points.y) == [one.speedup.value for one in speeds if one]
        (model,) = (m for m in results.models if (m.temperature, m.rule) == (0.8, rule))
        line, optimum = (trace for trace in speed.data if trace.legendgroup == rule and trace.name != rule)
        assert list(line.y) == [1.0, *model.speedups] and (optimum.x[0], optimum.y[0]) == model.best

    # What a file says stays text.
    assert charts[5].title == HOSTILE and "<b>" not in charts[5].figure.layout.title.text
    looks = rule_looks()
    assert looks.keys() == RULES.keys()
    assert len({look.symbol for look in looks.values()}) == len({look.light for look in looks.values()}) == len(RULES)


def test_the_report_needs_nothing_else_and_runs_nothing(
    plan: SweepPlan, finished: list[CellRun], tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = sweep_results(plan, finished)
    page = report_html(results, plan, ABOUT | {"command": "python -m dflash_core.sweep --out 'a b' <x>"})
    own = page.replace(page[page.index("<script>") : page.index("</script>")], "")  # without Plotly itself
    assert 'src="http' not in own and "<link" not in own and "@import" not in own
    assert "&lt;x&gt;" in own and HOSTILE not in own.replace("\\u003c", "<").partition("Prompts</h2>")[2]
    for recommendation in results.recommendations:
        assert recommendation.text.replace("`", "") in own
    assert all(told(result.tau) in own for result in results.cells)
    assert own.count("<figure>") == 2 + 2 + 2 + 2  # block sizes, rules, temperatures, kinds
    directory = SweepDirectory.create(tmp_path / "s", plan, encode_prompts(pair, plan), ABOUT)
    for run in finished:
        directory.append(run)
    monkeypatch.setattr("sys.argv", ["sweep_report", str(tmp_path / "s")])
    make_report()
    assert "Toy word chain" in (tmp_path / "s" / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["sweep_report", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="holds no sweep"):
        make_report()


def test_grids_of_one_point_and_sweeps_of_no_run_are_drawn_too(pair: Pair) -> None:
    prompts = (Prompt("one", "the cat", "one", chat=False),)
    plan = SweepPlan(prompts, (0.8,), (3,), ("match",), (0.3, 1.0), (0, 1), max_new_tokens=20)
    runs = [step.run for step in sweep_runs(pair, plan, encode_prompts(pair, plan)) if step.run]
    charts = sweep_charts(sweep_results(plan, runs), ABOUT, Slice(0.8, 3, 1.0))
    assert [chart.key for chart in charts] == ["tau", "heat", "speed"] and "n = 2 seeds" in charts[0].caption
    (points,) = (trace for trace in charts[0].figure.data if trace.name == "match")
    assert "draft" not in charts[0].title and list(points.x) == [0.8]
    (heat,) = charts[1].figure.data
    assert heat.customdata[0][0][0] == 1  # the second cell: the draft at 1.0
    nothing = sweep_results(plan, [])
    assert "n = nothing yet" in sweep_charts(nothing, ABOUT, Slice(0.8, 3, 0.3))[0].caption
    assert "Nothing measured yet" in report_html(nothing, plan, ABOUT)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no prompts": ({"file": None}, "no prompts: choose presets, or upload a file"),
    "no temperature": ({"temperatures": []}, "temperatures: choose at least one"),
    "typed": ({"temperatures": ["0,5", "hot"]}, "a temperature must be a number from 0 to 2, not 'hot'"),
    "too hot": ({"temperatures": [3]}, "a temperature must be a number from 0 to 2, not 3"),
    "NaN": ({"temperatures": [float("nan")]}, "must be a number from 0 to 2, not nan"),
    "twice": ({"temperatures": ["0.5", "0.50"]}, "temperatures has 0.5 more than once"),
    "half": ({"block_sizes": ["2.5"]}, "a block size must be a whole number from 2 to 32, not '2.5'"),
    "one": ({"block_sizes": [1]}, "a block size must be a whole number from 2 to 32, not 1"),
    "rule": ({"rules": ["best"]}, "a rule must be one of match"),
    "pair": ({"pair": "gpt"}, "the model pair must be one of toy"),
    "grid": ({"temperatures": [k / 1000 for k in range(1000)], "block_sizes": list(range(2, 33))}, f"at most {MAX_CELLS}"),
    "tokens": ({"temperatures": [k / 10 for k in range(20)], "seeds": 8, "tokens": 512}, "comes to 983,040 tokens"),
    "rows": ({"rows": 0}, "rows must be a whole number from 1 to 32, not 0"),
    "preset": ({"file": None, "presets": ["Poem"]}, "there is no preset 'Poem'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_swept_is_told_with_what_can(case: str, tmp_path: Path) -> None:
    changes, message = BAD[case]
    file = prompts_file(tmp_path, "the cat\nthe dog\na fox\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        asked(**({"file": file} | changes))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b" \n\n", "empty.txt: there is no prompt"),
        ("bad.jsonl", b'{"prompt": "a"}\n{"prompt": }\n', "bad.jsonl: line 2 is not JSON"),
        ("odd.jsonl", b'{"text": "a"}\n', 'line 1 must be an object with either "prompt" or "messages"'),
        ("photo.txt", b"\xff\xd8\xff\xe0", "photo.txt is no text file in UTF-8 (byte 0)"),
        ("long.txt", b"x" * 30_000, "has 30,000 characters; at most 20,000 are taken"),
        ("many.txt", b"\n".join(b"%d" % k for k in range(201)), "201 prompts; a page takes at most 200"),
    ],
)
def test_a_file_that_holds_no_prompts_is_told(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        asked(str(tmp_path / name), temperatures=["0"], block_sizes=["4"], rules=["match"], tokens=8)


def test_the_command_repeats_the_sweep(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = prompts_file(tmp_path, "the cat's hat\na dog\n", "my prompts.txt")
    presets: dict[str, Any] = {"file": None, "presets": ["Open story", "Explain like I'm ten"]}
    for changes in ({"rows": 4, "seeds": 2, "draft_temperatures": ["0.3", "1"]}, presets, presets | {"chat": True}):
        request = asked(**({"file": file} | changes))
        program, *arguments = shlex.split(request.command(pair).removeprefix("python -m "))
        options = parse_arguments(arguments)
        assert program == "dflash_core.sweep" and options.pair == "toy"
        assert make_plan(options, chosen_prompts(options)) == request.plan


def drain(steps: Iterator[dict[str, Any]]) -> dict[str, Any]:
    *_, last = steps
    return last


def test_stopped_between_blocks_and_gone_on_with_it_is_the_same_sweep(
    sweeps: Sweeps, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_ui.sweeps.FLUSH_SECONDS", 0.0)
    request = asked(prompts_file(tmp_path, "the cat\nthe dog\na fox\n"))
    sweep = sweeps.of(request, "me")
    assert drain(sweeps.estimates(sweep))["status"] == "ready"
    assert sweep.estimate and sweep.estimate.n_runs == len(request.plan.keys) and "**About" in time_words(sweep)
    for payload in sweeps.payloads(sweep):
        if payload["version"] == 5:
            sweep.stop.set()
    assert (sweep.status, len(sweep.lines)) == ("stopped", 5) and "5 of 24 runs" in sweep.message
    assert len(sweep.file("cells.csv").read_text(encoding="utf-8").splitlines()) == 9
    # Closing the page in the middle frees the device, and keeps what is there.
    again = sweeps.of(request, "me")
    assert again is sweep
    steps: Any = sweeps.payloads(again)
    while next(steps)["version"] < 9:
        pass
    steps.close()
    assert sweep.status == "stopped" and not sweeps._runs._queue._tickets
    before = len(sweep.lines)
    assert drain(sweeps.payloads(sweeps.of(request, "me")))["status"] == "done"
    assert before >= 9 and sweep.is_complete and len(sweep.lines) == 24
    undisturbed = {
        step.run.key: step.run.token_ids
        for step in sweep_runs(pair, request.plan, encode_prompts(pair, request.plan))
        if step.run
    }
    assert {key: run.token_ids for key, run in sweep._runs.items()} == undisturbed
    assert sweep.directory is not None
    assert {run.key: run.token_ids for run in SweepDirectory.open(sweep.directory.path).runs()} == undisturbed
    assert sweeps.of(request, "me") is not sweep  # complete: another one
    assert sweeps.of(request, None) is not sweep and sweeps.get(sweep.id) is sweep


def test_what_goes_wrong_is_told_and_loses_nothing(sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = prompts_file(tmp_path, "the cat\nthe dog\n")
    chat = sweeps.of(asked(file, chat=True), "me")
    assert drain(sweeps.estimates(chat))["status"] == "error" and "no chat template" in chat.message
    sweep = sweeps.of(asked(file), "me")
    (tmp_path / "sweeps").write_text("a file where a folder should be", encoding="utf-8")
    last = drain(sweeps.payloads(sweep))
    assert last["status"] == "error" and "GRADIO_TEMP_DIR" in last["message"]
    (tmp_path / "sweeps").unlink()
    append = SweepDirectory.append

    def full(self: SweepDirectory, run: CellRun, **options: Any) -> None:
        if len(sweep.lines) == 3:
            raise ValueError("runs.jsonl cannot be written: No space left on device")
        append(self, run, **options)

    monkeypatch.setattr(SweepDirectory, "append", full)
    last = drain(sweeps.payloads(sweep))
    assert (last["status"], last["version"]) == ("error", 3) and "No space left" in last["message"]
    assert not sweeps._runs._queue._tickets
    monkeypatch.setattr(SweepDirectory, "append", append)
    assert drain(sweeps.payloads(sweeps.of(asked(file), "me")))["status"] == "done"


def test_a_sweep_waits_for_the_device_and_can_be_stopped_there(sweeps: Sweeps, tmp_path: Path) -> None:
    sweep = sweeps.of(asked(prompts_file(tmp_path, "the cat\n")), "me")
    with sweeps._runs._queue.ticket():
        steps = sweeps.payloads(sweep)
        assert next(steps)["message"] == "one run ahead of you on this device"
        sweep.stop.set()
        assert drain(steps)["status"] == "stopped"


def test_the_server_tells_only_what_there_is(sweeps: Sweeps, tmp_path: Path) -> None:
    sweep = sweeps.of(asked(prompts_file(tmp_path, "the cat\nthe dog\n")), "me")
    get_board, get_cell, get_sweep_run, get_file = sweep_functions(sweeps, sweeps._runs)
    assert get_board({"sweep": sweep.id}) is None  # nothing measured yet
    drain(sweeps.payloads(sweep))
    for nonsense in (None, "x", {}, {"sweep": 3}, {"sweep": "x"}, [sweep.id]):
        assert get_board(nonsense) is get_cell(nonsense) is get_sweep_run(nonsense) is get_file(nonsense) is None
    for cell in (None, -1, 99, 1.5, "0", True):
        assert get_cell({"sweep": sweep.id, "cell": cell}) is None
        assert get_sweep_run({"sweep": sweep.id, "run": cell}) is None
    for name in (None, "../sweep.json", "/etc/passwd", 3):
        assert get_file({"sweep": sweep.id, "name": name}) is None

    drawn = json.loads(get_board({"sweep": sweep.id, "temperature": 0.8, "block_size": "x", "draft_temperature": None}) or "")
    assert drawn["cut"]["temperature"] == 0.8 and drawn["cut"]["block_size"] in (3, 5) and drawn["version"] == len(sweep.lines)
    assert drawn["command"].startswith("python -m dflash_core.sweep") and len(drawn["table"]["rows"]) == 8
    runs = json.loads(get_cell({"sweep": sweep.id, "cell": 7}) or "")
    assert "speculative, T = 0.8, B = 5 · finished runs: 2" in runs["title"] and [row["cells"][0] for row in runs["rows"]] == [
        "the cat",
        "the dog",
    ]
    payload = json.loads(get_sweep_run({"sweep": sweep.id, "run": runs["rows"][1]["run"]}) or "")
    key = sweep.lines[runs["rows"][1]["run"]].key
    assert key.cell == Cell(0.8, 5, "speculative") and payload["head"]["rule"] == "speculative"
    assert [token for view in payload["w"] for token in view["emitted"]] == list(sweep._runs[key].token_ids)
    assert sweeps._runs.get(payload["run"]) is not None  # the stage and the other tabs can ask for it
    shared = json.loads(get_cell({"sweep": sweep.id, "cell": 3}) or "")
    assert "these are the runs of match" in shared["note"]
    assert Path(json.loads(get_file({"sweep": sweep.id, "name": "report.html"}) or "")["path"]).stat().st_size > 1_000_000


def test_a_recorded_sweep_is_alive_without_a_model(
    pair: Pair, plan: SweepPlan, finished: list[CellRun], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    about = ABOUT | {"pair_key": "toy", "trained_block_size": 8}
    about["command"] = "python -m dflash_core.sweep --out '/home/some one/x' --tokens 8"
    directory = SweepDirectory.create(tmp_path / "sweep", plan, encode_prompts(pair, plan), about)
    for run in finished:
        directory.append(run)
    record(directory, tmp_path / "asset", pair.tokenizer, most_bytes=1)  # room for the first prompt alone
    assert not any("some one" in file.read_text() for file in (tmp_path / "asset").glob("*.json"))
    shown = recorded_sweep(tmp_path / "asset", tmp_path / "served")
    assert shown and shown.directory and shown.directory.about["command"] == "python -m dflash_core.sweep --out sweep --tokens 8"
    assert isinstance(shown, RecordedSweep) and shown.status == "recorded_sweep" and shown.is_complete
    assert shown.results() == (len(finished), sweep_results(plan, directory.runs()))
    assert encode(board(shown, {})) and shown.tokenizer is None  # the page opens without one
    cell = plan.cells.index(Cell(0.8, 5, "match"))
    listed = cell_runs(shown, cell)
    assert listed and [row["open"] for row in listed["rows"]] == [True, False, False] and "kept whole" in listed["note"]
    # The run looks as it would with the whole tokenizer.
    live = Sweep(SweepRequest("toy", plan, None))
    live.directory, live.tokenizer = directory, pair.tokenizer
    for run in directory.runs():
        live.add(run)
    for number, line in enumerate(shown.lines):
        opened = shown.open(number)
        assert (opened is None) == (line.key.prompt > 0)
        if opened:
            same = live.open(live.numbers_of(line.key.cell)[0])
            assert same and opened.views == same.views and opened.head == same.head and opened.message == same.message
    assert (shown.file("cells.csv").read_bytes()) == (tmp_path / "asset" / "cells.csv").read_bytes()
    assert len(shown.file("runs.jsonl").read_text(encoding="utf-8").splitlines()) == len(finished) // 3
    assert "Toy word chain" in shown.file("report.html").read_text(encoding="utf-8")
    (tmp_path / "asset" / "summary.json").write_text("{}", encoding="utf-8")
    assert recorded_sweep(tmp_path / "asset", tmp_path) is None and "not a usable sweep" in caplog.text
    assert recorded_sweep(tmp_path, tmp_path) is None
    with pytest.raises(ValueError, match="no finished run"):
        record(SweepDirectory.create(tmp_path / "new", plan, encode_prompts(pair, plan), about), tmp_path / "x", pair.tokenizer)


def test_what_ships_of_the_recorded_sweep_is_usable() -> None:
    from dflash_ui.theme import ASSETS

    held_out = json.loads((ASSETS / "evaluation_prompts.json").read_text(encoding="utf-8"))
    prompts = read_prompts(ASSETS / "sweep_prompts.jsonl")
    assert len(prompts) == 16 and all(prompt.text in held_out[prompt.kind] for prompt in prompts)
    path = ASSETS / "sweep"
    shown = recorded_sweep(path, Path("unused"))
    assert shown is not None and sum(file.stat().st_size for file in path.iterdir()) < 2_500_000
    assert shown.open(next(n for n in range(len(shown.lines)) if shown.is_kept(n))) is not None


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visitor]]:
    visitors: list[Visitor] = []

    def arrive(page: ServedPage, *, width: int = 1280) -> Visitor:
        visitors.append(Visitor(browser.new_page(viewport={"width": width, "height": 900}), page.url).open())
        return visitors[-1]

    yield arrive
    for visitor in visitors:
        visitor.page.close()
    assert [error for visitor in visitors for error in visitor.errors] == []


@pytest.mark.browser
def test_a_small_sweep_from_start_to_exported_report(visit: Callable[..., Visitor], toy_page: ServedPage, tmp_path: Path) -> None:
    visitor = visit(toy_page)
    page = visitor.page
    page.click("#tabs button[data-tab-id=sweep]")
    page.wait_for_selector("#sweep-count")
    assert "Cells: 18" in visitor.text("#sweep-count") and page.is_disabled("#sweep-start")
    page.wait_for_selector(".sweep[data-status=recorded_sweep] .sweep-advice h3")  # until the visitor's own is there

    # A bad file is told at once, and does not start anything.
    page.set_input_files("#sweep-file input[type=file]", prompts_file(tmp_path, '{"prompt": "a"}\nno\n', "bad.jsonl"))
    visitor.wait("() => document.querySelector('#sweep-count').innerText.includes('line 2 is not JSON')")
    page.click("#sweep-estimate")
    assert "line 2 is not JSON" in visitor.message()
    page.click("[data-testid=toast-close]")
    page.wait_for_selector("#sweep-estimate:enabled")
    page.click("#sweep-file button[aria-label='Remove this file'], #sweep-file button[aria-label=Clear]")
    visitor.wait("() => document.querySelector('#sweep-count').innerText.includes('prompts: 4')")

    page.set_input_files("#sweep-file input[type=file]", prompts_file(tmp_path, "the cat\nthe old dog\n", "good.txt"))
    page.click("#sweep-advanced button")
    page.uncheck("#sweep-chat input")
    page.fill("#sweep-tokens input[type=number]", "16")
    page.press("#sweep-tokens input[type=number]", "Tab")
    for part in ("36 runs", "at most 576 tokens"):
        visitor.wait("(part) => document.querySelector('#sweep-count').innerText.includes(part)", part)
    page.click("#sweep-estimate")
    page.wait_for_selector("#sweep-start:enabled")
    assert "About" in visitor.text("#sweep-time") and "36 runs" in visitor.text("#sweep-time")

    toy_page.toy.seconds_per_pass = 0.02
    try:
        page.click("#sweep-start")
        drawn = """() => {
            const { status, version } = document.querySelector('.sweep').dataset;
            return status === 'running' && version > 0;
        }"""
        visitor.wait(drawn)  # while it goes on
        assert page.is_visible(".sweep .progress")
        page.click("#sweep-stop")
        page.wait_for_selector(".sweep[data-status=stopped]")
    finally:
        toy_page.toy.seconds_per_pass = 0.0
    page.wait_for_selector("#sweep-start:enabled:has-text('Go on')")
    assert toy_page.n_waiting == 0 and "they are kept" in visitor.text(".sweep .status")
    page.click("#sweep-start")
    page.wait_for_selector(".sweep[data-status=done]")
    page.wait_for_selector(".sweep[data-version='36']")
    page.wait_for_selector("#sweep-estimate:enabled")
    assert page.is_disabled("#sweep-start")

    # Figures: τ, two heat maps, speed-up, two kinds of prompt.
    assert len(page.query_selector_all(".sweep .js-plotly-plot")) == 6
    assert "On these 2 prompts" in visitor.text(".sweep-advice")
    page.select_option(".sweep-choices select[data-axis=block_size]", label="16")
    visitor.wait("() => document.querySelector('.sweep-tau .gtitle').textContent.includes('B = 16')")

    # The recorded sweep is still there, and so is the visitor's own.
    page.click("button:has-text('Show the recorded sweep')")
    visitor.wait("() => document.querySelector('.sweep-advice').innerText.includes('On these 3 prompts')")
    page.click("button:has-text('Show your sweep')")
    visitor.wait("() => document.querySelector('.sweep-advice').innerText.includes('On these 2 prompts')")
    page.select_option(".sweep-choices select[data-axis=block_size]", label="16")
    visitor.wait("() => document.querySelector('.sweep-tau .gtitle').textContent.includes('B = 16')")

    # A cell of a heat map → its runs → the Block tab.
    page.locator(".sweep-heat .nsewdrag").first.click()  # in its middle: the second of three temperatures and block sizes
    page.wait_for_selector(".sweep-runs tbody button")
    assert "match, T = 0.5, B = 8 · finished runs: 2" in visitor.text(".sweep-runs h3")
    page.click(".sweep-runs tbody button:has-text('the old dog')")
    page.wait_for_selector(".inspector .block-title")
    assert "Block 1 of" in visitor.text(".inspector .block-title")
    run = toy_page.run(visitor.shown_run())
    assert run.request.prompt == "the old dog" and (run.request.block_size, run.request.params.temperature) == (8, 0.5)
    page.click("#tabs button[data-tab-id=run]")
    assert "Of a sweep: the old dog" in visitor.text(".status-message")
    assert visitor.n_blocks() == len(run.blocks)

    # A row of the table, and the files.
    page.click("#tabs button[data-tab-id=sweep]")
    page.click(".sweep-table tbody tr:first-child button")
    visitor.wait("() => document.querySelector('.sweep-runs h3').textContent.includes('T = 0, B = 4')")
    assert "--prompts good.txt --raw" in visitor.text(".sweep-command")
    for name, part in (("report.html", "Toy word chain"), ("cells.csv", "tau_low"), ("runs.jsonl", '"prompt":"the cat"')):
        with page.expect_download() as download:
            page.click(f".sweep-outputs [data-file='{name}']")
        assert download.value.suggested_filename == name
        assert part in Path(download.value.path()).read_text(encoding="utf-8")
    until(lambda: toy_page.n_waiting == 0, "the device is free")
