"""What the page shows of a sweep: figures at one cut through the grid, table, recommendation, and the runs of a cell.

Pure: no gradio. Everything is plain JSON values, words included; the script only lays it out.
"""

from __future__ import annotations

import json
from typing import Any

from dflash_core.blocks import is_number, is_whole
from dflash_core.sweep.figures import SweepResults

from .sweep_charts import Slice, axis, sweep_charts, usual_slice
from .sweep_words import about_lines, cell_names, result_table
from .sweeps import Sweep
from .text import text

MAX_CELL_RUNS = 300  # listed
AXES = ("temperature", "block_size", "draft_temperature")


def board(sweep: Sweep, asked: dict[str, Any]) -> dict[str, Any]:
    """All that is drawn of a sweep. asked: values of `AXES` where the figures cut, each may be missing, and "dark"."""
    version, results = sweep.results()
    cut = _cut(results, asked)
    charts = sweep_charts(results, sweep.about, cut, dark=asked.get("dark") is True)
    head, rows = result_table(results)
    return {
        "sweep": sweep.id,
        "version": version,
        "cut": {name: getattr(cut, name) for name in AXES},
        "choices": [_choice(results, name, getattr(cut, name)) for name in AXES],
        "charts": [
            {"key": c.key, "title": c.title, "caption": c.caption, "figure": json.loads(c.figure.to_json())} for c in charts
        ],
        "recommendations": recommendations(results, cut),
        "table": {
            "head": head,
            "note": text("sweep_table", "note"),
            "rows": rows,
        },
        "about": about_lines(sweep.about, sweep.plan),
        "command": str(sweep.about.get("command", "")),
    }


def recommendations(results: SweepResults, cut: Slice) -> dict[str, Any]:
    """The core's sentences: those of the cut's temperature, and the others."""
    here: list[str] = []
    others: list[str] = []
    for found in results.recommendations:
        same = (found.temperature, found.draft_temperature) == (cut.temperature, cut.draft_temperature)
        (here if same else others).append(found.text.replace("`", ""))
    return {"here": here, "others": others, "none": text("sweep", "no_recommendation")}


def cell_runs(sweep: Sweep, index: int) -> dict[str, Any] | None:
    """The finished runs of a cell, by its place in the results; None if there is no such cell."""
    cells = sweep.plan.cells
    if not 0 <= index < len(cells):
        return None
    cell = cells[index]
    rows = []
    numbers = sweep.numbers_of(cell)
    for number in numbers[:MAX_CELL_RUNS]:
        line = sweep.lines[number]
        tau = "–" if line.tau is None else f"{line.tau:.2f}"
        finish = text("sweep_table", f"finish_{line.finish}")
        cells_of_row = [sweep.plan.prompts[line.key.prompt].name, f"{line.key.seed}", tau, f"{line.n_blocks:,}"]
        rows.append({"run": number, "open": sweep.is_kept(number), "cells": [*cells_of_row, f"{line.n_tokens:,}", finish]})
    shared = sweep.plan.decoded_as(cell).rule
    note = text("sweep_table", "shared").format(rule=shared) if shared != cell.rule else ""
    if len(numbers) > len(rows):
        note += text("sweep_table", "more").format(n=len(numbers) - len(rows))
    if any(not row["open"] for row in rows):
        note += text("sweep_table", "not_kept")
    return {
        "cell": index,
        "title": text("sweep_table", "cell_title").format(n=len(numbers), **cell_names(cell)),
        "note": note.strip(),
        "head": [text("sweep_table", name) for name in ("prompt", "seed", "tau_short", "blocks", "tokens", "ended")],
        "open": text("sweep_table", "open"),
        "rows": rows,
    }


def _cut(results: SweepResults, asked: dict[str, Any]) -> Slice:
    """The cut that was asked for, where the grid has it; otherwise the usual one."""
    usual = usual_slice(results)
    values: dict[str, Any] = {}
    for name in AXES:
        value = asked.get(name)
        there = is_number(value) or (value is None and name in asked)
        values[name] = value if there and value in axis(results, name) else getattr(usual, name)
    return Slice(**values)


def _choice(results: SweepResults, name: str, chosen: Any) -> dict[str, Any]:
    """A menu of one axis of the grid: values with their labels."""
    values = axis(results, name)
    values = sorted(values, key=lambda value: -1.0 if value is None else value)
    labels = [text("sweep_table", "follows") if value is None else f"{value:g}" for value in values]
    return {"name": name, "label": text("sweep_table", name), "values": values, "labels": labels, "chosen": values.index(chosen)}


def whole(value: Any) -> int | None:
    """A number that a browser sent, if it is a whole one."""
    return value if is_whole(value) else int(value) if is_number(value) and value == int(value) else None
