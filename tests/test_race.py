"""Races: sides in turns with fresh caches, figures from measured seconds, a verdict for every rule, and the replay."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dflash_core import RULES, Block, Generation, SamplingParams
from dflash_core.pairs import Pair, load_pair
from dflash_core.race import ARMS, WARM_UP_TOKENS, Lap, Round, TextCheck, clock, iter_race, race_stats
from dflash_core.toy import ToyCache, ToyTarget
from dflash_ui import models, race, runs
from dflash_ui.models import Shelf, make_decode, make_race
from dflash_ui.race import MAX_RACE_TOKENS, Pace, Race, Races, race_request
from dflash_ui.race_charts import cost_figure
from dflash_ui.race_report import report
from dflash_ui.requests import RunRequest
from dflash_ui.run import make_head
from dflash_ui.runs import Runs

from .served import ServedPage, Visitor, until
from .test_same_text import RoundingTarget

TOY = {"prompt": "the cat", "chat": 0, "pair": "toy", "t": 1, "b": 4, "n": 40, "seed": 3, "rule": "match"}
LONG = 240_000  # ms: for what takes seconds on an idle machine


class CountingTarget(ToyTarget):
    """Notes the caches it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.caches: list[ToyCache] = []

    def new_cache(self, rows: int = 1) -> ToyCache:
        self.caches.append(super().new_cache(rows))
        return self.caches[-1]


def toy_race(target: ToyTarget | None = None, **options: Any) -> list[Lap | Round]:
    pair = load_pair("toy")
    params = {name: options.pop(name) for name in list(options) if name in SamplingParams.__slots__}
    given = {"block_size": 4, "max_new_tokens": 20, "repeats": 2} | options
    sampling = SamplingParams(**{"temperature": 1.0, "seed": 3} | params)
    return list(iter_race(pair.draft, target or pair.target, torch.tensor([[5, 6]]), params=sampling, **given))


def rounds_of(steps: list[Lap | Round]) -> list[Round]:
    return [step for step in steps if isinstance(step, Round)]


# The race itself


def test_both_sides_take_turns_with_fresh_caches_after_a_warm_up() -> None:
    target = CountingTarget()
    steps = toy_race(target)
    laps = [step for step in steps if isinstance(step, Lap)]
    begun = [(lap.repeat, lap.arm) for lap in laps if lap.block.index == 0]
    assert begun == [(repeat, arm) for repeat in range(3) for arm in ARMS]
    assert len({id(cache) for cache in target.caches}) == len(begun)
    assert all(cache.rows[0][:2] == [5, 6] for cache in target.caches)
    assert sum(len(lap.block.emitted) for lap in laps if not lap.repeat) == 2 * WARM_UP_TOKENS
    # Nothing is recorded on either side, so nothing but the loop is timed.
    assert all(lap.block.judged == () and lap.block.next_target_prob is None for lap in laps)
    # A round comes right after its second run, and holds exactly what was told of it.
    assert isinstance(steps[-1], Round) and isinstance(steps[-2], Lap) and isinstance(steps[0], Lap)
    for number, one in enumerate(rounds_of(steps), start=1):
        for arm, run in (("plain", one.plain), ("dflash", one.dflash)):
            assert run.blocks == tuple(lap.block for lap in laps if (lap.repeat, lap.arm) == (number, arm))
            assert len(run.token_ids) == 20
        assert (one.plain.block_size, one.dflash.block_size) == (1, 4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("key", RULES)
def test_the_verdict_of_every_rule(key: str, temperature: float) -> None:
    expected = "same"
    if temperature and not RULES[key].same_text:
        expected = "other_draw" if RULES[key].lossless else "other_law"
    found = rounds_of(toy_race(rule=key, temperature=temperature, repeats=1))
    assert [one.check.outcome for one in found] == [expected]
    assert (found[0].plain.token_ids == found[0].dflash.token_ids) or expected != "same"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_size": 1}, "plain decoding itself"),
        ({"max_new_tokens": 1}, "at least 2 tokens"),
        ({"repeats": 0}, "repeats must"),
    ],
)
def test_what_cannot_be_raced_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        toy_race(**change)


# Its figures


def run_of(block_size: int, cycles: list[tuple[int, float, float, float]]) -> Generation:
    """A run whose cycles bring so many tokens in so many seconds of draft, verify and other; the prefill takes 100 s."""
    blocks = [Block(0, 1, 5, (), 0, 9, "bonus", (9,), None, verify_seconds=100.0)]
    for index, (n, draft, verify, other) in enumerate(cycles, start=1):
        drafted = (9,) * (block_size - 1)
        kind: Any = "bonus" if n == block_size else "resampled"
        times: dict[str, Any] = {"draft_seconds": draft, "verify_seconds": verify, "other_seconds": other}
        blocks.append(Block(index, index, 9, drafted, n - 1, 9, kind, (9,) * n, None, **times))
    return Generation((5, 5), SamplingParams(), block_size, tuple(blocks))


def made_up(*plain_steps: float) -> list[Round]:
    """Plain decoding at so many seconds a step; DFlash with B = 4 brings 3 tokens in blocks of 1 + 2 + 0.5 s."""
    dflash = run_of(4, [(4, 1.0, 2.0, 0.5), (2, 1.0, 2.0, 0.5)])
    return [Round(run_of(1, [(1, 0.0, step * 0.75, step * 0.25)] * 6), dflash, TextCheck("same")) for step in plain_steps]


def test_figures_from_measured_seconds() -> None:
    # Speeds: DFlash 6 tokens in 7 s; plain 1 / step. Ratio = 6 step / 7.
    stats = race_stats(made_up(1.4, 0.7, 2.1))
    assert stats is not None
    assert stats.ratios == pytest.approx((1.2, 0.6, 1.8))
    assert (stats.speedup, stats.low, stats.high) == pytest.approx((1.2, 0.6, 1.8))
    assert (stats.shown, stats.result, stats.coverage) == (0, "level", 0.75)
    assert stats.speeds[0] == pytest.approx((1 / 1.4, 6 / 7))
    assert (stats.dflash.tau, stats.plain.tau) == (3.0, 1.0)
    # d: draft and the loop's own work; v: the target's pass; both over a plain step of 1.4 s.
    assert (stats.draft_cost, stats.verify_cost) == pytest.approx((1.5 / 1.4, 2.0 / 1.4))
    assert stats.break_even == pytest.approx(2.5)
    assert stats.modelled == pytest.approx(stats.ratios[0])


def test_what_all_repeats_agree_on() -> None:
    for steps, result, shown in (((1.5, 1.4, 1.3), "faster", 1), ((0.9, 0.7, 0.8), "slower", 2), ((1.4,), "faster", 0)):
        stats = race_stats(made_up(*steps))
        assert stats is not None and (stats.result, stats.shown) == (result, shown)
    two = race_stats(made_up(1.4, 2.8))
    assert two is not None and two.speedup == pytest.approx(1.8) and two.coverage == 0.5
    assert race_stats([]) is None
    assert race_stats([Round(run_of(1, []), run_of(4, []), TextCheck("same"))]) is None  # the first token ended the text


def test_the_clock_is_the_measured_time_without_the_prefill() -> None:
    one = made_up(1.4)[0]
    assert clock(one.dflash) == pytest.approx([0.0, 3.5, 7.0])
    assert clock(one.plain) == pytest.approx([0.0, *(1.4 * i for i in range(1, 7))])


def test_the_cost_figure_stacks_to_the_pass_and_to_the_token() -> None:
    stats = race_stats(made_up(1.4, 0.7, 2.1))
    assert stats is not None
    for dark in (False, True):
        figure = cost_figure(stats, dark=dark)
        assert [list(bar.x) for bar in figure.data] == [
            pytest.approx([0.0, 1000.0, 1000 / 3]),
            pytest.approx([1050.0, 2000.0, 2000 / 3]),
            pytest.approx([350.0, 500.0, 500 / 3]),
        ]
        assert [note.text for note in figure.layout.annotations] == ["1400 ms", "3500 ms", "1167 ms"]
        assert len({bar.marker.pattern.shape for bar in figure.data}) == 3  # told apart without colour


# In words


def head_of(pair: Pair, params: SamplingParams, block_size: int = 4) -> dict[str, Any]:
    about = {"pair": pair.label, "device": pair.device, "dtype": pair.dtype, "trained_block_size": 8, "max_new_tokens": 20}
    return make_head(about | {"prompt_chips": []}, params, block_size, 2)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("steps", [(1.4, 1.5, 1.6), (0.7, 0.8, 0.6), (0.7, 1.5, 1.6), (1.4,)])
def test_the_words_for_faster_slower_and_level(steps: tuple[float, ...]) -> None:
    pair, rounds = load_pair("toy"), made_up(*steps)
    told = report(rounds, pair, head_of(pair, SamplingParams()))
    stats = race_stats(rounds)
    assert told is not None and stats is not None
    title, why = told["verdicts"][1]["title"], " ".join(told["why"]["lines"])
    assert f"{stats.speedup:.2f} times" in title and f"= {stats.modelled:.2f} in the repeat shown" in why
    assert f"τ = {stats.break_even:.2f}" in why
    assert ("slower" in title, "No clear difference" in title) == (stats.result == "slower", stats.result == "level")
    assert ("fewer tokens than it cost" in why) == (stats.result == "slower")
    assert ("one repeat only" in told["verdicts"][1]["note"]) == (len(steps) == 1)
    for named in (pair.label, "float32 on cpu", "match", "T = 0", "B = 4", "seed 0", f"n = {len(steps)}"):
        assert named in told["about"]
    assert not any("{" in text for part in told if part != "figure" for text in strings(told[part]))
    plain, dflash = told["lanes"]
    assert (plain["seconds"], dflash["seconds"]) == pytest.approx((6 * steps[stats.shown], 7.0))
    assert {plain["place"], dflash["place"]} == {"first", "later"}
    assert (plain["place"] == "first") == (stats.ratios[stats.shown] < 1)


@pytest.mark.parametrize("key", RULES)
def test_the_words_about_the_texts(key: str) -> None:
    pair, params = load_pair("toy"), SamplingParams(temperature=1.0, rule=key)
    told = report(rounds_of(toy_race(rule=key)), pair, head_of(pair, params))
    assert told is not None
    verdict = told["verdicts"][0]
    rule = RULES[key]
    words = (
        "Identical text"
        if rule.same_text
        else "cannot be compared token by token"
        if rule.lossless
        else "not even follow the same law"
    )
    assert words in verdict["title"] and "difference" not in verdict
    assert (rule.label in verdict["note"]) and "{" not in verdict["note"]
    assert verdict["kind"] == ("good" if rule.same_text else "missed" if rule.lossless else "bad")


def test_what_is_set_beside_the_temperature_is_named() -> None:
    pair = load_pair("toy")
    params: dict[str, Any] = {"top_p": 0.9, "top_k": 30, "draft_temperature": 0.4}
    told = report(rounds_of(toy_race(**params)), pair, head_of(pair, SamplingParams(temperature=1.0)))
    assert told is not None and "T = 1 · top-p 0.9 · top-k 30 · draft temperature 0.4 · B = 4" in told["about"]


@pytest.mark.parametrize(("gap", "title"), [(1e-4, "by rounding"), (0.5, "rounding does not explain it")])
def test_where_two_texts_part_is_told_with_both_margins(gap: float, title: str) -> None:
    pair = dataclasses.replace(load_pair("toy"), target=RoundingTarget(gap))
    rounds = rounds_of(toy_race(RoundingTarget(gap), temperature=0.0))
    told = report(rounds, pair, head_of(pair, SamplingParams()))
    found = rounds[0].check.difference
    assert told is not None and found is not None
    verdict = told["verdicts"][0]
    assert title in verdict["title"] and "0 of 2 repeats" in verdict["note"] and "border" not in verdict["note"]
    rows = verdict["difference"]["rows"]
    words = [pair.tokenizer.decode([token]) for token in (found.token_a, found.token_b)]
    assert [row["token"] for row in rows] == words and [row["name"] for row in rows] == ["Plain decoding", "DFlash, B = 4"]
    assert [row["margin"] for row in rows] == [f"{found.margin_a:+.2g}", f"{found.margin_b:+.2g}"]


# On the device, with the page's payloads


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(runs, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(models, "POLL_SECONDS", 0.01)


def request(**changes: Any) -> RunRequest:
    params = {name: changes.pop(name) for name in list(changes) if name in SamplingParams.__slots__}
    values = {"prompt": "the cat saw", "pair": "toy", "block_size": 4, "max_new_tokens": 20, "chat": False, **changes}
    return RunRequest(params=SamplingParams(**{"temperature": 0.8, "seed": 2} | params), **values)


def toy_races(run_race: Any = None) -> tuple[Races, Runs]:
    shelf = Shelf(lambda name, progress: load_pair(name), "toy")
    all_runs = Runs(shelf.steps, make_decode(shelf))
    return Races(all_runs, run_race or make_race(shelf)), all_runs


def drained(races: Races, asked: Race, seen: Callable[[dict[str, Any]], None] = lambda _: None) -> list[dict[str, Any]]:
    payloads = []
    for payload in races.payloads(asked):
        payloads.append(json.loads(json.dumps(payload, allow_nan=False)))
        seen(payload)
    return payloads


@pytest.mark.usefixtures("quick")
def test_payloads_of_a_race() -> None:
    races, all_runs = toy_races()
    assert races.seconds(request(), None) is None
    asked = races.start(request(), "session")
    payloads = drained(races, asked)
    last = payloads[-1]
    assert last["status"] == "done" and last["message"] == last["result"]["said"] and "Identical text" in last["message"]
    assert all(payload["result"] is None for payload in payloads[:-1])
    assert last["head"]["rule"] == "match" and last["head"]["block_size"] == 4
    fractions = [payload["progress"]["fraction"] for payload in payloads if payload["status"] == "running"]
    known = [fraction for fraction in fractions if fraction is not None]
    assert fractions[0] is None and known == sorted(known) and 0.9 < known[-1] <= 1
    messages = [payload["message"] for payload in payloads]
    places = ["Repeat 1 of 3: Plain decoding", "Repeat 1 of 3: DFlash, B = 4", "Repeat 3 of 3: DFlash, B = 4"]
    found = [next(i for i, message in enumerate(messages) if message.startswith(place)) for place in places]
    assert found == sorted(found)
    one = asked.rounds[0]
    tokenizer = load_pair("toy").tokenizer
    for lane, run in zip(last["result"]["lanes"], (one.plain, one.dflash), strict=True):
        text = "".join(chip["t"] for block in lane["blocks"] for chip in block["chips"])
        prompt = list(run.prompt_ids)
        assert text == tokenizer.decode([*prompt, *run.token_ids])[len(tokenizer.decode(prompt)) :]
        assert (lane["n"], lane["blocks"][-1]["n"]) == (20, 20)
        ats = [block["at"] for block in lane["blocks"]]
        assert ats == sorted(ats) and ats[0] == 0 and lane["seconds"] == ats[-1]
    assert races.seconds(request(), None) is not None  # by now the pair's pace is known
    assert not races._of_session and not all_runs._queue._tickets


@pytest.mark.usefixtures("quick")
def test_stop_keeps_the_complete_repeats() -> None:
    races, all_runs = toy_races()
    for place, n, said in (("Repeat 1", 0, "before one repeat"), ("Repeat 2", 1, "after 1 complete repeats")):
        asked = races.start(request(), "session")

        def stop(payload: dict[str, Any], place: str = place) -> None:
            if payload["message"].startswith(f"{place} of 3: DFlash"):
                races.stop("session")

        last = drained(races, asked, stop)[-1]
        assert last["status"] == "stopped" and said in last["message"] and len(asked.rounds) == n
        assert (last["result"] is None) == (n == 0)
        assert not all_runs._queue._tickets
    races.stop("nobody")


@pytest.mark.usefixtures("quick")
def test_a_race_waits_for_its_turn_and_gives_the_device_back() -> None:
    races, all_runs = toy_races()
    asked = races.start(request())
    going = races.payloads(asked)
    while next(going)["status"] != "running":
        pass
    behind = all_runs.payloads(all_runs.start(request()))
    waiting = next(behind)
    assert waiting["status"] == "waiting" and "one run ahead" in waiting["message"]
    other = races.start(request())
    third = races.payloads(other)
    assert "2 ahead of you" in next(third)["message"]
    going.close()  # the visitor closed the tab
    assert asked.status == "stopped"
    assert [payload["status"] for payload in behind][-1] == "done"
    assert [payload["status"] for payload in third][-1] == "done"


def test_an_error_becomes_a_message() -> None:
    def broken(*_: Any) -> Iterator[Lap | Round]:
        yield Lap(0, "plain", run_of(1, []).blocks[0])
        raise ValueError("the prompt is longer than the context: shorten it")

    races, all_runs = toy_races(broken)
    last = drained(races, races.start(request()))[-1]
    assert (last["status"], last["message"]) == ("error", "the prompt is longer than the context: shorten it")
    assert not all_runs._queue._tickets


def test_an_answer_of_one_token_is_no_race() -> None:
    def short(*_: Any) -> Iterator[Lap | Round]:
        yield Round(run_of(1, []), run_of(4, []), TextCheck("same"))

    races, _ = toy_races(short)
    last = drained(races, races.start(request()))[-1]
    assert last["result"] is None and "first token" in last["message"]


def test_which_runs_can_be_raced() -> None:
    assert race_request(request(max_new_tokens=4000)).max_new_tokens == MAX_RACE_TOKENS
    assert race_request(request()) == request()
    for change, said in (({"block_size": 1}, "plain decoding itself"), ({"max_new_tokens": 1}, "at least 2 tokens")):
        with pytest.raises(ValueError, match=said):
            race_request(request(**change))


def test_a_text_that_ends_early_shortens_what_is_left() -> None:
    pace = Pace(100)
    for block in run_of(1, [(1, 0.0, 1.0, 0.0)] * 4).blocks:
        done = dataclasses.replace(block, finish_reason="stop" if block.index == 4 else None)
        pace.add(Lap(0, "plain", done))
        pace.add(Lap(1, "plain", done))
    assert pace.tokens("plain") == 5
    assert pace.progress()["fraction"] == pytest.approx(5 / (3 * 105))


# In a browser


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visitor]]:
    visitors: list[Visitor] = []

    def arrive(page: ServedPage, *, width: int = 1280, motion: str = "no-preference", **query: Any) -> Visitor:
        tab = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion=motion)
        visitors.append(Visitor(tab, page.url).open(**query))
        tab.click("#tabs button[data-tab-id=race]")
        tab.wait_for_selector(".race")
        visitors[-1].wait("() => document.querySelector('#race-plan textarea').value !== ''")
        return visitors[-1]

    yield arrive
    for visitor in visitors:
        visitor.page.close()
    assert [error for visitor in visitors for error in visitor.errors] == []


def raced(visitor: Visitor) -> Any:
    """Races to the end; returns the view."""
    before = visitor.page.get_attribute(".race", "data-race")
    visitor.page.click("#race-go")
    visitor.page.wait_for_function(
        """(before) => {
            const { race, result } = document.querySelector('.race').dataset;
            return race && race !== before && result === race;
        }""",
        arg=before,
        timeout=LONG,
    )
    visitor.page.wait_for_selector("#race-go:enabled")
    return visitor.page.locator(".race")


def state(visitor: Visitor, expected: str) -> None:
    visitor.page.wait_for_selector(f".race-replay[data-state={expected}]")


@pytest.mark.browser
def test_a_race_and_its_replay(visit: Callable[..., Visitor], toy_page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_page.toy, "seconds_per_pass", 0.02)  # a slow replay lasts seconds: time to pause it
    visitor = visit(toy_page, **TOY)
    plan = visitor.page.input_value("#race-plan textarea")
    for said in ("“the cat”", "Toy word chain", "rule match", "T = 1", "B = 4", "seed 3", "at most 40 tokens"):
        assert said in plan
    assert "Press Race" in visitor.text(".race")
    view = raced(visitor)
    visitor.wait("() => /about \\d+ s$/.test(document.querySelector('#race-plan textarea').value)")
    assert view.locator(".law-verdict h3").first.inner_text() == "Identical text"
    assert "Repeat" not in view.locator(".status-message").inner_text()
    visitor.page.wait_for_selector(".race .plot .barlayer .bars")
    # It plays by itself, to the end: both sides are there, the second one later.
    state(visitor, "ended")
    assert view.locator(".race-count").all_inner_texts() == ["40 of 40 tokens"] * 2
    texts = view.locator(".race-text").all_inner_texts()
    assert texts[0].strip()
    places = view.locator(".race-finish").all_inner_texts()
    assert sorted(place.split()[0] for place in places)[1] == "first," and all("token limit" in place for place in places)
    # Slowly, it can be paused, moved by keys, and skipped; what is on show follows the clock.
    view.locator(".race-speed select").select_option("0.1")
    view.locator(".race-play").click()
    state(visitor, "playing")
    view.locator(".race-play").click()
    state(visitor, "paused")
    view.locator(".block-slider").focus()
    visitor.page.keyboard.press("Home")
    assert view.locator(".race-count").all_inner_texts() == ["1 of 40 tokens"] * 2  # the token of the prefill
    visitor.page.keyboard.press("ArrowRight")
    counts = [int(count.split()[0]) for count in view.locator(".race-count").all_inner_texts()]
    assert 1 < max(counts) < 40 and view.locator(".race-finish").all_inner_texts() == ["", ""]
    assert " s" in str(view.locator(".block-slider").get_attribute("aria-valuetext"))
    view.locator(".race-skip").click()
    state(visitor, "ended")
    # The race is still there after a look at another tab.
    visitor.page.click("#tabs button[data-tab-id=run]")
    visitor.page.click("#tabs button[data-tab-id=race]")
    assert view.locator(".law-verdict h3").first.inner_text() == "Identical text"
    assert visitor.eval("() => document.documentElement.scrollWidth") <= 1280


@pytest.mark.browser
def test_hostile_text_calm_readers_and_small_screens(visit: Callable[..., Visitor], toy_page: ServedPage) -> None:
    visitor = visit(toy_page, width=390, motion="reduce", **TOY | {"t": 1.5, "n": 160, "rule": "speculative"})
    view = raced(visitor)
    state(visitor, "ended")  # without a replay, unless asked for
    assert view.locator(".race-play").inner_text() == "Replay"
    assert "cannot be compared" in view.locator(".law-verdict h3").first.inner_text()
    assert "<img" in "".join(view.locator(".race-text").all_inner_texts())
    assert visitor.eval("() => window.hacked === undefined && !document.querySelector('.race-text :is(img, script, b)')")
    assert visitor.eval("() => document.documentElement.scrollWidth") == 390


@pytest.mark.browser
def test_texts_that_part_stop_leaving_and_nothing_to_race(
    visit: Callable[..., Visitor], toy_page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor = visit(toy_page, **TOY | {"b": 1, "n": 200, "t": 0})
    assert "nothing to race" in visitor.page.input_value("#race-plan textarea")
    visitor.page.click("#race-go")
    assert "nothing to race" in visitor.message()
    visitor.page.wait_for_selector("#race-go:enabled")
    # Other controls in the Run tab, and the line says so.
    visitor.page.click("#tabs button[data-tab-id=run]")
    visitor.set("b", 4)
    visitor.page.click("#tabs button[data-tab-id=race]")
    visitor.wait("() => document.querySelector('#race-plan textarea').value.includes('T = 0 · B = 4 · seed 3 · at most 200')")
    # A target that rounds differently in passes of another shape.
    with monkeypatch.context() as patched:
        patched.setattr(toy_page.toy, "forward", RoundingTarget(1e-4).forward)
        view = raced(visitor)
    assert "T = 0 · B = 4" in view.locator(".law-about").inner_text()
    assert "by rounding" in view.locator(".law-verdict h3").first.inner_text()
    rows = [row.locator("td").all_inner_texts() for row in view.locator(".race-verdicts tbody tr").all()]
    assert [row[0] for row in rows] == ["Plain decoding", "DFlash, B = 4"] and rows[0][1] != rows[1][1]
    assert [row[2] for row in rows] == ["+5e-05", "-5e-05"]
    toy_page.toy.seconds_per_pass = 0.02
    try:
        for leave in (False, True):
            visitor.page.click("#race-go")
            visitor.wait("() => document.querySelector('.race .status-message').textContent.startsWith('Repeat')")
            assert toy_page.n_waiting == 1
            if leave:
                visitor.page.close()
            else:
                visitor.page.click("#race-stop")
                visitor.wait("() => document.querySelector('.race .status').dataset.status === 'stopped'")
                visitor.page.wait_for_selector("#race-go:enabled")
                assert "Stopped" in visitor.text(".race .status-message")
            until(lambda: toy_page.n_waiting == 0, "the device is free again")
    finally:
        toy_page.toy.seconds_per_pass = 0.0


@pytest.mark.browser
@pytest.mark.embedded
@pytest.mark.parametrize("temperature", [0, 1])
def test_the_embedded_pair_writes_the_same_text(
    visit: Callable[..., Visitor], embedded_page: ServedPage, temperature: int
) -> None:
    visitor = visit(embedded_page, prompt="Count from one to ten.", t=temperature, b=4, n=12, seed=1, rule="match")
    view = raced(visitor)
    assert view.locator(".law-verdict h3").first.inner_text() == "Identical text"
    view.locator(".race-skip").evaluate("(button) => button.click()")  # which does nothing if the replay has ended meanwhile
    state(visitor, "ended")
    texts = view.locator(".race-text").all_inner_texts()
    assert len(texts) == 2 and texts[0].strip()
    about = view.locator(".law-about").inner_text()
    for named in ("match", "SmolLM2-135M-Instruct", "float32 on cpu", f"T = {temperature}", "B = 4", "seed 1", "n = 3"):
        assert named in about
