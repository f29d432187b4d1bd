"""What a run is handed out as: a table, a summary, a web page; and what two runs look like side by side."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from typing import Any

import pytest

from dflash_core import RULES
from dflash_core.generate import accept_uniforms
from dflash_ui import exports, offline_page
from dflash_ui.comparison import MAX_COMPARED, compare, survival_figure, tokens_of
from dflash_ui.opened import OpenedRuns, read_run
from dflash_ui.page import recorded_runs
from dflash_ui.run import Run
from dflash_ui.run_tab import stage_functions
from dflash_ui.runs import Runs
from dflash_ui.stage import PLOTLY_JS, boot, encode
from dflash_ui.traces import EXPORTS, trace_functions
from tests.test_runs import done_run, toy_runs


@functools.cache
def run_of(rule: str = "speculative", block_size: int = 5, temperature: float = 0.9, max_new_tokens: int = 60) -> Run:
    return done_run(toy_runs(), rule=rule, block_size=block_size, temperature=temperature, max_new_tokens=max_new_tokens)


def rows_of(run: Run) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(exports.table(run), newline=""), strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_the_table_has_a_row_for_each_judged_token(rule: str) -> None:
    run = run_of(rule)
    rows = iter(rows_of(run))
    for block in run.blocks:
        uniforms = accept_uniforms(run.request.params, block)
        for k, judged in enumerate(block.judged, start=1):
            row = next(rows)
            assert (int(row["block"]), int(row["position"]), int(row["place"])) == (block.index, block.start + k, k)
            assert int(row["token_id"]) == block.drafted[k - 1]
            numbers = [float(row[name]) for name in ("p", "q", "acceptance_probability")]
            assert numbers == [judged.target_prob, judged.draft_prob, judged.accept_prob]
            assert (row["accepted"] == "true") == (k <= block.n_accepted)
            assert (row["in_output"] == "true") == (k <= block.accepted)
            assert row["emitted_token_id"] == (str(block.emitted[k - 1]) if k <= len(block.emitted) else "")
            assert row["uniform"] == ("" if uniforms is None else str(uniforms[k - 1]))
    assert next(rows, None) is None
    n_counted = sum(row["in_output"] == "true" for row in rows_of(run))
    assert n_counted == run.stats().accepted


def test_the_table_is_rfc_4180() -> None:
    text = exports.table(run_of())
    assert text.count("\r\n") >= len(rows_of(run_of())) + 1 and text.endswith("\r\n")
    assert text.splitlines()[0] == ",".join(exports.COLUMNS)
    # Quotes, commas and line breaks inside a token come back as they were.
    run = read_run(run_of().trace(), "x", "x")
    token = run.blocks[1].drafted[0]
    for word in ('a "b", c', "x\r\ny", " ", "é🌍"):
        run.words[str(token)] = word
        assert rows_of(run)[0]["token"] == word


@pytest.mark.parametrize("word", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r1", " =HYPERLINK(0)", "＝1", '=cmd|"/c calc"!A1'])
def test_a_token_is_no_formula(word: str) -> None:
    run = read_run(run_of().trace(), "x", "x")
    run.words[str(run.blocks[1].drafted[0])] = word
    assert rows_of(run)[0]["token"] == f"'{word}"


def test_numbers_are_not_taken_for_formulas() -> None:
    assert not any(value.startswith("'") for row in rows_of(run_of()) for name, value in row.items() if "token" not in name)


@pytest.mark.parametrize("block_size", [1, 5])
def test_the_summary(block_size: int) -> None:
    run = run_of(block_size=block_size)
    summary, stats = json.loads(exports.summary(run)), run.stats()
    spec = summary["metrics"]["speculative_decoding"]
    blocks = run.blocks[1:]
    # The fields that vLLM documents for --per-request-spec-decode-metrics detailed.
    assert set(spec) == {
        "mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram", "num_spec_steps", "num_accepted_draft_tokens",
        "num_draft_tokens", "num_spec_tokens", "per_step_accepted", "per_step_drafted",
    }  # fmt: skip
    assert spec["num_spec_steps"] == len(blocks) and spec["num_spec_tokens"] == block_size - 1
    assert sum(spec["acceptance_histogram"]) == len(blocks)
    assert sum(j * n for j, n in enumerate(spec["acceptance_histogram"])) == spec["num_accepted_draft_tokens"]
    assert sum(spec["per_step_accepted"]) == spec["num_accepted_draft_tokens"] == stats.accepted
    assert sum(spec["per_step_drafted"]) == spec["num_draft_tokens"]
    assert sum(summary["counters"]["num_accepted_tokens_per_pos"]) == summary["counters"]["num_accepted_tokens"]
    if block_size > 1:
        assert spec["mean_acceptance_length"] == 1 + spec["num_accepted_draft_tokens"] / spec["num_spec_steps"]
        assert spec["draft_acceptance_rate"] == spec["num_accepted_draft_tokens"] / spec["num_draft_tokens"]
        assert summary["figures"]["tau_low"] < summary["figures"]["tau"] < summary["figures"]["tau_high"]
    else:
        assert spec["mean_acceptance_length"] is None and spec["draft_acceptance_rate"] is None
    assert summary["usage"]["completion_tokens"] == len(run.token_ids)
    assert summary["run"]["rule"] == "speculative" and summary["run"]["block_size"] == block_size


def test_the_web_page_is_whole_safe_and_small() -> None:
    run = read_run(run_of().trace(), "</title><script>alert(1)</script>", "x")
    page = offline_page.page(run, boot(), PLOTLY_JS)
    assert len(page) - len(offline_page._packed_file(PLOTLY_JS)) < 1_000_000
    # Nothing of the run is in the page as it is, but packed; its name is escaped.
    assert "window.hacked" not in page and "alert(1)</script>" not in page.replace("&lt;script&gt;alert(1)&lt;/script&gt;", "")
    assert not re.search(r"""(src|href)\s*=|https?:|@import|url\((?!["']?data:)""", re.sub(r"[A-Za-z0-9+/=]{200,}", "", page))
    assert "default-src 'none'" in page
    scripts = offline_page.scripts()
    assert {"offline.js", "stage.js", "block.js", "dom.js"} <= set(scripts)
    assert not any('"./' in source for source in scripts.values())


def test_a_long_run_gives_a_page_of_moderate_size() -> None:
    run = run_of(max_new_tokens=600)
    extra = len(offline_page.page(run, boot(), PLOTLY_JS)) - len(offline_page._packed_file(PLOTLY_JS))
    assert extra < 150_000 + 600 * 600  # about 300 bytes a token of the toy pair; as much again is left for real ones


def test_what_is_asked_for_is_checked() -> None:
    runs = Runs(lambda _: iter(()), lambda *_: iter(()), [read_run(run_of().trace(), "", "kept")])
    get_export = next(f for f in trace_functions(runs, OpenedRuns()) if f.__name__ == "get_export")
    for kind in EXPORTS:
        assert get_export({"run": "kept", "kind": kind})
    asked: Any
    for asked in (
        None,
        [],
        "kept",
        {},
        {"run": "kept"},
        {"run": "kept", "kind": "exe"},
        {"run": "kept", "kind": []},
        {"run": ["kept"], "kind": "csv"},
    ):
        assert get_export(asked) is None
    assert [function.__name__ for function in stage_functions(runs)] == ["get_run", "get_trace"]


# Side by side


def test_two_runs_side_by_side() -> None:
    a, b = run_of(), run_of(block_size=3)
    found = compare(a, b)
    encode(found)
    assert [row["name"] for row in found["settings"] if not row["same"]] == ["Block size B"]
    assert found["figure"]["light"]["data"][0]["name"] == "A"
    for side, run in (("a", a), ("b", b)):
        segments = found["texts"][side]
        assert "".join(token for _, tokens in segments for token in tokens) == "".join(shown for _, shown in tokens_of(run))
        assert [token for token, _ in tokens_of(run)] == run.token_ids
    same = ["".join(token for kind, tokens in found["texts"][side] if kind == "same" for token in tokens) for side in "ab"]
    assert same[0] == same[1] != ""


def test_where_texts_part() -> None:
    a, b = run_of("match"), run_of("match", block_size=3)
    assert compare(a, b)["texts"]["says"] == f"Both texts are the same, token for token. Tokens: {len(a.token_ids)}."
    short = run_of("match", max_new_tokens=20)
    assert compare(a, short)["texts"]["says"].startswith("Text B ends after token 20")
    one, two = recorded_runs()
    assert compare(one, two)["texts"]["says"] == (
        "The texts differ from their first token on: A begins with “1.␣Mars”, B with “The␣lighthouse␣stands”."
    )


def test_runs_of_two_vocabularies_are_compared_by_their_texts() -> None:
    mine = run_of("match")
    other = read_run(mine.trace(), "x", "x")
    other.about["pair"] = "another one"
    other.blocks = []  # ids are not looked at: shift those of the chips
    for view in other.views:
        for chip in view["chips"]:
            chip["ids"] = [token + 1000 for token in chip["ids"]]
    assert compare(mine, other)["texts"]["says"].startswith("Both texts are the same")


def test_the_survival_curves_are_those_of_the_core() -> None:
    a, b = run_of().stats(), run_of(block_size=3).stats()
    figure = survival_figure(a, b)
    for trace, stats in zip(figure.data, (a, b), strict=True):
        assert list(trace.y) == [row.survival for row in stats.positions if row.survival is not None]


def test_long_texts_are_compared_in_bounded_time() -> None:
    """Repetitive texts are the worst case; what lies beyond the bound is shown, not compared."""
    mine = run_of("match")
    long = read_run(mine.trace(), "x", "x")
    chip = next(chip for chip in long.views[1]["chips"] if chip["s"] == "accepted")
    other = read_run(mine.trace(), "x", "x")
    long.views = [{"chips": [chip] * 4000}]
    other.views = [{"chips": [{**chip, "ids": [chip["ids"][0] + 1]}, *[chip] * 3999]}]
    texts = compare(long, other)["texts"]
    assert sum(len(tokens) for _, tokens in texts["a"]) == 4000
    assert sum(len(tokens) for kind, tokens in texts["a"] if kind == "left") == 4000 - MAX_COMPARED
    assert f"{MAX_COMPARED:,}" in texts["rest"]
