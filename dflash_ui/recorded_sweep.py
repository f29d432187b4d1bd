"""The sweep that ships with the page, in assets/sweep: its figures, the list of all its runs, and some of the runs whole.

    sweep.json, summary.json, cells.csv, positions.csv    as in every sweep's directory
    lines.json       the list of its finished runs (`RunLine`)
    runs.jsonl.gz    the runs of the first prompts, as many as fit
    tokenizer.json   of the pair's tokenizer the part that decodes these runs

`python -m dflash_ui.record_sweep DIRECTORY` makes it from a sweep's directory.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import logging
import shutil
import threading
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_core.sweep.figures import SweepResults
from dflash_core.sweep.lines import parse_run
from dflash_core.sweep.plan import Cell, RunKey
from dflash_core.sweep.runs import CellRun
from dflash_core.sweep.store import SweepDirectory, write_file

from .sweep_report import REPORT, report_html
from .sweep_request import SweepRequest
from .sweeps import RunLine, Sweep, own_folder
from .text import text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

RUNS, LINES, TOKENIZER = "runs.jsonl.gz", "lines.json", "tokenizer.json"
COPIED = ("sweep.json", "summary.json", "cells.csv", "positions.csv")


class RecordedSweep(Sweep):
    """A finished sweep from files. What only a click needs is read at the click: runs, tokenizer, report."""

    def __init__(self, path: Path, folder: Path) -> None:
        """folder: where copies go that may be served. Raises ValueError if the files are not those of a recorded sweep."""
        directory = SweepDirectory.open(path)
        super().__init__(SweepRequest(str(directory.about["pair_key"]), directory.plan, None))
        self.id, self.directory, self._folder = "recorded", directory, folder
        self._copying = threading.Lock()
        entries = json.loads((path / LINES).read_text(encoding="utf-8"))
        self.lines = [RunLine(RunKey(Cell(*cell), prompt, seed), *rest) for cell, prompt, seed, *rest in entries]
        self.n_runs = len(self.lines)
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        names = [field.name for field in dataclasses.fields(SweepResults)]
        self._results = self.n_runs, from_json(SweepResults, {name: summary[name] for name in names})
        self.set("recorded_sweep", text("sweep", "recorded").format(date=directory.about["date"], pair=directory.about["pair"]))

    @functools.cached_property
    def _kept(self) -> dict[RunKey, CellRun]:
        assert self.directory is not None
        keys = frozenset(line.key for line in self.lines)
        lines = self._kept_lines().splitlines()
        runs = [parse_run(line, self.plan, self.directory.prompt_ids, keys) for line in lines]
        return {run.key: run for run in runs}

    def _kept_lines(self) -> str:
        assert self.directory is not None
        return gzip.decompress((self.directory.path / RUNS).read_bytes()).decode("utf-8")

    @functools.cached_property
    def _copies(self) -> Path:
        """The files as a visitor's own sweep has them, apart from the runs that are not kept."""
        assert self.directory is not None
        copies = own_folder(self, self._folder)
        for name in COPIED:
            shutil.copyfile(self.directory.path / name, copies / name)
        write_file(copies / "runs.jsonl", self._kept_lines())
        write_file(copies / REPORT, report_html(self.results()[1], self.plan, self.about))
        return copies

    def is_kept(self, number: int) -> bool:
        return self.lines[number].key in self._kept

    def run(self, number: int) -> CellRun | None:
        if self.tokenizer is None:
            assert self.directory is not None
            self.tokenizer = small_tokenizer(self.directory.path / TOKENIZER)
        return self._kept.get(self.lines[number].key)

    def file(self, name: str) -> Path:
        with self._copying:
            return self._copies / name


def recorded_sweep(path: Path, folder: Path) -> RecordedSweep | None:
    """The sweep at this path; None if there is none, or if it is of no use, which is logged."""
    if not (path / LINES).exists():
        return None
    try:
        return RecordedSweep(path, folder)
    except (ValueError, KeyError, TypeError, OSError) as error:
        logger.error("%s is not a usable sweep: %s", path.name, error)
        return None


def small_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    from transformers import PreTrainedTokenizerFast  # here: it takes its time to import

    special = json.loads(path.read_text(encoding="utf-8"))["added_tokens"]
    names = [token["content"] for token in special if token["special"]]
    return PreTrainedTokenizerFast(tokenizer_file=str(path), additional_special_tokens=names, clean_up_tokenization_spaces=False)


def from_json(kind: Any, value: Any) -> Any:
    """A value of a type made of dataclasses, tuples, dicts and plain values, from its `dataclasses.asdict` through JSON."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        types_of = typing.get_type_hints(kind)
        return kind(**{name: from_json(types_of[name], entry) for name, entry in value.items()})  # type: ignore[operator]
    if origin is tuple:
        each = [parts[0]] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(from_json(part, entry) for part, entry in zip(each, value, strict=True))
    if origin is dict:
        return {key: from_json(parts[1], entry) for key, entry in value.items()}
    if origin in (types.UnionType, typing.Union):
        (some,) = (part for part in parts if part is not type(None))
        return None if value is None else from_json(some, value)
    return value
