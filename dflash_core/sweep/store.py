"""A sweep's directory.

    sweep.json          the plan, the prompts' token ids, and about: pair, revisions, device, dtype, hardware, versions, command
    runs.jsonl          a line for each finished run, appended when it finishes
    cells.csv           a row for each cell, written when the sweep ends or is stopped
    positions.csv       a row for each cell and position in the block
    summary.json        all figures (`SweepResults`) with plan and about
    report.html         the figures as a page of its own, made by `python -m dflash_ui.sweep_report DIRECTORY`

With several processes each appends to a `runs.I-of-N.jsonl` of its own; the first one puts them together.
A line of runs.jsonl is an object: temperature, draft_temperature, block_size, rule, prompt (its name), seed, rows, blocks, and
maybe contexts. A block is an object: drafted ids, n_accepted, next (token), n (tokens emitted), finish, judged (rows of
q(x), p(x), acceptance probability, entropies of p and q), p_next, seconds (draft, verify, other); the rest of a `Block` follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..pairs import Pair
from ..trace import Trace
from .plan import SweepPlan
from .results import SweepResults
from .runs import CellRun


class SweepError(ValueError):
    """A sweep that cannot be begun, continued or read; the message says what would be right."""


class SweepDirectory:
    """The files of one sweep. `plan`, `prompt_ids` and `about` are those of sweep.json."""

    plan: SweepPlan
    prompt_ids: tuple[tuple[int, ...], ...]
    about: dict[str, Any]

    @classmethod
    def create(
        cls, path: Path, plan: SweepPlan, prompt_ids: tuple[tuple[int, ...], ...], about: dict[str, Any]
    ) -> SweepDirectory:
        """Begins a sweep here, or takes up the same one again. SweepError if another sweep is here, or it cannot be written."""
        raise NotImplementedError

    @classmethod
    def open(cls, path: Path) -> SweepDirectory:
        """A sweep that is there, for reading or going on."""
        raise NotImplementedError

    def runs(self) -> list[CellRun]:
        """The finished runs, in the order of the plan."""
        raise NotImplementedError

    def append(self, run: CellRun) -> None:
        """Adds a finished run to the file. SweepError if it cannot be written; then nothing of it is left there."""
        raise NotImplementedError

    def finish(self, runs: Iterable[CellRun]) -> SweepResults:
        """Writes cells.csv, positions.csv and summary.json, and runs.jsonl in the order of the plan."""
        raise NotImplementedError

    def trace(self, run: CellRun) -> Trace:
        """One run as a trace, without texts."""
        raise NotImplementedError


def describe(pair: Pair, command: str) -> dict[str, Any]:
    """`about`: pair, revisions of its models, device, dtype, hardware, versions, date, the command that repeats the sweep."""
    raise NotImplementedError
