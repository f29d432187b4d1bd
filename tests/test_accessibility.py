"""The page for everyone: axe-core's rules on every tab, every width, the keyboard alone, less motion, and on paper.

Tabs are found on the page, so new ones are tested as they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.served import ServedPage, Visitor

pytestmark = pytest.mark.browser

TOY = {"prompt": "the cat", "chat": 0, "pair": "toy", "t": 1, "b": 4, "n": 60, "seed": 3}
WIDTHS = (390, 768, 1440, 2560)

FINDINGS = """async () => {
    const { violations } = await axe.run(document, { resultTypes: ['violations'], preload: false });
    return violations.filter(({ impact }) => ['serious', 'critical'].includes(impact))
        .flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 200)}`));
}"""
TABS = """async () => {
    window.tabs = await import(performance.getEntriesByType('resource').find((e) => e.name.endsWith('/tabs.js')).name);
    return [...tabs.tabs().keys()];
}"""
FOCUSED = """() => {
    const node = document.activeElement, style = getComputedStyle(node);
    const seen = (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== 'none';
    return [node.id || node.closest('[id]')?.id || '', node.tagName, node.textContent.slice(0, 40), seen];
}"""


@pytest.fixture
def visitor(browser: Any, toy_page: ServedPage, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    """A visitor after a run. Parameter: options of the browser context."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | getattr(request, "param", {})))
    visitor = Visitor(context.new_page(), toy_page.url).open(**TOY)
    visitor.run()
    yield visitor
    assert visitor.errors == []
    context.close()


def every_tab(visitor: Visitor) -> Iterator[str]:
    """Opens one tab of the page after the other."""
    ids = visitor.eval(TABS)
    assert {"run", "block", "lossless"} <= set(ids)
    for tab in ids:
        visitor.eval("(tab) => tabs.goTo(tab)", tab)
        visitor.wait("(tab) => tabs.openTab() === tab", tab)
        visitor.page.wait_for_timeout(400)  # what it fades in
        yield tab


def axe_core() -> str:
    found = find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        missing("axe-core comes with axe-playwright-python, which requirements-dev.txt names")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("visitor", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True)
def test_no_serious_finding_on_any_tab(visitor: Visitor) -> None:
    visitor.page.evaluate(axe_core())
    visitor.page.click("#advanced button")
    visitor.page.click(".output .tok >> nth=3")
    found = []
    for tab in every_tab(visitor):
        if tab == "lossless":
            visitor.page.get_by_role("button", name="Draw", exact=True).click()
            visitor.page.wait_for_selector(".law-verdict")
        found += [f"{tab}: {finding}" for finding in visitor.eval(FINDINGS)]
    assert found == []


def test_no_tab_scrolls_sideways(visitor: Visitor) -> None:
    for width in WIDTHS:
        visitor.page.set_viewport_size({"width": width, "height": 900})
        for tab in every_tab(visitor):
            assert visitor.eval("() => document.documentElement.scrollWidth") <= width, (width, tab)


def test_on_a_tablet_the_parts_of_a_tab_fill_the_page_one_below_the_other(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 768, "height": 900})
    for tab in every_tab(visitor):
        if tab not in ("run", "sweep", "lossless"):
            continue
        row = {"lossless": "law"}.get(tab, tab)
        widths = visitor.eval(f"() => [...document.querySelectorAll('#{row}-tab > *')].map((part) => part.clientWidth)")
        assert len(widths) == 2 and min(widths) > 690, (tab, widths)


def test_charts_do_not_depend_on_the_address_they_were_drawn_under(visitor: Visitor) -> None:
    """A picture's part that is cut out by a shape found under an absolute address is gone once the address has changed."""
    shapes = "() => [...document.querySelectorAll('.plot [clip-path]')].map((part) => part.getAttribute('clip-path'))"
    for tab in every_tab(visitor):
        if tab in ("run", "compare"):
            visitor.wait(f"() => ({shapes})().length")
        assert [shape for shape in visitor.eval(shapes) if not shape.startswith("url(#")] == [], tab


@pytest.mark.parametrize("visitor", [{"accept_downloads": True, "reduced_motion": "reduce"}], indirect=True)
def test_the_keyboard_alone_from_the_prompt_to_the_file(visitor: Visitor) -> None:
    page = visitor.page
    before = visitor.shown_run()
    page.mouse.click(2, 2)
    unseen = []

    def tab_to(wanted: str) -> None:
        for _ in range(150):
            page.keyboard.press("Tab")
            where, tag, text, seen = visitor.eval(FOCUSED)
            if not seen and tag != "BODY":  # Gradio's lists of choices close while the focus is on them
                unseen.append((where, tag, text))
            if wanted in (where, text):
                return
        pytest.fail(f"the Tab key does not reach {wanted}")

    tab_to("prompt")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("the dog")
    page.keyboard.press("Shift+Enter")
    visitor.wait("(before) => document.querySelector('.stage').dataset.run !== before", before)
    visitor.wait_status("done")
    page.wait_for_selector("#run:enabled")
    tab_to("Download trace")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert '"the dog"' in download.value.path().read_text(encoding="utf-8")
    assert unseen == []
    visitor.wait("() => document.getAnimations().every((each) => each.effect.getTiming().duration <= 1)")


@pytest.mark.parametrize("visitor", [{"color_scheme": "dark"}], indirect=True)
def test_paper_gets_text_and_figures_in_light_colours(visitor: Visitor) -> None:
    page = visitor.page
    visitor.wait("() => document.querySelector('.chart-lengths .plot')?.layout?.width")
    ink = "() => getComputedStyle(document.querySelector('.stage')).color"
    dark = visitor.eval(ink)
    page.emulate_media(media="print")
    visitor.eval("() => window.dispatchEvent(new Event('beforeprint'))")
    assert not page.is_visible("#controls") and not page.is_visible("text=Download trace")
    assert page.is_visible(".output .s-accepted >> nth=0") and page.is_visible(".figure-tau")
    # Nothing that is longer than a window is cut off.
    cut = """() => ['html', 'body', '.gradio-container', '.strip'].filter((name) => {
        const { overflowY, maxHeight } = getComputedStyle(document.querySelector(name));
        return overflowY !== 'visible' || maxHeight !== 'none';
    })"""
    assert visitor.eval(cut) == []
    assert visitor.eval("() => getComputedStyle(document.querySelector('.charts')).gridTemplateColumns.split(' ').length") == 1
    plot = "document.querySelector('.chart-lengths .plot').layout"
    assert visitor.eval(f"() => {plot}.width") <= 660 and visitor.eval(f"() => {plot}.font.color") == "#16202B"
    assert visitor.eval(ink) == "rgb(22, 32, 43)" != dark
    visitor.eval("() => window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert visitor.eval(ink) == dark and page.is_visible("#controls")

    page.set_viewport_size({"width": 2560, "height": 900})
    for tab in every_tab(visitor):
        if tab not in ("compare", "sweep"):
            continue
        widths = f"() => [...document.querySelectorAll('#{tab} .plot')].map((plot) => plot.layout?.width ?? 0)"
        visitor.wait(f"() => Math.max(...({widths})()) > 660")
        visitor.eval("() => window.dispatchEvent(new Event('beforeprint'))")
        visitor.wait(f"() => Math.max(...({widths})()) <= 660")
        visitor.eval("() => window.dispatchEvent(new Event('afterprint'))")
        visitor.wait(f"() => Math.max(...({widths})()) > 660")
