"""The figures of a sweep as files: cells.csv, positions.csv and summary.json."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable
from typing import Any

from .figures import CellResult, Estimate, SweepResults
from .plan import SweepError
from .results import sweep_results
from .store import SweepDirectory, write_file


def write_results(directory: SweepDirectory) -> SweepResults:
    """Makes all figures from the runs in the directory and writes them there."""
    runs = directory.runs()
    results = sweep_results(directory.plan, runs)
    write_file(directory.path / "cells.csv", cells_csv(results.cells))
    write_file(directory.path / "positions.csv", positions_csv(results.cells))
    summary = {
        "about": directory.about,
        "plan": directory.plan.to_dict(),
        "n_runs": len(runs),
        "n_runs_planned": len(directory.plan.keys),
        **dataclasses.asdict(results),
    }
    write_file(directory.path / "summary.json", json.dumps(summary, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    return results


def cells_csv(cells: Iterable[CellResult]) -> str:
    """A row for each cell. Columns `_low` and `_high` are the 95 % interval of the figure before them, `_n` its units.

    shared: at temperature 0 all rules share one set of runs. draft_temperature: empty where it follows the temperature.
    Speeds are of runs decoded one by one, beside plain decoding of the same prompts; batched_tokens_per_second is of the others.
    """
    rows = []
    for cell in cells:
        speed = cell.speed
        rows.append(
            _cell_columns(cell)
            | {"shared": int(cell.shared)}
            | {name: getattr(cell, name) for name in ("n_prompts", "n_seeds", "n_runs", "n_blocks", "n_cut", "n_tokens")}
            | _columns("tau", cell.tau)
            | _columns("alpha", cell.alpha)
            | {"tau_independent": _number(cell.tau_independent), "repeated_share": _number(cell.repeated_share)}
            | _columns("speedup", speed.speedup if speed else None)
            | _columns("tokens_per_second", speed.tokens_per_second if speed else None)
            | _columns("plain_tokens_per_second", speed.plain_tokens_per_second if speed else None)
            | _columns("draft_cost", speed.draft_cost if speed else None)
            | _columns("verify_cost", speed.verify_cost if speed else None)
            | _columns("batched_tokens_per_second", cell.batched_tokens_per_second)
        )
    return _csv(rows)


def positions_csv(cells: Iterable[CellResult]) -> str:
    """A row for each cell and position in the block: acceptance of the judged, and survival, with Wilson intervals."""
    return _csv(
        _cell_columns(cell)
        | {"i": position.i, "accepted": position.accepted, "judged": position.judged}
        | _columns("rate", position.rate)
        | _columns("survival", position.survival)
        for cell in cells
        for position in cell.positions
    )


def _cell_columns(result: CellResult) -> dict[str, Any]:
    cell = result.cell
    draft = "" if cell.draft_temperature is None else cell.draft_temperature
    return {"temperature": cell.temperature, "draft_temperature": draft, "rule": cell.rule, "block_size": cell.block_size}


def _columns(name: str, estimate: Estimate | None) -> dict[str, Any]:
    low, high = (estimate.low, estimate.high) if estimate else (None, None)
    return {
        name: _number(estimate.value if estimate else None),
        f"{name}_low": _number(low),
        f"{name}_high": _number(high),
        f"{name}_n": estimate.n if estimate else "",
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    rows = list(rows)
    if not rows:
        raise SweepError("there is no cell to write")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
