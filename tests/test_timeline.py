"""The map of all blocks: its colours are the states of the places, a cell opens its block, a long run stays quick."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr
import pytest

from dflash_ui import theme
from dflash_ui.block_tab import block_tab
from dflash_ui.run import Run
from dflash_ui.stage import stage
from tests.scripted import ScriptedRun
from tests.served import ServedPage, Visitor, free_port

pytestmark = pytest.mark.browser

GUTTER = 30  # px, as in timeline.js
TOY = {"prompt": "the cat", "chat": 0, "pair": "toy", "t": 0.9, "n": 120, "seed": 3}

# The colour in the middle of the cell of block i at place k, when columns are `wide` px and the whole run is in sight.
COLOURS = """([cells, wide, rows]) => {
    const canvas = document.querySelector('.map-canvas');
    const ratio = canvas.width / canvas.clientWidth, high = (canvas.clientHeight - 24) / rows;
    const pen = canvas.getContext('2d');
    return cells.map(([i, k]) => {
        const at = [30 + (i - 0.5) * wide, (rows - k + 0.5) * high].map((x) => Math.floor(x * ratio));
        const [r, g, b, a] = pen.getImageData(...at, 1, 1).data;
        return a < 255 ? '' : '#' + [r, g, b].map((x) => x.toString(16).padStart(2, '0')).join('').toUpperCase();
    });
}"""


def state_at(view: dict[str, Any], k: int) -> str | None:
    """The state of what stands at place k, told from the chips the strip shows."""
    states = [chip["s"] for chip in view["chips"] if chip["k"] == k and chip["s"] != "rejected"]
    return states[0] if states else None


def opened(browser: Any, page: ServedPage, **query: Any) -> tuple[Any, Visitor, Run]:
    tab = browser.new_page(viewport={"width": 1280, "height": 1000})
    visitor = Visitor(tab, page.url).open(**TOY | query)
    visitor.run()
    return tab, visitor, page.run(visitor.shown_run())


def drawn(tab: Any, n: int) -> None:
    """Waits for the map of n blocks, as wide as its frame has become."""
    tab.wait_for_function(
        """(n) => document.querySelector('.map-counter')?.textContent.includes(`of ${n}`)
            && document.querySelector('.map-canvas').clientWidth === document.querySelector('.map-scroll').clientWidth""",
        arg=n,
    )


def wide(tab: Any, n: int) -> float:
    """Width of a column in px while the whole run is in sight."""
    return float(min(40.0, (tab.evaluate("() => document.querySelector('.map-scroll').clientWidth") - GUTTER - 1) / n))


def test_every_cell_has_the_colour_of_its_state_and_opens_its_block(browser: Any, toy_page: ServedPage) -> None:
    tab, visitor, run = opened(browser, toy_page, rule="coupled", b=4, n=300)
    tab.locator("#tabs button[data-tab-id=block]").click()
    n, rows = len(run.views) - 1, 4
    drawn(tab, n)
    column = wide(tab, n)
    states = theme.states()
    # Block 1 is framed, for it is on show.
    cells = [(view["i"], k, state_at(view, k)) for view in run.views[2:] for k in range(1, rows + 1)]
    assert {state for _, _, state in cells} >= {"accepted", "resampled", "bonus", "unjudged", None}
    shown = tab.evaluate(COLOURS, [[[i, k] for i, k, _ in cells], column, rows])
    for (i, k, state), colour in zip(cells, shown, strict=True):
        expected = states[state].look.fill if state in ("accepted", "resampled", "bonus") else ""
        assert colour == expected, (i, k, state)

    # Pointing at a cell names it, a click opens its block at its place.
    view = next(view for view in run.views[n // 2 :] if 0 < view["kept"] < view["n_drafted"] and not view["cut"])
    k = view["kept"]
    height = tab.evaluate("() => document.querySelector('.map-canvas').clientHeight - 24") / rows
    canvas = tab.locator(".map-canvas")
    for place, state in ((k, "accepted"), (k + 1, "resampled")):
        at = {"x": GUTTER + (view["i"] - 0.5) * column, "y": (rows - place + 0.5) * height}
        canvas.hover(position=at)
        tip = tab.locator(".map-tip").inner_text()
        assert f"block {view['i']}, place {place}, position {view['start'] + place}" in tip and state in tip
        assert run.words[str(view["emitted"][place - 1])].strip() in tip
        assert ("rejected" in tip) == (state == "resampled")
        canvas.click(position=at)
        assert tab.get_attribute(".inspector", "data-block") == str(view["i"])
        assert tab.locator(".block-places [aria-pressed=true]").get_attribute("aria-label").startswith(f"Place {place}:")
    where = f"block {view['i']} of {n} · {view['tokens']} of {len(run.token_ids)} tokens"
    expected = f"{where} · {view['clock']:.2f} of {run.stats().seconds:.2f} s"
    tab.wait_for_function("(said) => document.querySelector('.map-counter').textContent.startsWith(said)", arg=expected)
    assert visitor.errors == []
    tab.close()


def test_zoom_by_keys_buttons_and_wheel(browser: Any, toy_page: ServedPage) -> None:
    tab, visitor, run = opened(browser, toy_page, rule="match", b=8)
    tab.locator("#tabs button[data-tab-id=block]").click()
    scroll = tab.locator(".map-scroll")
    drawn(tab, len(run.views) - 1)
    width = "() => document.querySelector('.map-scroll').scrollWidth"
    whole = tab.evaluate(width)
    assert tab.get_by_label("Farther").is_disabled()
    scroll.focus()
    tab.keyboard.press("+")
    tab.wait_for_function(f"(whole) => ({width})() > 1.8 * whole", arg=whole)
    tab.get_by_label("Closer").click()
    tab.wait_for_function(f"(whole) => ({width})() > 3.6 * whole", arg=whole)
    # Far along the run, the block on show is kept in sight.
    tab.keyboard.press("End")
    tab.wait_for_function("() => document.querySelector('.map-scroll').scrollLeft > 1000")
    assert int(tab.get_attribute(".inspector", "data-block")) == len(run.views) - 1
    tab.keyboard.press("0")
    tab.wait_for_function(f"(whole) => ({width})() === whole", arg=whole)
    scroll.hover(position={"x": 900, "y": 40})
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -400)
    tab.keyboard.up("Control")
    tab.wait_for_function(
        f"(whole) => ({width})() > 3 * whole && document.querySelector('.map-scroll').scrollLeft > 1000", arg=whole
    )
    assert tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert visitor.errors == []
    tab.close()


@pytest.fixture(scope="module")
def long_page(browser: Any) -> Iterator[Any]:
    """A page with the stage and the Block tab's view side by side, and a text field that stands for the server's messages."""

    def get_run(request: dict[str, Any]) -> None:
        return None

    def get_trace(run: str) -> None:
        return None

    with gr.Blocks() as demo:
        shown = stage("", [get_run, get_trace])
        block_tab()
        message = gr.Textbox(elem_id="message", container=False, show_label=False)
        gr.Button("send", elem_id="send").click(lambda text: text, message, shown, api_visibility="private")
    options: dict[str, Any] = {"quiet": True, "ssr_mode": False, "run_history": False, "theme": theme.gradio_theme()}
    _, url, _ = demo.launch(prevent_thread_lock=True, server_port=free_port(), **options)
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(url)
    tab.wait_for_selector(".inspector", state="attached")
    yield tab
    tab.close()
    demo.close()


def test_a_block_costs_the_same_in_a_long_run(long_page: Any) -> None:
    """Time of the drawings while 60 blocks arrive one by one, after 100 blocks and after 4,000: in script, and how many."""
    run = ScriptedRun("long", 4200)
    views = [view | {"chips": []} for view in run.views]  # the map needs none
    tab = long_page
    tab.evaluate("""async () => {
        const url = (end) => performance.getEntriesByType('resource').find((e) => e.name.endsWith(end)).name;
        const { current } = await import(url('/current.js'));
        const { Timeline } = await import(url('/timeline.js'));
        const draw = Timeline.prototype.draw;
        window.times = [];
        Timeline.prototype.draw = function () {
            const begin = performance.now();
            draw.call(this);
            document.querySelector('.map-canvas').getContext('2d').getImageData(0, 0, 1, 1); // asks for the painting
            times.push(performance.now() - begin);
        };
        window.feed = (run, head, views) => {
            if (head) current.begin(run, head);
            for (const view of views) current.add(view);
        };
        window.trickle = async (views) => {
            await new Promise((resolve) => setTimeout(resolve, 800));
            times.length = 0;
            const begin = performance.now();
            for (const view of views) {
                feed(null, null, [view]);
                await new Promise((resolve) => setTimeout(resolve, 25));
            }
            return [times.sort((a, b) => a - b)[Math.floor(times.length / 2)], times.length, (performance.now() - begin) / 1000];
        };
    }""")
    tab.evaluate("([head, views]) => feed('long', head, views)", [run.head, views[:101]])
    early, _, _ = tab.evaluate("(views) => trickle(views)", views[101:161])
    tab.evaluate("(views) => feed(null, null, views)", views[161:4001])
    late, drawings, seconds = tab.evaluate("(views) => trickle(views)", views[4001:4061])
    assert tab.evaluate("() => document.querySelector('.map-counter').textContent").startswith("block 1 of 40")
    assert drawings <= 3 * seconds + 1
    assert late < 2 * early + 3, f"{early:.2f} ms a drawing after 100 blocks, {late:.2f} ms after 4,000"
