"""Traces: what is written is read back, and what was not written by us is refused with its line."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dflash_core import RULES, Generation, dflash_generate
from dflash_core.toy import ToyDraft, ToyTarget
from dflash_core.trace import Trace, TraceError, dump_trace, parse_trace

SEPARATORS = '\u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e \r \n \t \u200b \U0001f30d \ufffd \\ " </script>'


def toy_run(**options: Any) -> Generation:
    target = ToyTarget()
    values = {"max_new_tokens": 40, "temperature": 0.9, "seed": 7, "table_size": 6, **options}
    return dflash_generate(ToyDraft(target), target, torch.tensor([[4, 9, 12]]), **values)


def trace_of(generation: Generation) -> Trace:
    texts = tuple([{"t": f"{SEPARATORS} {block.index}", "p": 0.5}, None] for block in generation.blocks)
    return Trace(generation, {"pair": "toy", "date": "2026-11-29", "nested": {"versions": [1, 2.5, None, True]}}, texts)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"table_size": 0, "on_block": lambda block: None},
        {"table_size": 0},
        {"block_size": 1},
        {"block_size": 3, "temperature": 0.0},
        {"max_new_tokens": 1},
        {"draft_temperature": 0.3, "top_p": 0.9, "top_k": 20, "seed": 2**63 - 1},
        {"stop_token_ids": [4, 8, 10]},
    ],
    ids=["defaults", "hook alone", "nothing recorded", "plain", "greedy", "one token", "every option", "stops"],
)
def test_round_trip_of_real_runs(rule: str, options: dict[str, Any]) -> None:
    trace = trace_of(toy_run(rule=rule, **options))
    assert parse_trace(dump_trace(trace)) == trace


def test_round_trip_of_a_cut_run() -> None:
    whole = toy_run(temperature=0.0)
    n = next(n for n in range(2, 40) if toy_run(temperature=0.0, max_new_tokens=n).blocks[-1].is_cut)
    cut = trace_of(toy_run(temperature=0.0, max_new_tokens=n))
    assert parse_trace(dump_trace(cut)) == cut
    assert parse_trace(dump_trace(cut)).generation.token_ids == whole.token_ids[:n]


def test_a_trace_of_a_stopped_run_may_have_no_end_and_no_blocks() -> None:
    generation = toy_run()
    for n in (0, 1, 3):
        part = trace_of(replace(generation, blocks=generation.blocks[:n]))
        assert parse_trace(dump_trace(part)) == part


def test_each_line_is_strict_json_and_texts_do_not_break_lines() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    generation = toy_run()
    text = dump_trace(trace_of(generation))
    lines = text.split("\n")
    assert lines.pop() == ""
    assert len(lines) == 1 + len(generation.blocks)
    for line in lines:
        json.loads(line, parse_constant=refuse)
    assert "\u2028" in text  # texts are stored readably, so reading must not take it for the end of a line


def test_a_missing_last_newline_and_windows_line_ends_are_no_harm() -> None:
    trace = trace_of(toy_run())
    text = dump_trace(trace)
    assert parse_trace(text.removesuffix("\n")) == trace
    assert parse_trace(text.replace("\n", "\r\n")) == trace


def test_undefined_numbers_cannot_be_written() -> None:
    trace = trace_of(toy_run())
    with pytest.raises(ValueError, match="JSON"):
        dump_trace(replace(trace, about={"x": float("nan")}))
    with pytest.raises(ValueError, match="zip"):
        dump_trace(replace(trace, texts=trace.texts[:-1]))


# Hostile files. Each is a real trace with one thing wrong.

BOMB = "[" * 100_000
HUGE = 10**400
Lines = list[dict[str, Any]]


@functools.cache
def text_of_a_run() -> str:
    return dump_trace(trace_of(toy_run(block_size=4)))


def lines_of_a_run() -> Lines:
    return [json.loads(line) for line in text_of_a_run().split("\n")[:-1]]


def parse(lines: Lines) -> Trace:
    return parse_trace("".join(json.dumps(line) + "\n" for line in lines))


def index_of(lines: Lines, wanted: Callable[[dict[str, Any]], bool]) -> int:
    return next(i for i, line in enumerate(lines) if i > 1 and wanted(line["block"]))


def refuse(lines: Lines, line: int, match: str | None = None) -> None:
    with pytest.raises(TraceError, match=match) as refused:
        parse(lines)
    assert str(refused.value).startswith(f"line {line + 1}: ")


def test_the_lines_that_the_tests_spoil_are_good() -> None:
    assert parse(lines_of_a_run()).generation.token_ids == toy_run(block_size=4).token_ids


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("format", ["other", None, 1, [], {}]),
        ("version", [0, 2, "1", None, True, 1.5, HUGE]),
        ("about", [None, [], "x", 1]),
        ("prompt_ids", [[], None, {}, "abc", [1.0], [True], ["1"], [-1], [None], [[1]], 7]),
        ("block_size", [None, 0, -1, 8.0, True, "8", [8]]),
        ("params", [None, [], "x", 1]),
    ],
)
def test_a_malformed_header(name: str, values: list[Any]) -> None:
    for value in values:
        lines = lines_of_a_run()
        lines[0][name] = value
        refuse(lines, 0)
    lines = lines_of_a_run()
    del lines[0][name]
    refuse(lines, 0)


def test_another_version_is_named() -> None:
    lines = lines_of_a_run()
    lines[0]["version"] = 7
    refuse(lines, 0, "version 7 cannot be read; this program reads version 1")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-1, "hot", None, True, HUGE, []]),
        ("draft_temperature", [-1, "hot", False, HUGE]),
        ("top_p", [0, 1.5, None, "1", True, HUGE]),
        ("top_k", [-1, 2.5, None, True, "3"]),
        ("rule", ["lucky", None, [], {}, 3]),
        ("seed", [-1, 2**63, 1.0, True, None, "0"]),
        ("shoe_size", [43]),
    ],
)
def test_malformed_params(name: str, values: list[Any]) -> None:
    for value in values:
        lines = lines_of_a_run()
        lines[0]["params"][name] = value
        refuse(lines, 0, "params")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("index", [0, 2, -1, 1.0, True, "1", None, HUGE]),
        ("start", [0, -1, 3.0, True, None, "3", HUGE]),
        ("anchor", [-1, 1.0, True, None, "4", 10**6]),
        ("drafted", [None, [], [1.0, 2, 3], [True, 2, 3], [-1, 2, 3], [1] * 40, {}, "abc"]),
        ("n_accepted", [-1, 4, 1.0, True, None, "1"]),
        ("next_token", [-1, 1.0, None, True, "5"]),
        ("next_kind", ["Bonus", None, 1, [], {}]),
        ("emitted", [None, [], [1, 2, 3, 4, 5, 6], [50.0], "abc", {}]),
        ("finish_reason", ["", "eos", 0, False, [], {}]),
        ("judged", [None, {}, "x", [1], [None], [[]], [{}], [{"target_prob": 0.5}]]),
        ("next_target_prob", ["0.5", True, [], {}, HUGE]),
        ("draft_seconds", [-0.1, "0", None, True, HUGE, []]),
        ("verify_seconds", [-0.1, None]),
        ("other_seconds", [-0.1, None]),
        ("shoe_size", [43]),
    ],
)
def test_a_malformed_block(name: str, values: list[Any]) -> None:
    for value in values:
        lines = lines_of_a_run()
        lines[2]["block"][name] = value
        refuse(lines, 2)


@pytest.mark.parametrize("name", ["index", "start", "anchor", "drafted", "n_accepted", "next_token", "next_kind", "emitted"])
def test_a_block_without_one_of_its_fields(name: str) -> None:
    lines = lines_of_a_run()
    del lines[2]["block"][name]
    refuse(lines, 2)


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_a_block_that_is_no_object(value: Any) -> None:
    lines = lines_of_a_run()
    lines[2]["block"] = value
    refuse(lines, 2, '"block" must be an object')


@pytest.mark.parametrize("name", ["target_prob", "draft_prob", "accept_prob", "target_entropy", "draft_entropy"])
@pytest.mark.parametrize("value", ["0.5", None, True, [], {}, HUGE], ids=["text", "null", "bool", "list", "object", "huge"])
def test_malformed_numbers_of_a_judged_token(name: str, value: Any) -> None:
    lines = lines_of_a_run()
    lines[2]["block"]["judged"][0][name] = value
    refuse(lines, 2, "judged")


@pytest.mark.parametrize(
    "table",
    [
        None, {}, "x", [1], [[]], [[1, 0.5]], [[1, 0.5, 0.5, 0.5]], [[1.5, 0.5, 0.5]], [[True, 0.5, 0.5]], [[-1, 0.5, 0.5]],
        [[1, "0.5", 0.5]], [[1, None, 0.5]], [[1, True, 0.5]], [[1, 0.5, HUGE]], [["1", 0.5, 0.5]], [{"0": 1}],
    ],
    ids=lambda table: str(table)[:30],
)  # fmt: skip
def test_a_malformed_table(table: Any) -> None:
    lines = lines_of_a_run()
    lines[2]["block"]["judged"][0]["table"] = table
    refuse(lines, 2)


def test_a_judged_token_with_something_else_in_it() -> None:
    lines = lines_of_a_run()
    lines[2]["block"]["judged"][0]["shoe_size"] = 43
    refuse(lines, 2, "judged")


def test_too_many_or_too_few_judged_tokens() -> None:
    for change in (lambda judged: judged[:-1] + judged[-1:] * 2, lambda judged: judged[:-1]):
        lines = lines_of_a_run()
        i = index_of(lines, lambda block: len(block["judged"]) > 1)
        lines[i]["block"]["judged"] = change(lines[i]["block"]["judged"])
        refuse(lines, i, "judged has the wrong length")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, "-" + "9" * 5000])
@pytest.mark.parametrize("where", ['"temperature":0.9', '"draft_seconds":', '"target_prob":', '"seed":5', '"start":'])
def test_numbers_that_json_or_a_float_does_not_have(number: str, where: str) -> None:
    text = text_of_a_run()
    name = where.split(":")[0]
    head, _, rest = text.partition(name + ":")
    end = min(rest.index(c) for c in ",}" if c in rest)
    with pytest.raises(TraceError, match=r"line [123]: "):
        parse_trace(f"{head}{name}:{number}{rest[end:]}")


@pytest.mark.parametrize("bomb", [BOMB, '{"a":' * 100_000, '{"format":' + BOMB])
def test_nested_bombs(bomb: str) -> None:
    with pytest.raises(TraceError, match="line 1: not valid JSON"):
        parse_trace(bomb)
    good = dump_trace(trace_of(toy_run()))
    with pytest.raises(TraceError, match="not valid JSON"):
        parse_trace(good + bomb)


@pytest.mark.parametrize(
    "text", ["", "\n", " ", "\n\n", "hello", "[]", "1", "null", '"x"', "{}", "\ufeff{}", "{'format': 1}", "\x00"]
)
def test_what_is_no_trace_at_all(text: str) -> None:
    with pytest.raises(TraceError, match="line 1: "):
        parse_trace(text)


def test_a_truncated_file_names_its_last_line() -> None:
    text = dump_trace(trace_of(toy_run()))
    n_lines = text.count("\n")
    for cut in (2, 10, 200):
        with pytest.raises(TraceError, match=f"line {n_lines}: not valid JSON"):
            parse_trace(text[:-cut])


def test_an_empty_line_in_the_middle_is_named() -> None:
    head, _, rest = dump_trace(trace_of(toy_run())).partition("\n")
    with pytest.raises(TraceError, match="line 2: not valid JSON"):
        parse_trace(f"{head}\n\n{rest}")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 1),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 3),
        (lambda lines: [*lines[:3], *lines[4:]], 3),
        (lambda lines: [lines[0], *lines[2:]], 1),
        (lambda lines: [*lines, lines[0]], None),
    ],
    ids=["swapped", "doubled", "missing", "without the first", "two traces"],
)
def test_blocks_out_of_order(change: Callable[[Lines], Lines], line: int | None) -> None:
    lines = change(lines_of_a_run())
    refuse(lines, len(lines) - 1 if line is None else line)


def test_a_block_that_starts_elsewhere() -> None:
    lines = lines_of_a_run()
    for line in lines[3:]:
        line["block"]["start"] += 1
    refuse(lines, 3, "block starts at")


def test_an_anchor_that_is_not_the_last_token() -> None:
    lines = lines_of_a_run()
    lines[3]["block"]["anchor"] += 1
    refuse(lines, 3, "anchor")


def test_a_prefill_with_drafted_tokens() -> None:
    lines = lines_of_a_run()
    block = lines[1]["block"]
    block |= {"drafted": [block["next_token"]], "next_kind": "resampled"}
    refuse(lines, 1, "prefill")


def test_blocks_after_the_end() -> None:
    lines = lines_of_a_run()
    lines[3]["block"]["finish_reason"] = "stop"
    refuse(lines, 4, "finished")


def test_emitted_must_follow_from_the_verdict() -> None:
    lines = lines_of_a_run()
    i = index_of(lines, lambda block: 0 < block["n_accepted"] < 3)
    emitted = lines[i]["block"]["emitted"]
    for wrong in (
        [emitted[0] + 1, *emitted[1:]],  # an accepted token is another
        [*emitted[:-1], emitted[-1] + 1],  # so is the resampled one
        [*emitted, 5],  # one more came out
        emitted[1:],
    ):
        lines[i]["block"]["emitted"] = wrong
        refuse(lines, i, "emitted does not follow")


def test_a_cut_needs_a_reason() -> None:
    lines = lines_of_a_run()
    i = index_of(lines, lambda block: block["n_accepted"] > 0)
    lines[i]["block"]["emitted"].pop()
    refuse(lines[: i + 1], i, "finish_reason")
    lines[i]["block"]["finish_reason"] = "length"
    assert parse(lines[: i + 1]).generation.blocks[-1].is_cut


def test_the_kind_of_the_next_token_must_follow_from_the_verdict() -> None:
    for n_accepted, wrong in ((lambda n: n < 3, "bonus"), (lambda n: n == 3, "resampled")):
        lines = lines_of_a_run()
        i = index_of(lines, lambda block, ok=n_accepted: ok(block["n_accepted"]))  # type: ignore[misc]
        lines[i]["block"]["next_kind"] = wrong
        refuse(lines, i, "next_kind")


def test_a_spoilt_file_is_read_or_refused_and_nothing_else() -> None:
    """Characters removed, doubled and replaced at random: TraceError is all that comes of it."""
    rng = random.Random(0)
    text, refused = text_of_a_run(), 0
    for _ in range(400):
        i = rng.randrange(len(text))
        spoilt = text[:i] + rng.choice(["", text[i] * 2, *'0-."[]{}, \n\u2028', "null", "9" * 5000, "[" * 5000]) + text[i + 1 :]
        try:
            parse_trace(spoilt)
        except TraceError:
            refused += 1
    assert refused > 200


def test_what_is_said_about_a_run_and_its_texts_are_returned_unread() -> None:
    lines = lines_of_a_run()
    lines[0]["about"] = {"anything": [{"goes": None}]}
    lines[1]["text"] = "\ud800"
    del lines[2]["text"]
    trace = parse(lines)
    assert trace.about == {"anything": [{"goes": None}]}
    assert trace.texts[:2] == ("\ud800", None)
