"""What page and report say of a sweep's results in words and tables. Plain text throughout; pure, no gradio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dflash_core.sweep.figures import CellResult, Estimate, SweepResults
from dflash_core.sweep.plan import Cell, SweepPlan

from .text import text

CELL_COLUMNS = (
    "rule",
    "temperature",
    "block_size",
    "tau",
    "alpha",
    "speedup",
    "speed",
    "batched",
    "blocks",
    "cut",
    "repeated",
    "prompts",
    "runs",
)
DIFFERENCE_COLUMNS = ("rule", "other", "temperature", "block_size", "difference")

Table = tuple[list[str], list[list[str]]]


def told(estimate: Estimate | None) -> str:
    """An estimate to read: value, 95 % interval, n."""
    if estimate is None:
        return text("sweep_charts", "unmeasured")
    interval = "" if estimate.low is None else f" ({_fixed(estimate.low)} – {_fixed(estimate.high)})"
    return f"{_fixed(estimate.value)}{interval}, n = {estimate.n:,}"


def _fixed(value: float | None) -> str:
    """Two decimals; of an interval that noise has blown up only its size."""
    return "–" if value is None else f"{value:.2f}" if abs(value) < 1000 else f"{value:.0e}"


def n_words(estimates: Iterable[Estimate | None]) -> str:
    """The n of the estimates with its unit: one number, or from the least to the most."""
    found = [estimate for estimate in estimates if estimate]
    ns = sorted({estimate.n for estimate in found})
    if not ns:
        return text("sweep_charts", "none")
    unit = found[0].unit
    return f"{ns[0]:,} {unit[:-1] if ns == [1] else unit}" if len(ns) == 1 else f"{ns[0]:,} – {ns[-1]:,} {unit}"


def shortened(words: str, most: int) -> str:
    """At most so many characters."""
    return words if len(words) <= most else f"{words[: most - 1]}…"


def result_table(results: SweepResults) -> Table:
    """Head and rows: every cell, in the order of the results."""
    return [text("sweep_table", name) for name in CELL_COLUMNS], [_result_row(result) for result in results.cells]


def difference_table(results: SweepResults) -> Table:
    """Head and rows: τ of one rule minus τ of another on the same prompts."""
    rows = []
    for found in results.differences:
        names = cell_names(Cell(found.temperature, found.block_size, found.rule, found.draft_temperature))
        rows.append([found.rule, found.other, names["temperature"], names["block_size"], told(found.tau)])
    return [text("sweep_table", name) for name in DIFFERENCE_COLUMNS], rows


def about_lines(about: Mapping[str, Any], plan: SweepPlan) -> list[list[str]]:
    """[name, value] of what a reader of the figures needs beside them."""
    versions = ", ".join(f"{name} {value}" for name, value in about.get("versions", {}).items())
    kinds = len({prompt.kind for prompt in plan.prompts})
    lines = {
        "pair": about.get("pair"),
        "models": "; ".join(about.get("sources", [])),
        "device": f"{about.get('device')}, {about.get('dtype')}; {about.get('hardware')}",
        "versions": versions,
        "date": about.get("date"),
        "prompts": text("sweep", "about_prompts").format(n=len(plan.prompts), kinds=kinds, seeds=len(plan.seeds)),
        "tokens": text("sweep", "about_tokens").format(tokens=plan.max_new_tokens, rows=plan.rows),
    }
    return [[text("sweep_table", f"about_{name}"), str(value)] for name, value in lines.items() if value]


def cell_names(cell: Cell) -> dict[str, str]:
    """The cell's coordinates to read."""
    draft = "" if cell.draft_temperature is None else text("sweep_table", "draft_at").format(t=f"{cell.draft_temperature:g}")
    return {"rule": cell.rule, "temperature": f"{cell.temperature:g}{draft}", "block_size": f"{cell.block_size}"}


def _result_row(result: CellResult) -> list[str]:
    speed = result.speed
    names = cell_names(result.cell)
    return [
        names["rule"],
        names["temperature"],
        names["block_size"],
        _interval(result.tau),
        _interval(result.alpha),
        _interval(speed.speedup if speed else None),
        f"{speed.tokens_per_second.value:.1f} / {speed.plain_tokens_per_second.value:.1f}" if speed else "–",
        f"{result.batched_tokens_per_second.value:.1f}" if result.batched_tokens_per_second else "–",
        f"{result.n_blocks:,}",
        f"{result.n_cut:,}",
        "–" if result.repeated_share is None else f"{result.repeated_share:.0%}",
        f"{result.n_prompts:,}",
        f"{result.n_runs:,}",
    ]


def _interval(estimate: Estimate | None) -> str:
    return told(estimate) if estimate else "–"
