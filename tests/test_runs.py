"""Runs: what the page is told while one goes on, turns on the device, and the shelf that holds the loaded pair."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from typing import Any

import pytest
import torch

from dflash_core import RULES, Block, SamplingParams
from dflash_core.metrics import run_stats
from dflash_core.pairs import Pair, PairError, load_pair
from dflash_core.toy import ToyTarget
from dflash_core.trace import parse_trace
from dflash_core.weights import Progress, WeightsUnavailable
from dflash_ui import models, runs
from dflash_ui.models import Shelf, make_decode
from dflash_ui.requests import RunRequest
from dflash_ui.run import Run
from dflash_ui.runs import Runs

PAYLOAD = {"v", "run", "status", "message", "progress", "head", "n", "w", "stats", "plain"}
HEAD = {
    "pair", "device", "dtype", "rule", "rule_label", "lossless", "temperature", "block_size", "trained_block_size",
    "max_new_tokens", "seed", "top_p", "top_k", "draft_temperature", "prompt", "prompt_tokens", "recorded",
}  # fmt: skip
VIEW = {
    *("i", "start", "n_drafted", "tau", "mean", "cut", "finish", "chips", "sec"),
    *("anchor", "drafted", "kept", "emitted", "next", "p_next", "judged", "words", "tokens", "clock"),
}

Payload = dict[str, Any]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block is flushed, and waiting takes no time, so that nothing depends on how fast this machine is."""
    monkeypatch.setattr(runs, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(runs, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(models, "POLL_SECONDS", 0.01)


def request(**changes: Any) -> RunRequest:
    params = {name: changes.pop(name) for name in list(changes) if name in SamplingParams.__slots__}
    params = {"temperature": 0.8, "seed": 2, **params}
    values = {"prompt": "the cat saw", "pair": "toy", "block_size": 5, "max_new_tokens": 30, "chat": False, **changes}
    return RunRequest(params=SamplingParams(**params), **values)


def toy_shelf() -> Shelf:
    return Shelf(lambda name, progress: load_pair(name), "toy")


def toy_runs(**options: Any) -> Runs:
    shelf = toy_shelf()
    return Runs(options.get("load", shelf.steps), options.get("decode", make_decode(shelf)))


def views_of(payloads: list[Payload]) -> list[dict[str, Any]]:
    return [view for payload in payloads for view in payload["w"]]


def text_of(views: list[dict[str, Any]]) -> str:
    ghosts = ("rejected", "unjudged", "cut")
    return "".join(chip["t"] for view in views for chip in view["chips"] if chip["s"] not in ghosts)


def is_free(all_runs: Runs) -> bool:
    """Whether the next visitor gets the device without waiting."""
    first = next(iter(all_runs.payloads(all_runs.start(request()))))
    return bool(first["status"] != "waiting")


def done_run(all_runs: Runs, **changes: Any) -> Run:
    run = all_runs.start(request(**changes))
    for _ in all_runs.payloads(run):
        pass
    assert run.status == "done"
    return run


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# What the page is sent


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("flush_seconds", [0.0, 0.002, 1000.0])
def test_payloads_of_a_run(monkeypatch: pytest.MonkeyPatch, rule: str, flush_seconds: float) -> None:
    monkeypatch.setattr(runs, "FLUSH_SECONDS", flush_seconds)
    all_runs = toy_runs()
    run = all_runs.start(request(rule=rule))
    payloads = []
    for payload in all_runs.payloads(run):
        payloads.append(json.loads(json.dumps(payload, allow_nan=False)))
        assert payload["n"] == len(run.views) == len(run.blocks)
    for payload in payloads:
        assert set(payload) == PAYLOAD
        assert (payload["v"], payload["run"], payload["plain"]) == (1, run.id, None)
        assert payload["head"] is None or set(payload["head"]) == HEAD
    heads = [payload["head"] for payload in payloads if payload["head"]]
    assert len(heads) == 1  # and it comes before any block
    assert not any(payload["w"] for payload in payloads[: next(i for i, p in enumerate(payloads) if p["head"])])
    views = views_of(payloads)
    assert [view["i"] for view in views] == list(range(len(run.blocks)))  # each block once, in order, none missing
    assert all(set(view) == VIEW for view in views)
    last = payloads[-1]
    assert (last["status"], last["message"], last["n"]) == ("done", "Token limit reached", len(run.blocks))
    assert payloads[-2]["status"] in ("running", "loading")
    stats = last["stats"]
    figures = asdict(run_stats(run.blocks, 5))
    assert stats == json.loads(json.dumps(figures | {"notices": stats["notices"], "repetition": False}))
    assert (views[-1]["tokens"], views[-1]["clock"]) == (stats["n_tokens"], stats["seconds"])
    assert stats["tau"] == views[-1]["mean"] == figures["tau"] and views[0]["mean"] is None
    assert len(run.token_ids) == 30 == stats["n_tokens"]
    pair = load_pair("toy")
    prompt = pair.encode("the cat saw", chat=False)[0].tolist()
    assert text_of(views) == pair.tokenizer.decode([*prompt, *run.token_ids])[len(pair.tokenizer.decode(prompt)) :]


def test_head_says_what_is_run_on_what() -> None:
    all_runs = toy_runs()
    run = all_runs.start(request(draft_temperature=0.4, top_p=0.9, top_k=30, seed=7))
    head: Any = next(payload["head"] for payload in all_runs.payloads(run) if payload["head"])
    assert head["prompt"] == [{"s": "prompt", "pos": 0, "t": " the cat saw", "ids": []}]
    del head["prompt"]
    assert head == {
        "pair": "Toy word chain (no weights)", "device": "cpu", "dtype": "float32", "rule": "match", "rule_label": "match",
        "lossless": True, "temperature": 0.8, "block_size": 5, "trained_block_size": 8, "max_new_tokens": 30, "seed": 7,
        "top_p": 0.9, "top_k": 30, "draft_temperature": 0.4, "prompt_tokens": 3, "recorded": None,
    }  # fmt: skip


def test_at_most_so_many_payloads_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 blocks of 5 ms each and a flush every 50 ms: about 6 flushes, and never 60."""
    monkeypatch.setattr(runs, "FLUSH_SECONDS", 0.05)
    inner = make_decode(shelf := toy_shelf())

    def slow(*arguments: Any) -> Iterator[Block]:
        for block in inner(*arguments):
            time.sleep(0.005)
            yield block

    all_runs = toy_runs(load=shelf.steps, decode=slow)
    run = all_runs.start(request(block_size=1, max_new_tokens=60))
    started = time.monotonic()
    payloads = [payload for payload in all_runs.payloads(run) if payload["w"]]
    assert 3 <= len(payloads) <= (time.monotonic() - started) / 0.05 + 1
    assert [view["i"] for view in views_of(payloads)] == list(range(60))


def test_a_payload_from_any_block_on() -> None:
    run = done_run(toy_runs())
    whole = run.payload(0, head=True)
    assert whole["head"] == run.head and len(whole["w"]) == whole["n"]
    assert run.payload(3)["w"] == whole["w"][3:] and run.payload(3)["head"] is None
    assert run.payload()["w"] == run.payload(10**9)["w"] == []


def test_notices_come_with_the_figures() -> None:
    notices = done_run(toy_runs(), block_size=20, draft_temperature=0.1).payload()["stats"]["notices"]
    assert len(notices) == 2 and "20" in notices[0] and "temperature" in notices[1]
    assert done_run(toy_runs()).payload()["stats"]["notices"] == []


def test_a_model_that_ends_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pair: Any = load_pair("toy")
    pair.target.logits[:, 1] = 3.0  # <stop> comes up
    all_runs = Runs(lambda name: iter([pair]), lambda *arguments: decode_with(pair, *arguments))
    run = all_runs.start(request(max_new_tokens=1000))
    last = list(all_runs.payloads(run))[-1]
    assert (last["status"], last["message"]) == ("done", "The model ended its answer")
    assert run.token_ids[-1] == 1 and run.views[-1]["finish"] == "stop"


def decode_with(pair: Pair, *arguments: Any) -> Iterator[Block]:
    shelf = Shelf(lambda name, progress: pair, "any")
    shelf.load_now()
    return make_decode(shelf)(*arguments)


# Stop


def test_stop_in_the_middle_keeps_the_text() -> None:
    all_runs = toy_runs()
    whole = done_run(all_runs, max_new_tokens=60)
    run = all_runs.start(request(max_new_tokens=60))
    payloads = []
    for payload in all_runs.payloads(run):
        payloads.append(payload)
        if payload["n"] == 3:
            run.stop.set()
    last = payloads[-1]
    assert (last["status"], last["message"]) == ("stopped", "Stopped; the text so far is kept")
    assert last["n"] == 4 == len(views_of(payloads))
    assert run.token_ids == whole.token_ids[: len(run.token_ids)] and 4 <= len(run.token_ids) < 60
    assert last["stats"]["n_tokens"] == len(run.token_ids)
    assert parse_trace(run.trace()).generation.token_ids == tuple(run.token_ids)
    assert is_free(all_runs)


def test_stop_at_the_last_block_is_done() -> None:
    all_runs = toy_runs()
    done_run(all_runs)  # loads the pair
    run = all_runs.start(request(max_new_tokens=1))
    run.stop.set()
    assert list(all_runs.payloads(run))[-1]["status"] == "done"


def test_stop_while_loading() -> None:
    all_runs = toy_runs(load=lambda name: iter([{"phase": "Fetching", "fraction": 0.5, "seconds_left": 3.0}] * 10))
    run = all_runs.start(request())
    payloads = []
    for payload in all_runs.payloads(run):
        payloads.append(payload)
        if len(payloads) == 2:
            run.stop.set()
    assert [payload["status"] for payload in payloads] == ["loading", "loading", "stopped"]
    assert (payloads[0]["message"], payloads[0]["progress"]) == ("Fetching", {"fraction": 0.5, "seconds_left": 3.0})
    assert payloads[-1]["stats"] is None and payloads[-1]["progress"] is None


# Errors


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PairError("this target and this draft do not fit"), "this target and this draft do not fit"),
        (WeightsUnavailable("no network: connect and try again"), "no network: connect and try again"),
        (torch.OutOfMemoryError("CUDA out of memory, 3 frames"), "The device's memory is full: ask for fewer tokens"),
        (RuntimeError("secret/path"), "Something went wrong in this program (RuntimeError); its log has the details"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
@pytest.mark.parametrize("when", ["loading", "first block", "later"])
def test_an_error_is_the_last_payload_and_frees_the_device(
    error: Exception, message: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    shelf, faults = toy_shelf(), [error]
    inner = make_decode(shelf)

    def load(name: str) -> Iterator[Pair | dict[str, Any]]:
        if when == "loading" and faults:
            raise faults.pop()
        yield from shelf.steps(name)

    def decode(*arguments: Any) -> Generator[Block, None, None]:
        for n, block in enumerate(inner(*arguments)):
            if n == (3 if when == "later" else 0) and faults and when != "loading":
                raise faults.pop()
            yield block

    all_runs = toy_runs(load=load, decode=decode)
    run = all_runs.start(request())
    payloads = list(all_runs.payloads(run))
    assert payloads[-1]["status"] == run.status == "error"
    assert payloads[-1]["message"].startswith(message)
    assert payloads[-1]["n"] == len(views_of(payloads)) == (3 if when == "later" else 0)
    logged = type(error) is RuntimeError  # what nobody foresaw; the others say themselves what to do
    assert [record.getMessage() for record in caplog.records] == ["A run failed"] * logged
    done_run(all_runs)  # the next one runs


def test_blocks_before_an_error_are_sent_though_no_flush_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FLUSH_SECONDS", 1000.0)
    shelf = toy_shelf()
    inner = make_decode(shelf)

    def decode(*arguments: Any) -> Generator[Block, None, None]:
        for n, block in enumerate(inner(*arguments)):
            if n == 3:
                raise ValueError("out of blocks")
            yield block

    all_runs = toy_runs(load=shelf.steps, decode=decode)
    payloads = list(all_runs.payloads(all_runs.start(request())))
    assert [view["i"] for view in views_of(payloads)] == [0, 1, 2]
    assert (payloads[-1]["status"], payloads[-1]["message"]) == ("error", "out of blocks")


def test_a_prompt_that_cannot_be_encoded_or_does_not_fit_is_an_error_with_a_reason() -> None:
    all_runs = toy_runs()
    for changes, message in (({"chat": True}, "no chat template"), ({"prompt": "the " * 9000}, "shorten the prompt")):
        payload = list(all_runs.payloads(all_runs.start(request(**changes))))[-1]
        assert payload["status"] == "error" and message in payload["message"]
    assert is_free(all_runs)


# Turns on the device


class Gate:
    """A decode that goes on block by block when told to."""

    def __init__(self, shelf: Shelf) -> None:
        self.inner = make_decode(shelf)
        self.open = threading.Event()
        self.closed = 0

    def __call__(self, *arguments: Any) -> Generator[Block, None, None]:
        try:
            for block in self.inner(*arguments):
                yield block
                self.open.wait(20)
        finally:
            self.closed += 1


def test_a_second_visitor_waits_and_then_runs() -> None:
    shelf = toy_shelf()
    gate = Gate(shelf)
    all_runs = toy_runs(load=shelf.steps, decode=gate)
    seen: dict[str, list[Payload]] = {"first": [], "second": [], "third": []}

    def visit(name: str) -> None:
        for payload in all_runs.payloads(all_runs.start(request())):
            seen[name].append(payload)

    threads = []
    for n, name in enumerate(seen):
        threads.append(threading.Thread(target=visit, args=(name,)))
        threads[-1].start()
        wait_until(lambda name=name: len(seen[name]) > 1)  # type: ignore[misc]
        assert seen[name][-1]["status"] == ("running" if n == 0 else "waiting")
    assert seen["second"][0]["message"] == "one run ahead of you on this device"
    assert seen["third"][0]["message"] == "2 ahead of you on this device"
    assert all(payload["status"] == "waiting" for payload in seen["second"])
    gate.open.set()
    for thread in threads:
        thread.join(20)
    assert [payloads[-1]["status"] for payloads in seen.values()] == ["done"] * 3
    for name in ("second", "third"):
        kinds = list(dict.fromkeys(payload["status"] for payload in seen[name]))
        assert kinds == ["waiting", "running", "done"]
    assert views_of(seen["first"])[-1]["chips"] == views_of(seen["third"])[-1]["chips"]
    assert gate.closed == 3


def test_closing_a_run_frees_the_device_and_ends_the_loop() -> None:
    shelf = toy_shelf()
    gate = Gate(shelf)
    gate.open.set()
    all_runs = toy_runs(load=shelf.steps, decode=gate)
    run = all_runs.start(request())
    payloads: Any = all_runs.payloads(run)
    for payload in payloads:
        if payload["n"] == 2:
            break
    payloads.close()
    assert gate.closed == 1 and len(run.blocks) == 2
    assert run.status == "stopped"  # who asks for it later is not told that it still goes on
    assert is_free(all_runs)


def test_closing_while_waiting_gives_up_the_place() -> None:
    all_runs = toy_runs()
    first: Any = all_runs.payloads(all_runs.start(request()))
    next(first)
    second_run, third_run = all_runs.start(request()), all_runs.start(request())
    second: Any = all_runs.payloads(second_run)
    third: Any = all_runs.payloads(third_run)
    assert next(second)["status"] == next(third)["status"] == "waiting"
    assert "2 ahead" in next(third)["message"]
    second.close()
    assert second_run.status == "stopped"
    assert "one run ahead" in next(third)["message"]
    first.close()
    assert next(third)["status"] in ("loading", "running")
    assert list(third)[-1]["status"] == "done"


def test_stop_while_waiting() -> None:
    all_runs = toy_runs()
    first: Any = all_runs.payloads(all_runs.start(request()))
    next(first)
    run = all_runs.start(request())
    waiting: Any = all_runs.payloads(run)
    next(waiting)
    run.stop.set()
    assert [payload["status"] for payload in waiting] == ["stopped"]
    first.close()
    assert is_free(all_runs)


def test_closing_while_loading_frees_the_device() -> None:
    closed = []

    def load(name: str) -> Iterator[Pair | dict[str, Any]]:
        try:
            while True:
                yield {"phase": "Fetching", "fraction": None, "seconds_left": None}
        finally:
            closed.append(name)

    all_runs = toy_runs(load=load)
    run = all_runs.start(request())
    payloads: Any = all_runs.payloads(run)
    assert next(payloads)["status"] == "loading"
    payloads.close()
    assert closed == ["toy"] and run.status == "stopped"
    assert is_free(all_runs)


# The log of runs


def test_the_latest_runs_are_kept_and_found_by_id_and_session() -> None:
    all_runs = toy_runs()
    made = []
    for i in range(runs.KEPT_RUNS + 3):
        made.append(all_runs.start(request(), session=f"s{i}"))
        if i != 1:  # the second one goes on: it is kept however old it is
            made[-1].set("done")
    all_runs.start(request())
    assert len({run.id for run in made}) == len(made)
    for i, run in enumerate(made):
        kept = run if i == 1 or i >= 5 else None
        assert all_runs.get(run.id) is kept
        assert all_runs.of_session(f"s{i}") is kept


def test_a_session_has_its_latest_run() -> None:
    all_runs = toy_runs()
    first, second = (all_runs.start(request(), session="me") for _ in range(2))
    other = all_runs.start(request())
    assert all_runs.of_session("me") is second
    assert all_runs.of_session(None) is all_runs.of_session("") is all_runs.of_session("you") is None
    assert all_runs.get(first.id) is first and all_runs.get(other.id) is other


@pytest.mark.parametrize(
    "asked", [None, "", "nope", 0, 3.5, True, [], ["x"], {}, {"run": "x"}, b"x", ("a",), "x" * 10**6], ids=repr
)
def test_unknown_ids_of_any_type_are_nothing(asked: Any) -> None:
    all_runs = toy_runs()
    all_runs.start(request())
    assert all_runs.get(asked) is None


# Plain decoding, measured


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": 0.0, "rule": "speculative"}, True),
        ({"temperature": 1.0}, True),
        ({"temperature": 1.0, "rule": "greedy-match"}, True),
        ({"temperature": 1.0, "rule": "speculative"}, None),
    ],
    ids=str,
)
def test_plain_decoding_gives_the_same_text_where_the_rule_says_so(changes: dict[str, Any], same: bool | None) -> None:
    all_runs = toy_runs()
    run = done_run(all_runs, **changes)
    payloads = list(all_runs.plain_payloads(run))
    assert {payload["status"] for payload in payloads[:-1]} == {"running"}
    assert any(payload["progress"] and payload["progress"]["fraction"] == pytest.approx(1 / 30) for payload in payloads)
    plain = payloads[-1]["plain"]
    assert set(plain) == {"tokens_per_second", "speedup", "n_tokens", "same_text", "note"}
    assert plain["same_text"] is same and plain["n_tokens"] == 30
    assert plain["speedup"] == pytest.approx(run.stats().tokens_per_second / plain["tokens_per_second"])
    assert (payloads[-1]["status"], payloads[-1]["message"]) == ("done", "Token limit reached")
    assert payloads[-1]["n"] == len(run.blocks) and len(run.token_ids) == 30  # the run itself is as it was
    assert is_free(all_runs)


def test_plain_decoding_of_another_text_is_told() -> None:
    shelf = toy_shelf()
    inner = make_decode(shelf)

    def other(ids: list[int], params: SamplingParams, block_size: int, n: int) -> Iterator[Block]:
        return inner(ids if block_size > 1 else ids[:-1], params, block_size, n)

    all_runs = toy_runs(load=shelf.steps, decode=other)
    run = done_run(all_runs)
    assert list(all_runs.plain_payloads(run))[-1]["plain"]["same_text"] is False


def test_plain_decoding_of_a_stopped_run_is_as_long_as_that_and_can_be_stopped() -> None:
    all_runs = toy_runs()
    run = all_runs.start(request(max_new_tokens=500))
    for payload in all_runs.payloads(run):
        if payload["n"] == 3:
            run.stop.set()
    last = list(all_runs.plain_payloads(run))[-1]
    assert last["plain"]["n_tokens"] == len(run.token_ids) < 500 and last["plain"]["same_text"] is True
    assert last["status"] == "stopped"

    run.plain = None
    payloads = []
    for payload in all_runs.plain_payloads(run):
        payloads.append(payload)
        run.stop.set()
    assert payloads[-1]["plain"] is None and payloads[-1]["status"] == "stopped"
    assert is_free(all_runs)


def test_plain_decoding_that_fails_or_is_left_keeps_the_run() -> None:
    shelf, faults = toy_shelf(), [ValueError("no memory left")]
    inner = make_decode(shelf)

    def decode(*arguments: Any) -> Iterator[Block]:
        if arguments[2] == 1 and faults:
            raise faults.pop()
        return inner(*arguments)

    all_runs = toy_runs(load=shelf.steps, decode=decode)
    run = done_run(all_runs)
    last = list(all_runs.plain_payloads(run))[-1]
    assert (last["status"], last["plain"]) == ("done", None)
    assert last["message"] == "Plain decoding could not be measured: no memory left"

    run.set("done", "Token limit reached")
    measuring: Any = all_runs.plain_payloads(run)
    while next(measuring)["status"] != "running":
        pass
    measuring.close()
    assert (run.status, run.message) == ("done", "Token limit reached")
    assert is_free(all_runs)


# Recorded runs


@pytest.mark.parametrize("changes", [{}, {"block_size": 1}, {"rule": "speculative", "draft_temperature": 0.2}], ids=str)
def test_a_recorded_run_shows_what_the_live_one_did(changes: dict[str, Any]) -> None:
    live = done_run(toy_runs(), **changes)
    recorded = Run.recorded(parse_trace(live.trace()), "sample")
    assert recorded.id == "sample" and recorded.request == live.request and recorded.prompt_ids == live.prompt_ids
    one, two = json.loads(json.dumps([live.payload(0, head=True), recorded.payload(0, head=True)]))
    assert two["status"] == "recorded"
    words = [[view.pop("words") for view in payload["w"]] for payload in (one, two)]
    assert two["w"] and words[1][0] == {token: text for each in words[0] for token, text in each.items()}
    different = ("run", "status", "message")
    assert {k: v for k, v in one.items() if k not in different} == {k: v for k, v in two.items() if k not in different}
    assert recorded.trace() == live.trace()

    all_runs = Runs(toy_shelf().steps, make_decode(toy_shelf()), [recorded])
    assert all_runs.get("sample") is recorded
    for _ in range(runs.KEPT_RUNS + 1):
        all_runs.start(request())
    assert all_runs.get("sample") is recorded  # however many others came since


def test_a_trace_can_be_taken_while_the_run_goes_on() -> None:
    """Also between a block and its view: what is complete is in the trace."""
    all_runs = toy_runs()
    run = all_runs.start(request())
    for _ in all_runs.payloads(run):
        if run.blocks:
            assert parse_trace(run.trace()).generation.blocks == tuple(run.blocks)
    view = run.views.pop()
    assert parse_trace(run.trace()).generation.blocks == tuple(run.blocks[:-1])
    run.views.append(view)


# The shelf


def named_pair(name: str) -> Pair:
    pair = load_pair("toy")
    return Pair(name, name, pair.target, pair.draft, pair.tokenizer, (1,), "cpu", "float32", {})


def take(shelf: Shelf, name: str) -> tuple[Pair, list[dict[str, Any]]]:
    *progress, pair = shelf.steps(name)
    assert isinstance(pair, Pair)
    return pair, [step for step in progress if isinstance(step, dict)]


def test_a_pair_is_loaded_once() -> None:
    loaded: list[str] = []

    def load(name: str, progress: Any) -> Pair:
        loaded.append(name)
        return named_pair(name)

    shelf = Shelf(load, "a")
    shelf.preload()
    first, _ = take(shelf, "a")
    again, steps = take(shelf, "a")
    shelf.preload()
    assert first is again is shelf.pair and loaded == ["a"] and steps == []


def test_several_who_wait_for_a_pair_get_the_same_one() -> None:
    loaded: list[str] = []
    gate = threading.Event()

    def load(name: str, progress: Any) -> Pair:
        loaded.append(name)
        gate.wait(20)
        return named_pair(name)

    shelf, got = Shelf(load, "a"), []
    threads = [threading.Thread(target=lambda: got.append(take(shelf, "a")[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(20)
    assert len(got) == 4 and len(set(map(id, got))) == 1 and loaded == ["a"]


def test_another_pair_replaces_the_one_on_the_shelf_before_it_is_loaded() -> None:
    held: list[Pair | None] = []

    def load(name: str, progress: Any) -> Pair:
        held.append(shelf.pair)
        return named_pair(name)

    shelf = Shelf(load, "a")
    a, _ = take(shelf, "a")
    b, _ = take(shelf, "b")
    assert (a.key, b.key) == ("a", "b") and shelf.pair is b
    assert held == [None, None]  # two large ones may not fit
    assert take(shelf, "a")[0].key == "a"


def test_how_the_loading_goes_is_told() -> None:
    gates = [threading.Event() for _ in range(2)]
    told = [Progress("Fetching", 0.25, 12.0), Progress("Loading the target", None, None)]

    def load(name: str, progress: Any) -> Pair:
        for gate, step in zip(gates, told, strict=True):
            progress(step)
            gate.wait(20)
        return named_pair(name)

    shelf = Shelf(load, "a")
    steps: Any = shelf.steps("a")
    wait_until(lambda: next(steps) == {"phase": "Fetching", "fraction": 0.25, "seconds_left": 12.0})
    gates[0].set()
    wait_until(lambda: next(steps) == {"phase": "Loading the target", "fraction": None, "seconds_left": None})
    gates[1].set()
    last: Any = list(steps)[-1]
    assert isinstance(last, Pair)


def test_an_error_is_raised_once_and_the_next_visitor_tries_again() -> None:
    faults = [PairError("no such file"), PairError("still not there")]

    def load(name: str, progress: Any) -> Pair:
        if faults:
            raise faults.pop(0)
        return named_pair(name)

    shelf = Shelf(load, "a")
    with pytest.raises(PairError, match="no such file"):
        list(shelf.steps("a"))
    assert shelf.pair is None
    with pytest.raises(PairError, match="still not there"):
        shelf.load_now()
    assert take(shelf, "a")[0].key == "a"


def test_an_error_of_one_pair_is_not_told_to_who_wants_another() -> None:
    gate = threading.Event()

    def load(name: str, progress: Any) -> Pair:
        gate.wait(20)
        if name == "bad":
            raise PairError("bad")
        return named_pair(name)

    shelf = Shelf(load, "bad")
    shelf.preload()
    steps: Any = shelf.steps("good")
    assert isinstance(next(steps), dict)
    gate.set()
    *_, pair = steps
    assert pair.key == "good"


def test_load_now_has_the_pair_when_it_returns() -> None:
    shelf = Shelf(lambda name, progress: named_pair(name), "a")
    shelf.load_now()
    assert shelf.pair is not None and take(shelf, "a") == (shelf.pair, [])


def test_the_loop_of_the_shelf_is_the_cores() -> None:
    shelf = toy_shelf()
    shelf.load_now()
    decode = make_decode(shelf)
    blocks = list(decode([3, 5], SamplingParams(temperature=1.0, seed=9), 4, 20))
    assert sum(len(block.emitted) for block in blocks) == 20 and blocks[-1].finish_reason == "length"
    assert all(len(token.table) == runs.TABLE_SIZE for block in blocks for token in block.judged)
    assert any(block.judged for block in blocks)
    plain = list(decode([3, 5], SamplingParams(temperature=1.0, seed=9), 1, 20))
    assert [t for block in plain for t in block.emitted] == [t for block in blocks for t in block.emitted]


def test_longer_runs_ask_for_more_of_a_shared_gpu() -> None:
    asked = [models._gpu_seconds([1], SamplingParams(), 8, n) for n in (1, 128, 1024, 4096)]
    assert asked == sorted(asked) and asked[0] >= 10 and asked[-1] <= 120


def test_the_toy_target_is_not_shared_between_shelves() -> None:
    one, two = toy_shelf(), toy_shelf()
    one.load_now()
    two.load_now()
    assert one.pair is not None and two.pair is not None
    assert isinstance(one.pair.target, ToyTarget) and one.pair.target is not two.pair.target
