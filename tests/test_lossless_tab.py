"""The Lossless? tab: its words and figures, and what a visitor does with it while no model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
import pytest

from dflash_core.lossless import distributions_of, redraw_bias, verify_law
from dflash_core.verify import RULES
from dflash_ui import lossless_tab
from dflash_ui.lossless_charts import law_figure
from dflash_ui.lossless_tab import MAX_DRAWS, LawRequest, payload, places, position_choices, scientific
from dflash_ui.page import recorded_runs
from dflash_ui.render import visible
from dflash_ui.run import Run
from dflash_ui.runs import Runs
from tests.served import ServedPage, Visitor

TOY = {"prompt": "the cat", "chat": 0, "pair": "toy", "t": 1, "b": 4, "n": 60, "seed": 3, "rule": "coupled"}


@pytest.fixture(scope="module")
def recorded() -> Run:
    return recorded_runs()[0]


@pytest.fixture(scope="module")
def runs(recorded: Run) -> Runs:
    return Runs(lambda name: iter(()), lambda *_: iter(()), [recorded])


@pytest.mark.parametrize("rule", RULES)
def test_a_check_of_every_rule_in_words(rule: str, recorded: Run, runs: Runs) -> None:
    key = position_choices(recorded)[0][1]
    told = payload(LawRequest.parse(key, rule, 40_000, runs=runs), seed=1)
    assert told["verdict"]["kind"] == ("good" if RULES[rule].lossless else "bad")
    assert "10⁻⁶" in told["verdict"]["note"] and "40,000" in told["verdict"]["note"]
    assert told["badge"]["good"] is RULES[rule].lossless
    assert told["why"]["text"].count(". ") == 2  # three sentences
    assert len(told["table"]["rows"]) == 13 and told["table"]["rows"][-1][0] == "the rest"
    assert "{" not in "".join([told["about"], told["verdict"]["note"], *(number["note"] for number in told["numbers"])])
    assert told["figure"]["light"] != told["figure"]["dark"]


def test_naive_is_told_from_its_luck_where_nothing_is_accepted(recorded: Run, runs: Runs) -> None:
    least = min(places(recorded), key=lambda place: float(redraw_bias(*distributions_of(place.judged)[1:])))
    told = payload(LawRequest.parse(least.key, "naive", 1000, runs=runs), seed=1)
    assert told["verdict"]["kind"] == "missed" and "wrong all the same" in told["verdict"]["note"]


def test_positions_on_offer(recorded: Run) -> None:
    offered = position_choices(recorded)
    assert 0 < len(offered) <= lossless_tab.MAX_POSITIONS
    assert len({key for _, key in offered}) == len(offered)
    assert offered[0][0].startswith("block ") and ", place " in offered[0][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"place": None}, "choose a position"),
        ({"place": ["a"]}, "choose a position"),
        ({"place": "unknown/1/1"}, "no longer kept"),
        ({"place": "{run}/0/1"}, "no judged position"),
        ({"place": "{run}/1/99"}, "no judged position"),
        ({"place": "{run}/-1/1"}, "no judged position"),
        ({"place": "{run}"}, "no judged position"),
        ({"rule": "greedy"}, "rule must be one of"),
        ({"rule": ["match"]}, "rule must be one of"),
        ({"n": 999}, "whole number"),
        ({"n": MAX_DRAWS + 1}, "whole number"),
        ({"n": 1000.5}, "whole number"),
        ({"n": float("nan")}, "whole number"),
        ({"n": "2000"}, "whole number"),
        ({"n": True}, "whole number"),
    ],
)
def test_what_is_asked_is_checked(change: dict[str, Any], said: str, recorded: Run, runs: Runs) -> None:
    asked = {"place": position_choices(recorded)[0][1], "rule": "match", "n": 1000} | change
    if isinstance(asked["place"], str):
        asked["place"] = asked["place"].replace("{run}", recorded.id)
    with pytest.raises(ValueError, match=said):
        LawRequest.parse(**asked, runs=runs)


def test_the_figure_adds_up_and_takes_no_markup(recorded: Run) -> None:
    _, p, q = distributions_of(places(recorded)[0].judged)
    check = verify_law(RULES["speculative"], p.expand(2, -1), q[None], n=1000, seed=1)
    figure = law_figure(check, ["<b>x</b>&amp;"] * len(p))
    target, kept, redrawn, draft = figure.data
    assert sum(kept.x) + sum(redrawn.x) == pytest.approx(1) and list(redrawn.base) == list(kept.x)
    assert sum(target.x) == pytest.approx(1) and sum(draft.x) == pytest.approx(1)
    assert "<b>" not in json.dumps(figure.layout.to_plotly_json()) and "<b>" not in json.dumps(list(target.customdata))
    assert figure.layout.yaxis.ticktext[0] == "&lt;b&gt;x&lt;/b&gt;&amp;amp;"


def test_small_words() -> None:
    told = [scientific(x) for x in (0.414, 0.0031, 1e-6, 2.04e-9, 0.0, 1.0)]
    assert told == ["0.41", "0.0031", "10⁻⁶", "2.0 × 10⁻⁹", "0", "1"]
    assert visible(" a\n\t\u200b\x07") == "␣a⏎→⟨U+200B⟩⟨U+0007⟩"
    assert visible("x" * 30) == "x" * 18 + "…"


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visitor]]:
    visitors: list[Visitor] = []

    def arrive(page: ServedPage, *, width: int = 1280, **query: Any) -> Visitor:
        visitors.append(Visitor(browser.new_page(viewport={"width": width, "height": 900}), page.url).open(**query))
        return visitors[-1]

    yield arrive
    for visitor in visitors:
        visitor.page.close()
    assert [error for visitor in visitors for error in visitor.errors] == []


def open_tab(visitor: Visitor) -> None:
    visitor.page.click("button[role=tab]:has-text('Lossless?')")
    visitor.page.wait_for_selector(".law")


def draw(visitor: Visitor, rule: str) -> str:
    """Checks a rule; returns the verdict's title."""
    before = int(visitor.page.get_attribute(".law", "data-checks"))
    visitor.page.check(f"#law-rule input[value={rule}]")
    visitor.page.click("#law-draw")
    visitor.wait("(before) => Number(document.querySelector('.law').dataset.checks) > before", before)
    visitor.page.wait_for_selector(".law .js-plotly-plot .barlayer .bars")
    return visitor.text(".law-verdict h3")


@pytest.mark.browser
def test_every_rule_on_a_recorded_run_while_no_model_is_loaded(visit: Callable[..., Visitor], unloaded_page: ServedPage) -> None:
    visitor = visit(unloaded_page, width=390)
    open_tab(visitor)
    assert "press Draw" in visitor.text(".law")
    for rule in RULES:
        title = draw(visitor, rule)
        assert (title == "Not lossless") is (rule == "naive") and (title == "Lossless: no difference found") is RULES[
            rule
        ].lossless
        assert rule in visitor.text(".law-about")
    assert "wrong on purpose" in visitor.text(".law-about") and "wrong on purpose" in visitor.text("#law-rule-summary")
    assert visitor.eval("() => document.documentElement.scrollWidth") == 390
    visitor.page.click("#law-run input")
    visitor.page.click("#law-run [role=option]:has-text('My last run')")
    assert "no run of yours" in visitor.message()
    assert unloaded_page.shelf.pair is None


@pytest.mark.browser
def test_my_last_run_with_its_hostile_tokens(visit: Callable[..., Visitor], toy_page: ServedPage) -> None:
    visitor = visit(toy_page, **TOY)
    run = visitor.run()
    open_tab(visitor)
    visitor.page.click("#law-run input")
    visitor.page.click("#law-run [role=option]:has-text('My last run')")
    visitor.wait("() => document.querySelector('#law-position input').value.startsWith('block')")
    keys = [key for _, key in position_choices(toy_page.run(run))]
    assert all(key.startswith(f"{run}/") for key in keys)
    assert draw(visitor, "block") == "Lossless: no difference found"
    visitor.page.click(".law-table summary")
    assert len(visitor.page.query_selector_all(".law-table tbody tr")) == 13
    assert (
        visitor.eval("() => document.querySelectorAll('.law img, .law b, .law script').length + Number('hacked' in window)") == 0
    )
    # The stage kept all of the run, and is still there.
    visitor.page.click("button[role=tab]:has-text('Run')")
    assert visitor.shown_run() == run and visitor.n_blocks() == len(toy_page.run(run).blocks)


def test_what_cannot_be_checked_becomes_a_message(toy_page: ServedPage) -> None:
    tab = toy_page.handler("on_choose").__self__
    with pytest.raises(gr.Error, match="Choose a position first"):
        tab.on_draw(None, "match", 1000)
