"""The Block tab: what it says of a block is what the block recorded, for every rule, and model text stays text."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from dflash_core import RULES, dflash_generate
from dflash_core.generate import accept_uniforms
from dflash_core.sampling import probabilities
from dflash_core.toy import ToyDraft, ToyTarget
from dflash_ui.run import Run
from tests.served import ServedPage, Visitor

NUMBER = r"(\d\.?\d*)(?: × 10([⁻⁰¹²³⁴-⁹]+))?"
SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
BY_UNIFORM = ("speculative", "naive")
TOY = {"prompt": "the cat", "chat": 0, "pair": "toy", "t": 0.9, "b": 5, "n": 60, "seed": 3}


@pytest.mark.parametrize("key", RULES)
def test_the_numbers_made_again_are_those_that_decided(key: str) -> None:
    target = ToyTarget()
    run = dflash_generate(
        ToyDraft(target), target, torch.tensor([[3, 5]]), max_new_tokens=120, temperature=0.9, block_size=5, seed=7, rule=key,
        on_block=lambda block: None,
    )  # fmt: skip
    n_judged = 0
    for block in run.blocks:
        uniforms = accept_uniforms(run.params, block)
        assert (uniforms is None) == (RULES[key].same_text or block.index == 0)
        if key in BY_UNIFORM and uniforms:
            for k, judged in enumerate(block.judged, start=1):
                assert (uniforms[k - 1] * judged.draft_prob < judged.target_prob) == (k <= block.n_accepted)
                n_judged += 1
    assert n_judged > 50 or key not in BY_UNIFORM


def opened(browser: Any, page: ServedPage, **query: Any) -> tuple[Any, Visitor, Run]:
    tab = browser.new_page(viewport={"width": 1280, "height": 1000})
    visitor = Visitor(tab, page.url).open(**TOY | query)
    visitor.run()
    return tab, visitor, page.run(visitor.shown_run())


def inspector(tab: Any) -> Any:
    return tab.locator(".inspector")


@pytest.mark.browser
@pytest.mark.parametrize("rule", ["match", "block", "naive"])
def test_a_block_is_told_from_its_own_numbers(browser: Any, toy_page: ServedPage, rule: str) -> None:
    tab, visitor, run = opened(browser, toy_page, rule=rule)
    view = next(view for view in run.views[2:] if 0 < view["kept"] < view["n_drafted"] and not view["cut"])
    tab.locator(f".draft-block[data-block='{view['i']}'] .tok.s-rejected").dblclick()
    inspector(tab).locator(".block-title").wait_for()
    assert inspector(tab).locator(".block-title").inner_text() == f"Block {view['i']} of {len(run.views) - 1}"
    words = {int(token): text for each in run.views for token, text in each["words"].items()}

    def shown(token: int) -> str:
        return words[token].replace(" ", "␣").replace("\n", "⏎")[:24]

    phases = {
        name: inspector(tab).locator(f"[data-phase={name}] .tok").all_inner_texts() for name in ("draft", "verdict", "commit")
    }
    assert [text[:24] for text in phases["draft"]] == [shown(view["anchor"]), *map(shown, view["drafted"])]
    assert [text[:24] for text in phases["verdict"]] == [shown(token) for token in view["drafted"]]
    assert [text[:24] for text in phases["commit"]] == [shown(token) for token in view["emitted"]]
    states = [node.get_attribute("class") for node in inspector(tab).locator("[data-phase=verdict] .tok").all()]
    expected = ["accepted"] * view["kept"] + ["rejected"] + ["unjudged"] * (view["n_drafted"] - view["kept"] - 1)
    assert [state.split("s-")[1] for state in states] == expected

    # It opens at the rejected token, and says why it was replaced.
    says = inspector(tab).locator(".block-says").inner_text()
    assert shown(view["drafted"][view["kept"]]) in says and shown(view["emitted"][-1]) in says
    assert ("residual" in says) == (rule in ("speculative", "block")) and ("mistake" in says) == (rule == "naive")
    judged = view["judged"][view["kept"]]
    if judged["u"] is not None:
        assert f"{judged['u']:.3f}" in says
    # The arrow keys lead to the token before it, which was kept.
    inspector(tab).locator(".block-places button").last.focus()
    tab.keyboard.press("ArrowUp")
    assert "So it was kept." in inspector(tab).locator(".block-says").inner_text()
    # p and q of all tokens, the rest included, are 1 each.
    widths = inspector(tab).evaluate(
        "node => ['p', 'q'].map((name) => [...node.querySelectorAll('.bar-' + name)]"
        ".reduce((sum, bar) => sum + parseFloat(bar.style.width), 0))"
    )
    assert widths == pytest.approx([100, 100], abs=0.5)
    assert visitor.errors == []
    tab.close()


@pytest.mark.browser
def test_the_residual_and_the_overlap_hold_the_true_ones(browser: Any, toy_page: ServedPage) -> None:
    """The page knows the likely tokens only, so it says what the rest leaves open; the core knows all of p and q."""
    tab, _, run = opened(browser, toy_page, rule="speculative")
    tab.locator("#tabs button[data-tab-id=block]").click()
    node, target = inspector(tab), ToyTarget()
    draft = ToyDraft(target)
    rejected = [view for view in run.views[1:] if view["next"] == "resampled" and not view["cut"]]
    n_said = 0
    for view in rejected[:12]:
        node.locator(".block-slider").fill(str(view["i"]))
        k = view["kept"]
        before = view["drafted"][k - 1] if k else view["anchor"]
        p = (target.logits[before] / 0.9).softmax(-1)
        logits = draft.propose(
            draft.new_cache(), torch.zeros(1, 1, 1), torch.tensor([[view["anchor"]]]), 5, lambda x: x, lambda x: x
        )
        q = (logits[0, k] / 0.9).softmax(-1)
        shared = float(torch.minimum(p, q).sum())
        assert_within(shared, re.search(r"Σ min\(p, q\) (.*?)\. The", node.locator(".bars-note").first.inner_text()))
        said = re.search(r"had the probability (.*?)\.$", node.locator(".block-says").inner_text(), re.MULTILINE)
        if said:  # the token is among those recorded
            n_said += 1
            assert_within(float((p - q).clamp_min(0)[view["emitted"][-1]]) / (1 - shared), said)
    assert n_said > 5
    # At another temperature the heading says so, and what happened keeps its own.
    node.locator(".reshape input").fill("1.8")
    assert "if the temperature were 1.80" in node.locator(".bars-part h4").inner_text()
    assert node.locator(".block-says h4").inner_text() == "What happened, at temperature 0.9"
    tab.close()


def assert_within(value: float, said: re.Match[str] | None) -> None:
    """Between the two numbers that were said, or next to the one."""
    assert said is not None
    numbers = [float(a) * 10 ** int(exponent.translate(SUPERSCRIPTS) or 0) for a, exponent in re.findall(NUMBER, said[1])]
    assert min(numbers) - 2e-3 <= value <= max(numbers) + 2e-3


@pytest.mark.browser
def test_stepping_through_all_blocks(browser: Any, toy_page: ServedPage) -> None:
    tab, visitor, run = opened(browser, toy_page, rule="speculative")
    tab.locator("#tabs button[data-tab-id=block]").click()
    node = inspector(tab)
    node.locator(".block-title").wait_for()
    last = len(run.views) - 1

    def block() -> int:
        return int(node.get_attribute("data-block"))

    assert block() == 1
    assert node.get_by_label("Previous block").is_disabled()
    node.get_by_label("Next block").click()
    assert block() == 2
    for key, expected in (("End", last), ("ArrowRight", last), ("ArrowLeft", last - 1), ("Home", 1)):
        node.locator(".block-places button").first.focus()
        tab.keyboard.press(key)
        assert block() == expected
    node.locator(".block-slider").fill(str(last))
    assert block() == last and node.get_by_label("Next block").is_disabled()
    node.locator(".block-slider").fill("1")
    node.get_by_label("Play").click()
    tab.wait_for_function("() => Number(document.querySelector('.inspector').dataset.block) === 2")
    node.get_by_label("Play").click()  # and stops
    # A new run in the first tab is the one that the tab shows.
    tab.locator("#tabs button[data-tab-id=run]").click()
    visitor.set("seed", 11)
    visitor.run()
    tab.locator("#tabs button[data-tab-id=block]").click()
    assert block() == 1
    again = toy_page.run(visitor.shown_run())
    assert node.locator(".block-title").inner_text() == f"Block 1 of {len(again.views) - 1}"
    assert visitor.errors == []
    tab.close()


@pytest.mark.browser
def test_another_temperature_reshapes_what_was_recorded(browser: Any, toy_page: ServedPage) -> None:
    tab, _, run = opened(browser, toy_page, rule="match")
    view = run.views[1]
    tab.locator(".draft-block[data-block='1'] .tok.s-accepted, .draft-block[data-block='1'] .tok.s-rejected").first.dblclick()
    node = inspector(tab)
    node.locator(".block-places button").first.click()
    judged = view["judged"][0]
    node.locator(".reshape input").fill("1.8")
    shares = node.evaluate("node => [...node.querySelectorAll('.bar-p')].map((bar) => parseFloat(bar.style.width) / 100)")
    entries = list(judged["top"])
    if view["drafted"][0] not in [token for token, _, _ in entries]:
        entries.append([view["drafted"][0], judged["p"], judged["q"]])
    weights = [p ** (0.9 / 1.8) for _, p, _ in entries]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-3)
    node.get_by_label("as it was").click()
    shares = node.evaluate("node => [...node.querySelectorAll('.bar-p')].map((bar) => parseFloat(bar.style.width) / 100)")
    assert shares[: len(entries)] == pytest.approx([p for _, p, _ in entries], abs=1e-3)
    tab.close()


@pytest.mark.browser
@pytest.mark.embedded
@pytest.mark.parametrize("source", ["embedded_page", "unloaded_page"])
def test_real_text_from_the_token_to_its_numbers(browser: Any, request: pytest.FixtureRequest, source: str) -> None:
    """A run of the embedded pair, live or recorded with no model loaded: a token leads to its block, and keys and slider work."""
    page: ServedPage = request.getfixturevalue(source)
    tab = browser.new_page(viewport={"width": 1280, "height": 1000})
    visitor = Visitor(tab, page.url)
    if source == "embedded_page":
        visitor.open(prompt="Name three colours.", t=0.7, b=4, n=24, seed=1, rule="speculative").run()
    else:
        visitor.open()
        visitor.wait("() => document.querySelector('.stage').dataset.blocks > 2")
    run = page.run(visitor.shown_run())
    view = next(view for view in run.views[1:] if view["next"] == "resampled" and not view["cut"])
    tab.locator(f".draft-block[data-block='{view['i']}'] .tok.s-rejected").first.dblclick()
    node = inspector(tab)
    node.locator(".block-title").wait_for()
    assert node.locator(".block-title").inner_text() == f"Block {view['i']} of {len(run.views) - 1}"
    assert run.head is not None
    judged, temperature = view["judged"][view["kept"]], run.head["temperature"]
    entries = list(judged["top"])
    if view["drafted"][view["kept"]] not in [token for token, _, _ in entries]:
        entries.append([view["drafted"][view["kept"]], judged["p"], judged["q"]])
    node.locator(".reshape input").fill("1.3")
    for side, name in ((1, "p"), (2, "q")):
        logits = temperature * torch.tensor([entry[side] for entry in entries]).log()
        shares = node.evaluate(
            f"node => [...node.querySelectorAll('.bar-{name}')].map((bar) => parseFloat(bar.style.width) / 100)"
        )
        assert shares == pytest.approx(probabilities(logits, temperature=1.3).tolist(), abs=1e-3)
    node.locator(".block-places button").first.focus()
    tab.keyboard.press("ArrowRight")
    assert int(node.get_attribute("data-block")) == view["i"] + 1
    assert visitor.errors == []
    tab.close()


@pytest.mark.browser
def test_where_there_is_nothing_to_look_into_it_says_so(browser: Any, toy_page: ServedPage) -> None:
    tab, visitor, _ = opened(browser, toy_page, rule="match", b=1, n=8)
    tab.locator("#tabs button[data-tab-id=block]").click()
    assert "Plain decoding drafts nothing" in inspector(tab).inner_text()
    tab.locator("#tabs button[data-tab-id=run]").click()
    visitor.set("b", 4)
    visitor.set("t", 0)
    visitor.run()
    tab.locator("#tabs button[data-tab-id=block]").click()
    assert "At temperature 0 the run recorded one token" in inspector(tab).inner_text()
    assert visitor.errors == []
    tab.close()


@pytest.mark.browser
def test_markup_in_a_token_stays_text(browser: Any, toy_page: ServedPage) -> None:
    tab, visitor, run = opened(browser, toy_page, rule="greedy-match", t=1.5, n=200)
    texts = {text for view in run.views for text in view["words"].values()}
    assert any("<img" in text or "<script" in text for text in texts)
    tab.locator("#tabs button[data-tab-id=block]").click()
    for _ in range(len(run.views)):
        inspector(tab).get_by_label("Next block").click(force=True)
    assert tab.evaluate("() => window.hacked === undefined && !document.querySelector('.inspector :is(img, script, b)')")
    assert visitor.errors == []
    tab.close()


def test_a_recorded_run_brings_the_words_of_its_tables() -> None:
    from dflash_ui.page import recorded_runs

    for run in recorded_runs():
        tables = {token for block in run.blocks for judged in block.judged for token, _, _ in judged.table}
        assert tables and {str(token) for token in tables} <= run.words.keys()
