"""Traces opened from files: what a good one brings, and that a bad one brings nothing but a message."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from dflash_core import RULES
from dflash_core.trace import TraceError
from dflash_core.whatif import WhatIf, judged_positions
from dflash_ui import opened
from dflash_ui.opened import OpenedRuns, read_run
from dflash_ui.run import Run
from dflash_ui.runs import Runs
from dflash_ui.stage import encode
from dflash_ui.traces import trace_functions
from tests.test_runs import done_run, toy_runs

Lines = list[dict[str, Any]]


@functools.cache
def live_run(rule: str = "speculative") -> Run:
    return done_run(toy_runs(), rule=rule)


def lines_of_a_run() -> Lines:
    return [json.loads(line) for line in live_run().trace().split("\n")[:-1]]


def joined(lines: Lines) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def refusal(lines: Lines) -> str:
    with pytest.raises(TraceError) as refused:
        read_run(joined(lines), "x.jsonl", "x")
    return str(refused.value)


@pytest.mark.parametrize("rule", RULES)
def test_a_run_saved_and_opened_is_the_run(rule: str) -> None:
    live = live_run(rule)
    run = read_run(live.trace(), "mine.jsonl", "x")
    assert (run.status, run.message) == ("recorded", "mine.jsonl")
    assert run.trace() == live.trace()
    assert run.head is not None and live.head is not None
    assert run.head == live.head | {"recorded": live.about["date"]}
    assert run.stats() == live.stats()
    for one, two in zip(run.views, live.views, strict=True):
        assert {**one, "words": 0} == {**two, "words": 0}


def test_a_what_if_is_kept() -> None:
    live = live_run()
    positions = judged_positions(live.blocks)
    table = tuple((0.25, 0.5) for _ in positions)
    whatif = WhatIf((0.5, 1.0), positions, {"match": table}, table, table, table, table)
    text = live.trace() + json.dumps({"whatif": whatif.to_dict()}, separators=(",", ":")) + "\n"
    assert read_run(text, "x", "x").trace() == text


def test_a_chip_cannot_say_what_its_block_does_not() -> None:
    """States and numbers of the file's chips are not looked at: they are those of the block."""
    lines = lines_of_a_run()
    for line in lines[1:]:
        for chip in line["text"]:
            chip |= {"p": 0.123, "q": "<b>", "s": "bonus", "pos": -1, "a": [1], "hp": None, "onclick": "alert(1)"}
    assert read_run(joined(lines), "x", "x").views == read_run(live_run().trace(), "x", "x").views


def change(path: tuple[Any, ...], value: Any) -> Callable[[Lines], None]:
    def spoil(lines: Lines) -> None:
        node: Any = lines
        for key in path[:-1]:
            node = node[key]
        if value is KeyError:
            del node[path[-1]]
        else:
            node[path[-1]] = value

    return spoil


@pytest.mark.parametrize("name", ["pair", "pair_key", "device", "dtype", "date", "prompt"])
@pytest.mark.parametrize("value", [None, 3, True, [], {}, "x" * 300_000, "\ud800", KeyError], ids=lambda value: str(value)[:9])
def test_malformed_words_about_a_run(name: str, value: Any) -> None:
    lines = lines_of_a_run()
    change((0, "about", name), value)(lines)
    said = refusal(lines)
    assert said.startswith("line 1: ") and name in said and len(said) < 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chat", 1), ("trained_block_size", 0), ("trained_block_size", 1e9), ("trained_block_size", True),
        ("max_new_tokens", 10**400), ("max_new_tokens", "9"), ("title", ["x"]), ("recorded", 2026),
        ("versions", []), ("versions", {"torch": 2}), ("versions", {"x" * 500: "2"}),
        ("words", []), ("words", {"a": "b"}), ("words", {"1": 2}), ("words", {"-1": "x"}), ("words", {"9" * 4000: "x"}),
        ("words", {"１": "x"}), ("words", {"1": "x" * 2000}), ("words", {"1": "\udfff"}),
        ("prompt_chips", "x"), ("prompt_chips", [1]), ("prompt_chips", [{}]), ("prompt_chips", [{"pos": 0, "t": 1}]),
        ("prompt_chips", [{"pos": 0, "t": "x", "special": 2}]), ("prompt_chips", [{"pos": 10**30, "t": "x"}]),
        ("prompt_chips", [{"pos": 0, "t": "x" * 150_000}] * 2),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_other_malformed_words_about_a_run(name: str, value: Any) -> None:
    lines = lines_of_a_run()
    change((0, "about", name), value)(lines)
    said = refusal(lines)
    assert said.startswith(f'line 1: "about", {name}: ') and len(said) < 200


@pytest.mark.parametrize(
    "text",
    [
        None, "x", {}, [], [None], [[]], [{}], [{"ids": [], "t": "x"}], [{"ids": "abc", "t": "x"}], KeyError,
        [{"ids": [[1]], "t": "x"}], [{"ids": [10**400], "t": "x"}], [{"ids": [True], "t": "x"}], [{"ids": {}, "t": "x"}],
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_malformed_texts_of_a_block(text: Any) -> None:
    lines = lines_of_a_run()
    change((3, "text"), text)(lines)
    assert refusal(lines).startswith('line 4: "text": ')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("t", None), ("t", 5), ("t", ["x"]), ("t", "x" * 1001), ("t", "\udc00"), ("t", KeyError), ("special", 1.5),
        ("special", "y"), ("ids", []), ("ids", [1, 2, 3]), ("ids", None), ("ids", KeyError),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_malformed_chip(name: str, value: Any) -> None:
    lines = lines_of_a_run()
    change((3, "text", 0, name), value)(lines)
    assert refusal(lines).startswith('line 4: "text": ')


def test_chips_of_other_tokens() -> None:
    for spoil in (
        lambda chips: chips[:-1],
        lambda chips: [*chips, chips[-1]],
        lambda chips: chips[::-1],
        lambda chips: [{**chips[0], "ids": [chips[0]["ids"][0] + 1]}, *chips[1:]],
        # One chip for tokens of two states.
        lambda chips: [{**chips[0], "ids": [token for chip in chips for token in chip["ids"]]}],
    ):
        lines = lines_of_a_run()
        number = next(i for i, line in enumerate(lines) if i > 1 and len(line["text"]) > 3)
        lines[number]["text"] = spoil(lines[number]["text"])
        assert refusal(lines).startswith(f'line {number + 1}: "text": ')


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("block_size",), 10**9), (("prompt_ids", 0), 2**31), (("block", "next_target_prob"), 2),
        (("block", "draft_seconds"), 1e308), (("block", "judged", 0, "target_prob"), -0.1),
        (("block", "judged", 0, "accept_prob"), 1.5), (("block", "judged", 0, "target_entropy"), 1e300),
        (("block", "judged", 0, "table", 0), [1, 0.9, 1e300]), (("block", "judged", 0, "table"), [[1, 0.9, 0.9], [2, 0.9, 0]]),
        (("block", "judged", 0, "table", 0, 0), 2**40),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_no_run_has(path: tuple[Any, ...], value: Any) -> None:
    """Each of them once was finite and of the right type, and would have broken a sum, the memory or the Lossless? tab."""
    lines = lines_of_a_run()
    number = 2 if path[0] == "block" else 0
    change((number, *path), value)(lines)
    assert refusal(lines).startswith(f"line {number + 1}: ")


def test_files_that_are_no_traces() -> None:
    for text, said in (
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("\x89PNG\r\n\x1a\n", "line 1: not valid JSON"),
        ('{"a": 1}', "line 1: not a DFlash Lab trace"),
        ("[" * 200_000, "line 1: not valid JSON"),
        (joined(lines_of_a_run()[:1]), "the trace has no blocks"),
    ):
        with pytest.raises(TraceError, match=said):
            read_run(text, "x", "x")
    lines = lines_of_a_run()
    lines[0]["version"] = 7
    assert refusal(lines) == (
        "line 1: trace version 7 cannot be read; this program reads version 1 (a newer DFlash Lab wrote it: update this one)"
    )


JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**400,
    2**63,
    1e308,
    "",
    "x",
    "\ud800",
    "<script>alert(1)</script>",
    [],
    {},
    [[]],
    {"a": 1},
]


def mutated(lines: Lines, rng: random.Random) -> Lines:
    """A copy with one value, somewhere, replaced, dropped, doubled or swapped for its neighbour."""
    lines = copy.deepcopy(lines)
    node: Any = lines
    while True:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if not isinstance(node[key], (dict, list)) or not node[key] or rng.random() < 0.15:
            break
        node = node[key]
    kind = rng.choice(["junk", "junk", "drop", "double", "swap"])
    if kind == "junk":
        node[key] = rng.choice(JUNK)
    elif kind == "drop":
        del node[key]
    elif isinstance(node, list):
        other = rng.randrange(len(node))
        if kind == "double":
            node.insert(other, copy.deepcopy(node[key]))
        else:
            node[key], node[other] = node[other], node[key]
    else:
        node[rng.choice([*node, "shoe_size"])] = node[key]
    return lines


def test_a_spoilt_trace_gives_a_run_or_a_message_and_nothing_else() -> None:
    rng, lines = random.Random(1), lines_of_a_run()[:6]
    messages: list[str] = []
    opened_anyway = 0
    for _ in range(400):
        spoilt = mutated(lines, rng)
        try:
            run = read_run(joined(spoilt), "x", "x")
        except TraceError as error:
            messages.append(str(error))
            continue
        opened_anyway += 1
        # What the page asks of a run can be answered and sent, and it can be saved and opened again.
        encode(run.payload(0, head=True)).encode("utf-8")
        assert read_run(run.trace(), "x", "x").views == run.views
    assert len(messages) > 100 and opened_anyway > 20 and max(map(len, messages)) < 500


# What the server keeps


def ask(opened_runs: OpenedRuns, **asked: Any) -> dict[str, Any]:
    (open_trace,) = [
        f for f in trace_functions(Runs(lambda _: iter(()), lambda *_: iter(())), opened_runs) if f.__name__ == "open_trace"
    ]
    answer = json.loads(open_trace({"text": live_run().trace(), "file": "a.jsonl", "page": "p"} | asked) or "")
    assert isinstance(answer, dict)
    return answer


def test_opened_runs_are_found_and_the_oldest_of_a_page_goes_first() -> None:
    kept = OpenedRuns()
    runs = Runs(lambda _: iter(()), lambda *_: iter(()), (), kept.get)
    other = ask(kept, page="other")["run"]
    own = [ask(kept, file=f"{i}.jsonl")["run"] for i in range(opened.MAX_PER_PAGE)]
    assert [run.message for run in map(runs.get, own) if run] == [f"{i}.jsonl" for i in range(opened.MAX_PER_PAGE)]
    assert ask(kept)["dropped"] == own[:1]
    assert runs.get(own[0]) is None and runs.get(own[1]) and runs.get(other)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(live_run().trace().encode())
    monkeypatch.setattr(opened, "MAX_PAGE_BYTES", int(1.5 * size))
    monkeypatch.setattr(opened, "MAX_BYTES", int(3.5 * size))
    kept = OpenedRuns()
    first = ask(kept)["run"]
    second = ask(kept)
    assert second["dropped"] == [first] and kept.get(first) is None
    others = [ask(kept, page=f"page {i}") for i in range(3)]
    assert kept.get(second["run"]) is None and all(kept.get(other["run"]) for other in others)
    assert not any(other["dropped"] for other in others)
    monkeypatch.setattr(opened, "MAX_FILE", size - 1)
    assert "MB; traces up to" in ask(kept)["error"]
    assert all(kept.get(other["run"]) for other in others)


@pytest.mark.parametrize("asked", [{"text": None}, {"file": 3}, {"page": []}, {"text": {"path": "x"}}], ids=str)
def test_what_is_no_file_is_refused(asked: dict[str, Any]) -> None:
    assert "no file" in ask(OpenedRuns(), **asked)["error"]
