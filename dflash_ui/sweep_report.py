"""The report of a sweep, one file that needs nothing else: `python -m dflash_ui.sweep_report DIRECTORY`.

Every figure and number of the page, for all block sizes and temperatures, with what they were measured with. Pure: no gradio.
"""

from __future__ import annotations

import argparse
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from dflash_core.sweep.figures import SweepResults
from dflash_core.sweep.plan import SweepPlan
from dflash_core.sweep.results import sweep_results
from dflash_core.sweep.store import SweepDirectory, write_file

from .charts import config
from .sweep_charts import Chart, Slice, axis, heat_chart, kind_chart, kinds_of, speed_chart, tau_chart, usual_slice
from .sweep_words import about_lines, difference_table, result_table
from .text import text
from .theme import FONT, FONT_MONO, LIGHT

REPORT = "report.html"

_CSS = """
body { margin: 0 auto; padding: 24px; max-width: 1180px; background: var(--paper); color: var(--ink); font: 15px/1.55 FONT; }
h1 { font-size: 26px; } h2 { margin: 36px 0 10px; font-size: 19px; }
figure { margin: 0; padding: 4px 0 12px; border: 1px solid var(--line); border-radius: 10px; break-inside: avoid; }
figcaption, .note { color: var(--soft); font-size: 12.5px; }
figcaption { padding: 0 14px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr)); gap: 16px; }
.advice li { margin: 6px 0; font-size: 16px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 3px 10px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); } th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 2px 16px; } dt { color: var(--soft); } dd { margin: 0; }
code { display: block; padding: 10px 14px; background: var(--panel); font: 13px/1.5 MONO; overflow-wrap: anywhere; }
"""


def report_html(results: SweepResults, plan: SweepPlan, about: Mapping[str, Any]) -> str:
    """The report as an HTML page with everything in it: style, Plotly, figures, tables."""
    usual = usual_slice(results)
    sizes, temperatures = axis(results, "block_size"), axis(results, "temperature")
    sections = [
        _section("recommendation", f'<ul class="advice">{_items(r.text.replace("`", "") for r in results.recommendations)}</ul>'),
        *(
            _section(key, _figures(charts), draft)
            for draft in axis(results, "draft_temperature")
            for key, charts in _charts(results, about, replace(usual, draft_temperature=draft), sizes, temperatures)
            if charts
        ),
        _section("cells", _table(*result_table(results)) + _note(text("sweep_table", "note"))),
        _section("differences", _table(*difference_table(results)) + _note(text("sweep_report", "differences_note"))),
        _section("prompts", f"<ul>{_items(_prompt_words(plan))}</ul>"),
        _section(
            "about",
            _list(about_lines(about, plan)) + f"<h2>{_text('command')}</h2><code>{_safe(about.get('command', ''))}</code>",
        ),
    ]
    colours = "".join(f"--{field.name.replace('_', '-')}: {getattr(LIGHT, field.name)};" for field in fields(LIGHT))
    style = _CSS.replace("FONT", _fonts(FONT)).replace("MONO", _fonts(FONT_MONO))
    title = _safe(text("sweep_report", "title").format(pair=about.get("pair", ""), date=about.get("date", "")))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>:root {{{colours}}}{style}</style>\n<script>{get_plotlyjs()}</script>\n</head>\n"
        f"<body>\n<h1>{title}</h1>\n{''.join(sections)}\n</body>\n</html>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser("dflash_ui.sweep_report", description=text("sweep_report", "description"))
    parser.add_argument("directory", type=Path, help="of a sweep, finished or not")
    path = parser.parse_args().directory
    try:
        directory = SweepDirectory.open(path)
        results = sweep_results(directory.plan, directory.runs())
        write_file(path / REPORT, report_html(results, directory.plan, directory.about))
    except ValueError as error:
        raise SystemExit(f"sweep_report: {error}") from error
    print(path / REPORT)


def _charts(
    results: SweepResults, about: Mapping[str, Any], cut: Slice, sizes: Sequence[int], temperatures: Sequence[float]
) -> Iterable[tuple[str, list[Chart]]]:
    """Section → its figures, at one draft temperature."""
    yield "tau", [tau_chart(results, about, replace(cut, block_size=size)) for size in sizes]
    yield "heat", [heat_chart(results, about, rule, cut) for rule in axis(results, "rule")]
    yield "speed", [speed_chart(results, about, replace(cut, temperature=t)) for t in temperatures]
    kinds = kinds_of(results)
    yield "kinds", [kind_chart(results, about, kind, cut) for kind in kinds] if len(kinds) > 1 else []


def _figures(charts: Iterable[Chart]) -> str:
    parts = []
    for chart in charts:
        drawn = chart.figure.to_html(full_html=False, include_plotlyjs=False, config={**config(), "responsive": True})
        parts.append(f"<figure>{drawn}<figcaption>{_safe(chart.caption)}</figcaption></figure>")
    return f'<div class="grid">{"".join(parts)}</div>'


def _prompt_words(plan: SweepPlan) -> Iterable[str]:
    for prompt in plan.prompts:
        said = prompt.messages[-1][1] if prompt.messages else prompt.text
        yield f"{prompt.name} ({prompt.kind}): {said}" if prompt.kind != prompt.name else f"{prompt.name}: {said}"


def _section(key: str, content: str, draft_temperature: float | None = None) -> str:
    at = "" if draft_temperature is None else text("sweep_table", "draft_at").format(t=f"{draft_temperature:g}")
    return f"<section>\n<h2>{_text(key)}{_safe(at)}</h2>\n{content}\n</section>\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{_safe(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><tr>{"".join(f"<th>{_safe(name)}</th>" for name in head)}</tr>\n{body}</table></div>'


def _list(lines: Iterable[Sequence[str]]) -> str:
    return f"<dl>{''.join(f'<dt>{_safe(name)}</dt><dd>{_safe(value)}</dd>' for name, value in lines)}</dl>"


def _items(lines: Iterable[str]) -> str:
    return "".join(f"<li>{_safe(line)}</li>" for line in lines) or f"<li>{_text('none')}</li>"


def _note(words: str) -> str:
    return f'<p class="note">{_safe(words)}</p>'


def _text(key: str) -> str:
    return _safe(text("sweep_report", key))


def _safe(words: object) -> str:
    return html.escape(str(words))


def _fonts(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" if " " in name else name for name in names)


if __name__ == "__main__":
    main()
