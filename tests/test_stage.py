"""The stage in a real browser, fed through Gradio with made-up but consistent payloads.

One file, though a long one: opening the page costs more than any test, so all of them share one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gradio as gr
import pytest

from dflash_ui import theme
from dflash_ui.stage import boot, encode, stage
from tests.scripted import HOSTILE, ScriptedRun
from tests.served import free_port

pytestmark = pytest.mark.browser


def test_encode_keeps_the_value_and_hides_tags() -> None:
    value = {"t": "</script> ${x} \u2028 é"}
    assert "<" not in encode(value) and json.loads(encode(value)) == value
    with pytest.raises(ValueError, match="JSON"):
        encode({"x": float("nan")})


def test_stage_names_a_missing_server_function() -> None:
    with pytest.raises(ValueError, match="get_trace"):
        stage("", [lambda: None])


RUNS: dict[str, ScriptedRun] = {}
ASKED: list[dict[str, Any]] = []


def get_run(request: dict[str, Any]) -> str | None:
    ASKED.append(request)
    run = RUNS.get(request["run"])
    return encode(run.payload(request["start"], len(run.views))) if run else None


def get_trace(run: str) -> str | None:
    return "".join(json.dumps(view) + "\n" for view in RUNS[run].views) if run in RUNS else None


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A page with nothing but the stage, and a text field that stands for the server's messages."""
    with gr.Blocks() as demo:
        shown = stage("", [get_run, get_trace])
        message = gr.Textbox(elem_id="message", container=False, show_label=False)
        gr.Button("send", elem_id="send").click(
            lambda text: text, message, shown, show_progress="hidden", api_visibility="private"
        )
    options: dict[str, Any] = {"quiet": True, "ssr_mode": False, "run_history": False, "theme": theme.gradio_theme()}
    _, url, _ = demo.launch(prevent_thread_lock=True, server_port=free_port(), **options)
    yield url
    demo.close()


class Page:
    """The open page, and what the tests do with it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.sent = 0
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))

    def send(self, payload: dict[str, Any], *, blocks: int | None = None) -> None:
        """Through Gradio, as a run does, and wait until the stage has `blocks` (all it was told of by default)."""
        self.sent += 1
        payload = payload | {"message": payload["message"] or f"message {self.sent}"}
        self.page.fill("#message textarea", encode(payload))
        self.page.click("#send")
        self.page.wait_for_function(
            """([run, n, message]) => {
                const stage = document.querySelector('.stage');
                return stage.dataset.run === run && Number(stage.dataset.blocks) === n
                    && stage.querySelector('.status-message').textContent === message;
            }""",
            arg=[payload["run"], payload["n"] if blocks is None else blocks, payload["message"]],
        )

    def show(self, run: ScriptedRun, **more: Any) -> None:
        RUNS[run.run] = run
        self.send(run.payload(0, len(run.views), status="done", **more))

    def eval(self, script: str, arg: Any = None) -> Any:
        return self.page.evaluate(script, arg)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)


@pytest.fixture(scope="module")
def opened(browser: Any, address: str) -> Page:
    page = Page(browser.new_page(viewport={"width": 1280, "height": 900}))
    page.page.goto(address)
    page.page.wait_for_selector(".stage")
    return page


@pytest.fixture
def page(opened: Page) -> Iterator[Page]:
    opened.errors.clear()
    ASKED.clear()
    yield opened
    assert opened.errors == []


def test_blocks_are_appended_and_never_touched_again(page: Page) -> None:
    run = RUNS["append"] = ScriptedRun("append", 12)
    page.send(run.payload(0, 5))
    page.eval("""() => {
        window.before = [...document.querySelectorAll('.draft-block')];
        window.touched = 0;
        for (const node of window.before) {
            const watcher = new MutationObserver((list) => (window.touched += list.length));
            watcher.observe(node, { subtree: true, childList: true, characterData: true });
        }
    }""")
    page.send(run.payload(3, 13))  # repeats two blocks
    assert page.eval("() => document.querySelectorAll('.draft-block').length") == 13
    assert page.eval("() => [...document.querySelectorAll('.draft-block')].slice(0, 5).every((n, i) => n === before[i])")
    assert page.eval("() => window.touched") == 0
    page.send(run.payload(3, 13, status="done", message="finished"))  # the last message comes twice
    assert page.text(".status-word") == "Done"
    assert page.eval("() => document.querySelectorAll('.draft-block').length") == 13
    assert ASKED == []


def test_a_gap_is_mended_with_one_question(page: Page) -> None:
    run = RUNS["gap"] = ScriptedRun("gap", 20)
    page.send(run.payload(0, 4))
    page.send(run.payload(9, 12), blocks=21)  # the server answers with all it has
    assert ASKED == [{"run": "gap", "start": 4}]
    page.send(run.payload(12, 21))
    assert selected(page) == run.text
    assert len(ASKED) == 1


def test_a_run_joined_late_is_asked_for_with_its_head(page: Page) -> None:
    run = RUNS["late"] = ScriptedRun("late", 10)
    page.send(run.payload(8, 11), blocks=11)
    assert ASKED == [{"run": "late", "start": 0}]
    assert "target + draft" in page.text(".facts")
    assert selected(page) == run.text


def test_a_gap_that_stays_is_said_and_closes_later(page: Page) -> None:
    run = ScriptedRun("forgotten", 10)  # the server does not know it
    page.send(run.payload(0, 3))
    page.send(run.payload(6, 8), blocks=3)
    page.page.wait_for_function("() => document.querySelector('.said').textContent.includes('missing')")
    page.send(run.payload(3, 11))
    assert selected(page) == run.text
    page.page.wait_for_function("() => document.querySelector('.said').textContent === ''")


def test_a_straggler_of_an_older_run_changes_nothing(page: Page) -> None:
    old, new = ScriptedRun("old", 6), ScriptedRun("new", 6)
    page.show(old)
    page.show(new)
    page.page.fill("#message textarea", json.dumps(old.payload(3, 7, message="old")))
    page.page.click("#send")
    page.page.wait_for_timeout(300)
    assert page.eval("() => document.querySelector('.stage').dataset.run") == "new"
    assert page.eval("() => document.querySelectorAll('.draft-block').length") == 7
    assert page.text(".status-message") != "old"


def test_hostile_text_is_inert_and_readable(page: Page) -> None:
    words = [" ok", *HOSTILE, "\n", *HOSTILE]
    run = ScriptedRun("hostile", 30, texts=words)
    run.views[0]["chips"] = [run.chip(text, "plain", 2 + i) for i, text in enumerate(words)]
    run.head |= {"pair": HOSTILE[0], "rule_label": HOSTILE[1]}
    run.head["prompt"] = [run.chip(text, "prompt", i) for i, text in enumerate(HOSTILE)]
    page.show(run, message=HOSTILE[0], plain={"speedup": None, "note": HOSTILE[3]})
    assert page.eval("() => document.querySelectorAll('.stage img, .stage script, .stage b').length") == 0
    for selector in (".output", ".prompt .tokens"):
        content = page.eval("(selector) => document.querySelector(selector).textContent", selector)
        assert all(text in content for text in HOSTILE)
    assert HOSTILE[0] in page.text(".facts") and HOSTILE[1] in page.text(".facts")
    assert HOSTILE[0] in page.text(".status-message") and HOSTILE[3] in page.text(".notices")
    assert selected(page) == run.text
    unseen = "() => [...document.querySelectorAll('.output .tok[data-unseen]')].map((node) => node.dataset.unseen)"
    assert "⟨U+200B⟩" in page.eval(unseen)
    for index in range(len(words)):
        page.eval("(i) => document.querySelectorAll('.output .tok')[i].click()", index)
    assert page.eval("() => document.querySelectorAll('.card img, .card script').length") == 0
    assert page.eval("() => Number(document.querySelector('.stage').dataset.blocks)") == len(run.views)


def selected(page: Page) -> str:
    """What a person copies who selects the whole output."""
    return page.eval("""() => {
        getSelection().selectAllChildren(document.querySelector('.output'));
        const text = getSelection().toString();
        getSelection().removeAllRanges();
        return text;
    }""")


def test_copied_text_is_the_output(page: Page) -> None:
    run = ScriptedRun("copy", 400)  # many chunks
    run.views[5]["chips"].append(run.chip("<|im_end|>", "accepted", 99, special=True))
    page.show(run)
    assert page.eval("() => document.querySelectorAll('.chunk').length") > 3
    assert selected(page) == run.text
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.page.click("text=Copy text")
    page.page.wait_for_function("() => document.querySelector('.said').textContent === 'Copied'")
    assert page.eval("() => navigator.clipboard.readText()") == run.text


def test_the_legend_hides_and_shows_a_state(page: Page) -> None:
    page.show(ScriptedRun("legend", 12))
    for state in ("rejected", "unjudged"):
        button, token = f".legend-item[data-state={state}]", f".output .s-{state} >> nth=0"
        assert page.page.is_visible(token)
        page.page.click(button)
        assert page.page.get_attribute(button, "aria-pressed") == "false" and not page.page.is_visible(token)
        page.page.click(button)
        assert page.page.get_attribute(button, "aria-pressed") == "true" and page.page.is_visible(token)
    background = "() => getComputedStyle(document.querySelector('.output .s-accepted')).backgroundColor"
    coloured = page.eval(background)
    page.page.click(".legend-item[data-state=accepted]")
    assert page.page.is_visible(".output .s-accepted >> nth=0") and page.eval(background) != coloured
    page.page.click(".legend-item[data-state=accepted]")


def test_the_card_opens_by_keyboard_and_by_pointer(page: Page) -> None:
    run = ScriptedRun("card", 12)
    page.show(run)
    assert page.eval("() => document.querySelectorAll('.strip [tabindex=\"0\"]').length") == 1
    page.page.focus(".strip [tabindex='0']")
    assert page.page.is_visible(".card") and "first token after the prompt" in page.text(".card")
    page.page.keyboard.press("ArrowDown")
    assert "block 1, place 1" in page.text(".card")
    page.page.keyboard.press("ArrowLeft")
    assert "first token after the prompt" in page.text(".card")
    assert page.eval("() => document.querySelectorAll('.strip [tabindex=\"0\"]').length") == 1
    assert page.eval("() => document.activeElement.getAttribute('aria-describedby')") == "token-card"
    page.page.keyboard.press("Escape")
    assert not page.page.is_visible(".card")
    page.eval("() => document.activeElement.blur()")
    page.page.hover(".output .s-accepted >> nth=0")
    card = page.text(".card")
    for part in ("0.500", "0.250", "0.125", "1.50 nats", "2.50 nats", "match", "accepted", "token id"):
        assert part in card
    page.page.hover(".output .s-resampled >> nth=0")
    assert "replaces" in page.text(".card") and "␣wrong" in page.text(".card")
    page.page.mouse.move(1, 1)
    assert not page.page.is_visible(".card")


def test_figures_show_the_numbers_they_are_given(page: Page) -> None:
    run = ScriptedRun("figures", 12)
    page.show(run, message="12 blocks")
    figures = page.text(".figures")
    for part in ("2.35", "2.10 – 2.60", "12 blocks", "60 / 90", "0.67", "41.2", "float32 · cpu", "not measured yet"):
        assert part in figures
    plain = {"tokens_per_second": 20.0, "speedup": 2.06, "n_tokens": 64, "same_text": True}
    page.show(run, plain=plain | {"note": ""})
    figures = page.text(".figures-speedup, .figure-speedup")
    assert "2.06×" in figures and "64 tokens" in figures and "same text" in figures


def test_status_and_facts(page: Page) -> None:
    run = ScriptedRun("facts", 3, block_size=12, lossless=False, rule_label="naive", recorded="2026-11-01", top_k=40)
    page.show(run)
    facts = page.text(".facts")
    for part in ("recorded on 2026-11-01", "naive", "wrong on purpose", "beyond the trained block size 8", "40"):
        assert part in facts
    page.send(run.payload(2, 4, progress={"fraction": 0.25, "seconds_left": 130}, message="block 4"))
    bar = ".stage [role=progressbar]"
    assert page.page.get_attribute(bar, "aria-valuenow") == "25" and "2 min left" in page.text(".status")
    spoken = page.eval("() => document.querySelector('.top [aria-live=polite]').textContent")
    page.send(run.payload(2, 4, message="block 5", progress={"fraction": None, "seconds_left": None}))
    assert page.text(".status-message") == "block 5"
    assert page.eval("() => document.querySelector('.top [aria-live=polite]').textContent") == spoken
    assert page.page.get_attribute(bar, "aria-valuenow") is None


def chart(name: str) -> str:
    return f"document.querySelector('.chart-{name} .plot')"


def wait_for_chart(page: Page, bars: int) -> None:
    page.page.wait_for_function(f"(n) => {chart('lengths')}?.data?.[0].x.length === n", arg=bars)


def test_charts_draw_the_run_and_keep_the_zoom(page: Page) -> None:
    run = RUNS["charts"] = ScriptedRun("charts", 30)
    page.send(run.payload(0, 20))
    wait_for_chart(page, 19)
    bars = page.eval(f"() => [...{chart('lengths')}.data[0].y]")
    assert bars == [view["tau"] for view in run.views[1:20]]
    assert page.eval(f"() => {chart('lengths')}.layout.shapes[0].y0") == 8
    assert page.eval(f"() => [...{chart('positions')}.data[0].x]") == [1]
    page.page.locator(".chart-lengths").scroll_into_view_if_needed()
    box = page.page.locator(".chart-lengths .nsewdrag").bounding_box()
    page.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.5)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5, steps=4)
    page.page.mouse.up()
    span = "{0}._fullLayout.xaxis.range[1] - {0}._fullLayout.xaxis.range[0]".format(chart("lengths"))
    page.page.wait_for_function(f"() => {span} < 10")
    zoom = page.eval(f"() => [...{chart('lengths')}._fullLayout.xaxis.range]")
    page.send(run.payload(18, 31))
    wait_for_chart(page, 30)
    assert page.eval(f"() => [...{chart('lengths')}._fullLayout.xaxis.range]") == zoom
    page.show(ScriptedRun("charts-next", 40))
    wait_for_chart(page, 40)
    assert page.eval(f"() => {chart('lengths')}._fullLayout.xaxis.range[1]") > 39


def get_current(page: Page) -> None:
    """Gives the test's scripts the run on show, as the page's modules have it."""
    page.eval("""async () => {
        const module = performance.getEntriesByType('resource').find((e) => e.name.endsWith('/current.js')).name;
        window.current = (await import(module)).current;
    }""")


def test_charts_lead_to_their_blocks(page: Page) -> None:
    run = ScriptedRun("click", 30)
    page.show(run)
    wait_for_chart(page, 30)
    get_current(page)
    page.eval("() => current.addEventListener('open', () => current.look(current.asked.i, current.asked.k))")  # as the Block tab

    def click(name: str, x: int) -> list[int | None]:
        page.eval(f"(x) => {chart(name)}.emit('plotly_click', {{ points: [{{ x }}] }})", x)
        return page.eval("() => [current.seen.i, current.seen.k]")

    assert click("lengths", 17) == [17, None]
    for name, x, fits, k in (
        ("histogram", 1, [view["i"] for view in run.views[1:] if view["tau"] == 1], None),
        ("positions", 2, [view["i"] for view in run.views[1:] if view["kept"] == 1], 2),
    ):
        assert len(fits) > 1
        page.eval("() => current.look(1, null)")
        later = [i for i in fits if i > 1]
        found = [click(name, x) for _ in range(len(fits) + 1)]
        expected = [*later, *[i for i in fits if i not in later], *later]
        assert found == [[i, k] for i in expected[: len(found)]]  # one after the other, and round the end
    before = page.eval("() => current.seen")
    page.eval(f"() => {chart('positions')}.emit('plotly_click', {{ points: [{{ x: 8 }}] }})")
    assert "No verdict stopped at place 8" in page.text(".said") and page.eval("() => current.seen") == before
    page.eval("() => { current.look(17, null); current.find(); }")
    assert page.page.get_attribute(".pointed-out", "data-block") == "17"


def test_a_clicked_token_keeps_its_card_which_opens_its_block(page: Page) -> None:
    run = ScriptedRun("pinned", 12)
    page.show(run)
    page.page.hover(".draft-block[data-block='2'] .tok >> nth=0")
    assert not page.page.is_visible(".card-open")
    page.page.click(".draft-block[data-block='2'] .tok >> nth=0")
    page.page.hover(".draft-block[data-block='1'] .tok >> nth=0")
    assert "block 2, place 1" in page.text(".card")  # it does not run away from the pointer
    get_current(page)
    page.eval("() => { window.opened = []; current.addEventListener('open', () => opened.push(current.asked)); }")
    page.page.click(".card-open")
    assert [(asked["i"], asked["k"]) for asked in page.eval("() => opened")] == [(2, 1)]
    assert not page.page.is_visible(".card")
    page.page.click(".output .tok >> nth=0")  # the first token has no block to open
    assert page.page.is_visible(".card") and page.page.query_selector(".card-open") is None
    page.page.keyboard.press("Escape")
    assert not page.page.is_visible(".card")


def test_a_notice_with_a_checklist_and_a_flag_beside_tau(page: Page) -> None:
    run = ScriptedRun("noticed", 12)
    page.show(run)
    assert not page.page.is_visible(".figure-tau .badge")
    page.show(run, stats=run.stats(13) | {"notices": ["What to check:\none\ntwo"], "repetition": True})
    assert page.text(".figure-tau .badge") == "repetition"
    items = page.page.locator(".notices > li ul li")
    assert items.all_inner_texts() == ["one", "two"]


def test_plain_decoding_says_why_there_is_no_chart(page: Page) -> None:
    run = ScriptedRun("plain", 20, block_size=1)
    page.show(run)
    page.page.wait_for_function("() => document.querySelector('.plot-empty').textContent.includes('drafts nothing')")
    assert page.page.is_visible(".chart-lengths .plot-empty")
    assert page.eval("() => document.querySelectorAll('.output .s-plain').length") == len(run.views)


def test_dark_and_light(page: Page) -> None:
    page.show(ScriptedRun("dark", 12))
    wait_for_chart(page, 12)
    ink = f"() => [getComputedStyle(document.querySelector('.stage')).color, {chart('lengths')}.layout.font.color]"
    light = page.eval(ink)
    page.eval("() => document.body.classList.add('dark')")
    page.page.wait_for_function(f"(was) => {chart('lengths')}.layout.font.color !== was", arg=light[1])
    assert page.eval(ink)[0] != light[0]
    page.eval("() => document.body.classList.remove('dark')")
    page.page.wait_for_function(f"(was) => {chart('lengths')}.layout.font.color === was", arg=light[1])


def test_the_strip_follows_only_a_reader_at_its_end(page: Page) -> None:
    run = RUNS["follow"] = ScriptedRun("follow", 160)
    at_end = "() => { const s = document.querySelector('.strip'); return s.scrollHeight - s.scrollTop - s.clientHeight; }"
    page.send(run.payload(0, 120))
    page.page.wait_for_function(f"() => ({at_end})() < 24")
    page.eval("() => { document.querySelector('.strip').scrollTop = 40; }")
    page.page.wait_for_timeout(100)
    page.send(run.payload(118, 161))
    page.page.wait_for_timeout(100)
    assert page.eval("() => document.querySelector('.strip').scrollTop") == 40
    assert page.eval("() => document.activeElement.closest('.stage')") is None


def start_own_stage(page: Page) -> None:
    """A second stage in the open page, `window.own`, that is told of payloads at the very moment a test chooses."""
    page.eval(
        """async (boot) => {
            const url = (end) => performance.getEntriesByType('resource').find((e) => e.name.endsWith(end)).name;
            const { start } = await import(url('/stage.js'));
            const element = document.body.appendChild(document.createElement('div'));
            const props = { value: '' };
            let fire = null;
            const watch = (_, callback) => (fire = callback);
            await start({ element, props, watch, server: {}, boot, urls: { css: '', plotly: url('/plotly.min.js') } });
            window.own = {
                tell: (payload) => { props.value = payload; fire(); },
                strip: () => element.querySelector('.strip'),
                frames: async (n) => { while (n-- > 0) await new Promise(requestAnimationFrame); },
                stop: () => element.remove(),
            };
        }""",
        boot(),
    )


def test_the_strip_follows_whatever_comes_between_its_own_scrolling_and_the_news_of_it(page: Page) -> None:
    """The browser tells of a scroll one frame late: by then there may be more text, or another run."""
    first, second = ScriptedRun("first", 200), ScriptedRun("second", 120)
    start_own_stage(page)
    to_end = page.eval(
        """async ([begin, more, other]) => {
            const toEnd = () => own.strip().scrollHeight - own.strip().scrollTop - own.strip().clientHeight;
            own.tell(begin);
            await own.frames(1); // the strip has scrolled, the news is to come
            own.tell(more);
            await own.frames(4);
            const grown = toEnd();
            own.strip().scrollTop = 0; // a reader turns back, and in the same moment another run begins
            own.tell(other);
            await own.frames(4);
            return [grown, toEnd()];
        }""",
        [encode(first.payload(0, 40)), encode(first.payload(38, 200)), encode(second.payload(0, 120))],
    )
    page.eval("() => own.stop()")
    assert max(to_end) < 24, f"pixels to the end: {to_end}"


def test_the_trace_is_downloaded(page: Page) -> None:
    run = ScriptedRun("trace-1", 5)
    page.show(run)
    with page.page.expect_download() as download:
        page.page.click("text=Download trace")
    assert download.value.suggested_filename == "dflash-trace-1.jsonl"
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == run.views


def test_a_phone_needs_no_sideways_scrolling(page: Page) -> None:
    page.show(ScriptedRun("phone", 30))
    page.page.set_viewport_size({"width": 390, "height": 800})
    try:
        page.page.wait_for_function(f"() => {chart('lengths')}?.layout?.width < 390")
        assert page.eval("() => document.documentElement.scrollWidth") <= 390
        assert page.eval("() => { const s = document.querySelector('.strip'); return s.scrollWidth - s.clientWidth; }") <= 0
    finally:
        page.page.set_viewport_size({"width": 1280, "height": 900})


def test_a_block_costs_the_same_in_a_long_text(page: Page) -> None:
    """Script and layout of one more block, after about 100 and about 2,000 tokens: what is there is not laid out again."""
    run = ScriptedRun("cost", 1000)
    start_own_stage(page)
    page.eval(
        """() => {
            window.cost = async (payloads) => {
                const times = [];
                for (const payload of payloads) {
                    const begin = performance.now();
                    own.tell(payload);
                    own.strip().scrollHeight; // asks for the layout
                    times.push(performance.now() - begin);
                    await new Promise(requestAnimationFrame);
                }
                return times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
            };
        }"""
    )

    def cost_after(n_tokens: int, have: int) -> tuple[float, int]:
        n = next(n for n in range(have, 1001) if sum(view["tau"] for view in run.views[:n]) >= n_tokens)
        page.eval("(payload) => cost([payload])", encode(run.payload(have, n)))
        next_ones = [encode(run.payload(k - 3, k + 1)) for k in range(n, n + 40)]
        return page.eval("(payloads) => cost(payloads)", next_ones), n + 40

    early, have = cost_after(100, 0)
    late, _ = cost_after(2000, have)
    page.eval("() => own.stop()")
    assert late < 3 * early + 2, f"{early:.2f} ms a block after 100 tokens, {late:.2f} ms after 2,000"
