"""The look of the page as values: colours that can be read, states that can be told apart, figures that draw their data."""

from __future__ import annotations

import json
import re

import pytest

from dflash_ui import charts, theme
from tests.scripted import GHOSTS, ScriptedRun


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_contrast(dark: bool) -> None:
    look = theme.neutrals(dark)
    for ground in (look.paper, look.panel):
        for text in (look.ink, look.soft, look.faint, look.accent, look.good, look.warning):
            assert contrast(text, ground) >= 4.5, (text, ground)
    assert contrast(look.warning, look.warning_panel) >= 4.5
    assert contrast(look.on_accent, look.accent) >= 4.5
    for key, state in theme.states().items():
        chip = (state.look.chip_dark if dark else state.look.chip) or look.paper
        assert contrast(look.soft if state.look.ghost else look.ink, chip) >= 4.5, key


def test_every_state_has_words_and_a_second_cue() -> None:
    css = (theme.ASSETS / "css" / "stage.css").read_text(encoding="utf-8")
    for key, state in theme.states().items():
        assert state.label and state.aloud and state.explain
        if state.look.edge is not None:
            assert f"var(--tok-{key}-edge)" in css
    assert {key for key, state in theme.states().items() if state.look.ghost} == set(GHOSTS)


def test_the_style_sheet_has_no_colour_of_its_own() -> None:
    css = "".join((theme.ASSETS / "css" / name).read_text(encoding="utf-8") for name in ("stage.css", "everywhere.css"))
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?![^;]*transparent)", css) == []
    used, made = set(re.findall(r"var\((--[\w-]+)\)", css)), set(re.findall(r"(--[\w-]+):", theme.css_properties()))
    assert used - {"--faint-ink"} <= made


def test_gradio_theme_fetches_nothing() -> None:
    made = theme.gradio_theme()
    assert made._stylesheets == []
    assert not re.search(r"@import|url\(.?http", made._get_theme_css())


def test_templates_are_empty_json_in_both_themes() -> None:
    templates = charts.templates()
    json.dumps(templates, allow_nan=False)
    for name in ("lengths", "histogram", "positions"):
        light, dark = templates[name]["light"], templates[name]["dark"]
        assert light["layout"]["font"]["color"] != dark["layout"]["font"]["color"]
        assert all(not trace["x"] and not trace["y"] for trace in light["data"])
        assert all(light["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis"))
        assert light["layout"]["title"]["text"]


def test_static_figures_draw_what_they_are_given() -> None:
    run = ScriptedRun("static", 20)
    run.views[-1] |= {"cut": True, "finish": "stop"}
    stats = run.stats(21)
    lengths = charts.lengths_figure(run.views, stats)
    assert list(lengths.data[0].x) == list(range(1, 21))  # block 0 drafted nothing
    assert list(lengths.data[0].y) == [view["tau"] for view in run.views[1:]]
    assert [bool(shape) for shape in lengths.data[0].marker.pattern.shape] == [False] * 19 + [True]
    assert lengths.layout.shapes[0].y0 == 8
    histogram = charts.histogram_figure(stats)
    assert list(histogram.data[0].y) == stats["lengths"] and "theory" in histogram.data[1].name
    positions = charts.positions_figure(stats | {"positions": [*stats["positions"], {"i": 8, "rate": None}]})
    judged = {row["i"]: row["judged"] for row in stats["positions"]}
    assert [judged[i] >= charts.FEW for i in positions.data[0].x] == [True]
    assert [judged[i] < charts.FEW for i in positions.data[1].x] == [True] * 6
    assert positions.data[0].error_y.array[0] == pytest.approx(0.15)
    assert not positions.layout.shapes[0].visible
    beyond = charts.positions_figure(stats, trained_block_size=4).layout
    assert beyond.shapes[0].visible and beyond.shapes[0].x0 == beyond.annotations[0].x == 3.5  # places 4, 5, … lie beyond
    assert positions.data[1].opacity < positions.data[0].opacity
