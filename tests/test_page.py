"""The whole page in a real browser, from the address to the download: what a visitor does, and two of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from gradio_client import Client

from dflash_core.pairs import Pair, load_pair
from dflash_core.toy import toy_tokenizer
from dflash_core.trace import parse_trace
from dflash_ui.controls import DEFAULTS
from dflash_ui.page import recorded_runs
from dflash_ui.run import Run
from dflash_ui.text import presets
from tests.served import ServedPage, Visitor, until

pytestmark = pytest.mark.browser

TOY = {"prompt": "the cat", "chat": 0, "pair": "toy"}
# All five states, and all the toy's hostile words, within 300 tokens.
LIVELY = {**TOY, "t": 1, "b": 4, "n": 300, "seed": 3}
HOSTILE = ("<img/src=x/onerror=window.hacked=1>", "</script><script>window.hacked=1</script>", "${1+1}", "<b>bold</b>", "&amp;")

Visit = Callable[..., Visitor]


@pytest.fixture
def visit(browser: Any, toy_page: ServedPage) -> Iterator[Visit]:
    """Visitors, each with a browser of their own. Nothing may go wrong in any of them."""
    visitors: list[Visitor] = []

    def arrive(page: ServedPage = toy_page, *, width: int = 1280, **query: Any) -> Visitor:
        context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True)
        visitors.append(Visitor(context.new_page(), page.url))
        return visitors[-1].open(**query)

    yield arrive
    toy_page.toy.seconds_per_pass = 0.0
    for visitor in visitors:
        visitor.page.context.close()
    assert [error for visitor in visitors for error in visitor.errors] == []
    until(lambda: toy_page.n_waiting == 0, "the device is free again")


@pytest.fixture(scope="module")
def regular(browser: Any, toy_page: ServedPage) -> Iterator[Visitor]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    yield Visitor(context.new_page(), toy_page.url).open(**LIVELY)
    context.close()


@pytest.fixture
def visitor(regular: Visitor, toy_page: ServedPage) -> Iterator[Visitor]:
    """One whose tab stays open from test to test: opening takes longer than most of them."""
    for name in ("prompt", "t", "b", "n", "seed"):
        regular.set(name, LIVELY[name])
    yield regular
    toy_page.toy.seconds_per_pass = 0.0
    assert regular.errors == []


def decoded(run: Run) -> str:
    """The run's text as it can be selected: without half a character, or a newline, at its very end."""
    return str(toy_tokenizer().decode(run.token_ids)).removesuffix("\ufffd").removesuffix("\n")


def test_it_opens_on_a_recorded_run(visit: Visit) -> None:
    visitor = visit()
    recorded = recorded_runs()
    if not recorded:
        assert visitor.output() == ""
        return
    visitor.wait_blocks(len(recorded[0].blocks))
    assert visitor.status() == "recorded" and "recorded on" in visitor.text(".facts")
    assert visitor.shown_run() == recorded[0].id
    assert "accepted" in visitor.states() and "rejected" in visitor.states()
    assert visitor.page.is_enabled("#run") and not visitor.page.is_enabled("#stop")
    visitor.page.wait_for_selector("#model-status >> text=ready")
    with visitor.page.expect_download() as download:
        visitor.page.click("text=Download trace")
    assert parse_trace(download.value.path().read_text(encoding="utf-8")).generation.token_ids == tuple(recorded[0].token_ids)


def test_a_run_shows_every_state_and_the_servers_figures(visitor: Visitor, toy_page: ServedPage) -> None:
    run = toy_page.run(visitor.run())
    assert visitor.n_blocks() == len(run.blocks)
    assert {"plain", "accepted", "resampled", "bonus", "rejected", "unjudged"} <= set(visitor.states())
    assert visitor.output() == decoded(run)
    stats = run.stats()
    assert stats.tau and stats.alpha and stats.tokens_per_second
    figures = visitor.text(".figures")
    for part in (
        f"{stats.tau:.2f}",
        f"{stats.tau_low:.2f} – {stats.tau_high:.2f}",
        f"{stats.n_blocks} blocks",
        f"{stats.accepted} / {stats.judged}",
        f"α = {stats.alpha:.2f}",
        f"{stats.tokens_per_second:.1f}",
        f"{stats.n_tokens} tokens in {stats.target_passes} passes",
        "not measured yet",
    ):
        assert part in figures
    assert visitor.text(".figure-saved .value") == str(stats.passes_saved)
    facts = visitor.text(".facts")
    for part in ("live run", "Toy word chain", "match", "lossless", "float32 · cpu"):
        assert part in facts
    bars = "document.querySelector('.chart-lengths .plot')?.data?.[0].y"
    visitor.wait(f"(n) => {bars}?.length === n", stats.n_blocks)
    assert visitor.eval(f"() => [...{bars}]") == [block.acceptance_length for block in run.blocks[1:]]


def test_blocks_appear_while_it_runs(visitor: Visitor, toy_page: ServedPage) -> None:
    toy_page.toy.seconds_per_pass = 0.04
    visitor.set("n", 48)
    visitor.eval("""() => {
        window.seen = [];
        const stage = document.querySelector('.stage');
        const status = stage.querySelector('.status').dataset;
        const see = () => seen.push([status.status, stage.querySelectorAll('.draft-block').length]);
        new MutationObserver(see).observe(stage, { attributeFilter: ['data-blocks'] });
    }""")
    run = toy_page.run(visitor.run())
    growth = [blocks for status, blocks in visitor.eval("() => window.seen") if status == "running"]
    assert len(set(growth)) >= 5 and growth == sorted(growth)
    assert visitor.n_blocks() == len(run.blocks)


def test_stop_keeps_the_text(visitor: Visitor, toy_page: ServedPage) -> None:
    toy_page.toy.seconds_per_pass = 0.04
    visitor.set("n", 4096)
    run = toy_page.run(visitor.press_run())
    visitor.wait_blocks(4)
    assert visitor.status() == "running"
    assert visitor.page.is_enabled("#stop") and not visitor.page.is_enabled("#run") and not visitor.page.is_enabled("#plain")
    visitor.page.click("#stop")
    visitor.wait_status("stopped")
    visitor.page.wait_for_selector("#run:enabled")
    assert not visitor.page.is_enabled("#stop") and visitor.page.is_enabled("#plain")
    assert 4 <= visitor.n_blocks() == len(run.blocks) < 1000
    assert visitor.output() == decoded(run) != ""


def test_enter_during_a_run_changes_nothing(visitor: Visitor, toy_page: ServedPage) -> None:
    toy_page.toy.seconds_per_pass = 0.04
    visitor.set("n", 4096)
    run = toy_page.run(visitor.press_run())
    visitor.wait_blocks(3)
    visitor.page.press("#prompt textarea", "Shift+Enter")
    visitor.page.press("#prompt textarea", "Shift+Enter")
    visitor.wait_blocks(visitor.n_blocks() + 10)
    assert visitor.shown_run() == run.id and visitor.status() == "running"
    assert visitor.page.is_enabled("#stop") and not visitor.page.is_enabled("#run")
    assert toy_page.n_waiting == 1
    visitor.page.click("#stop")
    visitor.wait_status("stopped")
    visitor.page.wait_for_selector("#run:enabled")
    assert visitor.output() == decoded(run)


def test_enter_runs_and_another_temperature_gives_another_text(visitor: Visitor, toy_page: ServedPage) -> None:
    visitor.set("n", 40)
    visitor.run()
    before = visitor.output()
    visitor.set("t", 0.4)
    visitor.page.press("#prompt textarea", "Shift+Enter")
    visitor.wait("(before) => document.querySelector('.stage').dataset.run !== before", visitor.shown_run())
    visitor.wait_status("done")
    visitor.page.wait_for_selector("#run:enabled")
    run = toy_page.run(visitor.shown_run())
    assert run.request.params.temperature == 0.4
    assert visitor.output() == decoded(run) != before


def test_a_locked_draft_temperature_follows_the_temperature(visitor: Visitor) -> None:
    for temperature in ("0.4", "1.3"):
        visitor.set("t", temperature)
        visitor.wait("(t) => new URLSearchParams(location.search).get('dt') === t", temperature)


def test_hostile_model_text_is_inert(visitor: Visitor, toy_page: ServedPage) -> None:
    run = toy_page.run(visitor.run())
    text = decoded(run)
    assert all(word in text for word in HOSTILE)
    assert visitor.output() == text
    shown = visitor.text(".output")
    assert all(word in shown for word in HOSTILE)
    for token in visitor.page.query_selector_all(".output .tok")[:40]:
        token.hover()
    assert visitor.eval("() => document.querySelectorAll('.stage :is(img, script, b)').length") == 0
    assert visitor.eval("() => window.hacked") is None


def test_a_hostile_prompt_is_inert(visitor: Visitor) -> None:
    prompt = "".join(HOSTILE) + " {{value}} \u202e \u2028 \ud83c\udf4e".encode("utf-16", "surrogatepass").decode("utf-16")
    visitor.page.fill("#prompt textarea", prompt)
    visitor.set("n", 5)
    visitor.run()
    assert dict(parse_qsl(urlsplit(visitor.page.url).query))["prompt"] == prompt
    with visitor.page.expect_download() as download:
        visitor.page.click("text=Download trace")
    assert parse_trace(download.value.path().read_text(encoding="utf-8")).about["prompt"] == prompt
    assert visitor.eval("() => window.hacked") is None


def test_the_text_is_that_of_the_endpoint_and_can_be_copied(visitor: Visitor, toy_page: ServedPage) -> None:
    visitor.run()
    client = Client(toy_page.url, verbose=False)
    result = client.predict(
        prompt=TOY["prompt"], temperature=1, block_size=4, max_new_tokens=300, seed=3, chat=False, api_name="/generate"
    )
    client.close()
    assert visitor.output() == result["text"]
    visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.page.click("text=Copy text")
    visitor.wait("() => document.querySelector('.said').textContent === 'Copied'")
    assert visitor.eval("() => navigator.clipboard.readText()") == result["text"]


def test_a_preset_fills_the_prompt_and_the_dice_change_the_seed(visitor: Visitor) -> None:
    visitor.page.click("#preset input")
    visitor.page.click("#preset [role=option] >> text=Short code")
    prompt = presets()["Short code"]["prompt"]
    visitor.wait("(prompt) => document.querySelector('#prompt textarea').value === prompt", prompt)
    before = visitor.page.input_value("#seed input")
    visitor.page.click("#dice")
    visitor.wait("(before) => document.querySelector('#seed input').value !== before", before)
    seed = visitor.page.input_value("#seed input")
    visitor.wait("(seed) => new URLSearchParams(location.search).get('seed') === seed", seed)
    assert 0 <= int(seed) < 2**31
    # The preset switched the chat template on, which the toy pair doesn't have.
    visitor.open(**LIVELY)


def test_an_empty_prompt_is_refused_and_the_last_run_stays(visitor: Visitor) -> None:
    visitor.set("n", 12)
    run, text = visitor.run(), visitor.output()
    visitor.page.fill("#prompt textarea", " \n")
    visitor.page.click("#run")
    said = visitor.message()
    assert "prompt is empty" in said and "Traceback" not in said
    visitor.page.wait_for_selector("#run:enabled")
    assert not visitor.page.is_enabled("#stop")
    assert visitor.shown_run() == run and visitor.status() == "done" and visitor.output() == text
    visitor.page.click("[data-testid=toast-close]")
    visitor.page.fill("#prompt textarea", "the dog")
    assert visitor.run() != run


def test_plain_decoding_is_measured(visitor: Visitor, toy_page: ServedPage) -> None:
    visitor.set("n", 60)
    run = toy_page.run(visitor.run())
    visitor.page.click("#plain")
    visitor.wait("() => document.querySelector('.figure-speedup .value').textContent.endsWith('×')")
    visitor.page.wait_for_selector("#run:enabled")
    assert run.plain and run.plain["same_text"] is True
    assert visitor.text(".figure-speedup .value") == f"{run.plain['speedup']:.2f}×"
    note = visitor.text(".figure-speedup .note")
    assert "over 60 tokens" in note and "same text" in note
    assert visitor.status() == "done" and visitor.output() == decoded(run)
    visitor.set("b", 1)
    visitor.run()
    visitor.page.click("#plain")
    assert "plain decoding itself" in visitor.message()
    visitor.page.click("[data-testid=toast-close]")


def test_the_trace_is_the_run(visitor: Visitor, toy_page: ServedPage, tmp_path: Path) -> None:
    run = toy_page.run(visitor.run())
    with visitor.page.expect_download() as download:
        visitor.page.click("text=Download trace")
    assert download.value.suggested_filename.endswith(".jsonl")
    download.value.save_as(tmp_path / "trace.jsonl")
    trace = parse_trace((tmp_path / "trace.jsonl").read_text(encoding="utf-8"))
    assert list(trace.generation.blocks) == run.blocks
    assert trace.generation.params == run.request.params and list(trace.generation.prompt_ids) == run.prompt_ids
    assert "".join(
        chip["t"] for chips in trace.texts for chip in chips if chip["s"] in ("plain", "accepted", "resampled", "bonus")
    ) == (visitor.output())


def test_the_address_gives_the_run_again(visit: Visit) -> None:
    wanted = {
        "prompt": "the old fox\n& the dog?",
        "t": 0.9,
        "b": 5,
        "n": 33,
        "seed": 77,
        "rule": "greedy-match",
        "pair": "toy",
        "top_p": 0.9,
        "top_k": 12,
        "unlock": 1,
        "dt": 0.4,
        "chat": 0,
    }
    assert wanted.keys() == DEFAULTS.keys()
    visitor = visit(**wanted)
    visitor.advanced()
    shown = visitor.controls()
    assert shown == {
        **{name: str(wanted[name]) for name in Visitor.FIELDS},
        "unlock": True,
        "chat": False,
        "rule": "greedy-match",
        "pair": visitor.page.input_value("#pair input"),
    }
    assert shown["pair"].startswith("Toy") and "greedy-match" not in visitor.text("#rule-summary")
    visitor.set("seed", 78)
    visitor.run()
    text, address = visitor.output(), visitor.page.url
    assert dict(parse_qsl(urlsplit(address).query)) == {name: str(value) for name, value in {**wanted, "seed": 78}.items()}
    visitor.page.goto(address)
    visitor.wait("() => document.querySelector('#seed input')?.value === '78'")
    visitor.page.wait_for_selector("#run:enabled")
    visitor.advanced()
    assert visitor.controls() == {**shown, "seed": "78"}
    visitor.run()
    assert visitor.output() == text


def test_the_address_leads_to_a_block(visit: Visit, toy_page: ServedPage) -> None:
    # Of a recorded run: the tab, the block and its place, whichever recorded run it is.
    recorded = recorded_runs()[-1]
    block = next(block.index for block in recorded.blocks[:-1] if len(block.judged) > 1)
    visitor = visit(tab="block", run=recorded.id, block=block, place=2)
    visitor.wait("(block) => document.querySelector('.inspector')?.dataset.block === block", str(block))
    chosen = ".block-places [aria-pressed=true]"
    assert visitor.shown_run() == recorded.id
    assert visitor.page.get_attribute(chosen, "aria-label").startswith("Place 2:")
    visitor.page.get_by_label("Next block").click()
    visitor.wait("(block) => new URLSearchParams(location.search).get('block') === block", str(block + 1))
    query = dict(parse_qsl(urlsplit(visitor.page.url).query))
    assert (query["tab"], query["run"]) == ("block", recorded.id)
    # Of a run made here: its settings, and the block as soon as they have been run. Nothing names the run itself.
    visitor.open(**LIVELY, tab="block", block=5, place=1)
    visitor.page.wait_for_selector(".block-promised >> text=block 5")
    visitor.page.click("#tabs [data-tab-id=run]")
    run = visitor.run()
    visitor.page.click("#tabs [data-tab-id=block]")
    assert visitor.page.get_attribute(".inspector", "data-block") == "5" and not visitor.page.is_visible(".block-promised")
    assert visitor.page.get_attribute(chosen, "aria-label").startswith("Place 1:")
    visitor.page.focus(".block-places button")
    visitor.page.keyboard.press("Home")
    visitor.wait("() => new URLSearchParams(location.search).get('block') === '1'")
    query = dict(parse_qsl(urlsplit(visitor.page.url).query))
    assert query["tab"] == "block" and "run" not in query and run not in visitor.page.url
    visitor.page.click("#tabs [data-tab-id=run]")
    visitor.wait("() => !/tab=|block=|place=/.test(location.search)")
    # Broken ones are no more than no place.
    for broken in ("tab=nowhere&block=2", "tab=block&block=-1&run=recorded-none", "tab=block&block=99999&run=" + recorded.id):
        visitor.page.goto(f"{visitor.url}/?{broken}")
        visitor.page.wait_for_selector("#run", state="attached")
        visitor.wait("() => Number(document.querySelector('.stage').dataset.blocks) > 0")
    visitor.wait("(n) => document.querySelector('.inspector')?.dataset.block === String(n)", len(recorded.blocks) - 1)


def test_back_leaves_the_page_as_it_came(visit: Visit) -> None:
    visitor = visit()
    visitor.page.goto("about:blank")
    visitor.page.goto(visitor.url)
    visitor.page.wait_for_selector(".stage")
    visitor.page.click("#tabs [data-tab-id=block]")
    visitor.wait("() => /block=1/.test(location.search)")
    visitor.page.go_back()
    assert visitor.page.url == "about:blank"
    visitor.page.go_forward()
    visitor.wait("() => document.querySelector('.inspector')?.dataset.block === '1'")


def test_a_long_prompt_stays_out_of_the_address(visit: Visit) -> None:
    visitor = visit(**TOY)
    visitor.page.fill("#prompt textarea", "the cat " * 200)
    visitor.wait("() => new URLSearchParams(location.search).get('long') === '1'")
    assert "prompt=" not in visitor.page.url and "too long for the page's address" in visitor.text("#long-prompt")
    visitor.page.goto(visitor.page.url)
    assert "too long for an address" in visitor.message()
    visitor.page.fill("#prompt textarea", "the cat")
    visitor.wait("() => new URLSearchParams(location.search).get('prompt') === 'the cat'")
    assert "long=" not in visitor.page.url and not visitor.text("#long-prompt").strip()


def test_a_tab_in_the_menu_of_a_narrow_screen_is_found(visit: Visit) -> None:
    visitor = visit(width=230, tab="lossless")
    visitor.page.wait_for_selector("#tabs [data-tab-id=lossless][aria-selected=true]")
    visitor.page.click("#tabs [data-tab-id=run]")


def test_a_broken_address_is_said_and_the_usual_settings_shown(visit: Visit) -> None:
    script = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    visitor = visit(prompt="the cat", n=20)
    for broken, named in (
        ("t=abc&b=999", "'abc'"),
        (f"n=20&rule={script}", "'<script>"),
        (f"seed={'9' * 400}", "Seed"),
    ):
        visitor.page.goto(f"{visitor.url}/?{broken}")
        said = visitor.message()
        assert "usual settings" in said and named in said
        assert visitor.page.input_value(Visitor.FIELDS["t"]) == str(DEFAULTS["t"])
        assert visitor.page.input_value(Visitor.FIELDS["b"]) == str(DEFAULTS["b"])
        assert visitor.page.input_value("#rule input:checked") == DEFAULTS["rule"]
        assert visitor.eval("() => window.hacked") is None


def test_a_phone_needs_no_sideways_scrolling(visit: Visit) -> None:
    visitor = visit(width=390, **{**LIVELY, "n": 40})
    visitor.page.locator("#run").scroll_into_view_if_needed()
    visitor.run()
    visitor.wait("() => document.querySelector('.chart-lengths .plot')?.layout?.width < 390")
    assert visitor.eval("() => document.documentElement.scrollWidth") <= 390
    box = visitor.page.locator("#run").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_closing_the_tab_frees_the_device(visit: Visit, visitor: Visitor, toy_page: ServedPage) -> None:
    leaver = visit(**{**LIVELY, "n": 4096})
    toy_page.toy.seconds_per_pass = 0.04
    run = toy_page.run(leaver.press_run())
    leaver.wait_blocks(3)
    leaver.page.close()
    until(lambda: toy_page.n_waiting == 0, "the device is free again", within=10)
    n_blocks = len(run.blocks)
    assert n_blocks < 1000
    # Nothing goes on behind the page's back: other work on the device adds no block to that run.
    visitor.set("n", 20)
    visitor.run()
    assert len(run.blocks) == n_blocks and run.status == "stopped"


def test_visitors_wait_for_each_other(visit: Visit, visitor: Visitor, toy_page: ServedPage) -> None:
    second, third = (visit(**{**LIVELY, "n": 30, "seed": seed}) for seed in (1, 2))
    toy_page.toy.seconds_per_pass = 0.04
    visitor.set("n", 4096)
    visitor.press_run()
    visitor.wait_blocks(2)
    stopped = second.press_run()
    second.wait_status("waiting")
    assert "one run ahead of you" in second.text(".status-message")
    third.press_run()
    third.wait_status("waiting")
    assert "2 ahead of you" in third.text(".status-message")
    assert toy_page.n_waiting == 3

    second.page.click("#stop")
    second.wait_status("stopped")
    second.page.wait_for_selector("#run:enabled")
    third.wait("() => document.querySelector('.status-message').textContent.includes('one run ahead of you')")
    waiting = second.press_run()
    second.wait_status("waiting")
    third.page.close()
    until(lambda: toy_page.n_waiting == 2, "who left is out of the queue", within=10)

    assert visitor.status() == "running"
    visitor.page.click("#stop")
    second.wait_status("done")
    assert second.shown_run() == waiting != stopped
    assert second.output() == decoded(toy_page.run(waiting))
    visitor.wait_status("stopped")
    visitor.page.wait_for_selector("#run:enabled")


def test_large_blocks_are_for_those_who_ask(visit: Visit, toy_page: ServedPage) -> None:
    visitor = visit(**{**LIVELY, "b": 20, "n": 40})
    run = toy_page.run(visitor.run())
    assert run.request.block_size == 20 and len(run.blocks[1].drafted) == 19
    assert "beyond the trained block size 8" in visitor.text(".facts") and "Block size 20" in visitor.text(".notices")
    visitor.advanced()
    assert visitor.page.is_checked("#large-blocks input")
    visitor.page.click("#large-blocks input")
    visitor.wait("() => document.querySelector('#block-size input[type=number]').value === '16'")
    visitor.page.click("#large-blocks input")
    visitor.wait("() => document.querySelector('#block-size input[type=number]').max === '32'")
    visitor.set("b", 24)
    assert toy_page.run(visitor.run()).request.block_size == 24


def test_who_only_looks_takes_no_pair_from_who_runs(visit: Visit, toy_page: ServedPage) -> None:
    loaded = []

    def load(name: str, progress: Any) -> Pair:
        loaded.append(name)
        return load_pair("toy")

    page = ServedPage(load, "toy")
    try:
        visit(page, **{**LIVELY, "pair": "embedded"}).run()
        other = visit(page)
        other.page.wait_for_selector("#model-status >> text=ready")
        assert loaded == ["toy", "embedded"]
    finally:
        page.close()


@pytest.mark.embedded
def test_the_embedded_pair_writes_real_text(visit: Visit, embedded_page: ServedPage, embedded_pair: Pair) -> None:
    visitor = visit(embedded_page, prompt="Repeat these three times: 🍏 pear, naïve café 👩‍🏫", t=0, b=4, n=24, seed=1)
    run = embedded_page.run(visitor.run())
    assert visitor.output() == embedded_pair.tokenizer.decode(run.token_ids, skip_special_tokens=True) != ""
    assert "🍏 pear, naïve café 👩‍🏫" in visitor.eval("() => document.querySelector('.prompt .tokens').textContent")
    assert "SmolLM2" in visitor.text(".facts")
