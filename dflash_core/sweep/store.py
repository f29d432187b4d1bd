"""A sweep's directory.

    sweep.json          the plan, the prompts' token ids, and about: pair, revisions, device, dtype, hardware, versions, command
    runs.jsonl          a line for each finished run (`lines.py`), appended when it finishes
    cells.csv           a row for each cell, written when the sweep ends or is stopped, as are
    positions.csv       a row for each cell and position in the block
    summary.json        all figures (`SweepResults`), with the plan and about
    report.html         the figures as a page of its own, by `python -m dflash_ui.sweep_report DIRECTORY`

With several processes each appends to a `runs.I-of-N.jsonl` of its own; at the end the first one puts them together. Killed at
any point, what is lost are the runs that had not finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from ..blocks import Generation
from ..trace import Trace
from .lines import dump_run, parse_run
from .plan import SweepError, SweepPlan
from .runs import CellRun

FORMAT = "dflash-sweep"
VERSION = 1
SAME = ("pair", "sources", "dtype", "device")  # of about: must not change within a sweep


class SweepDirectory:
    """The files of one sweep. `plan`, `prompt_ids` and `about` are those of sweep.json."""

    def __init__(self, path: Path, plan: SweepPlan, prompt_ids: Sequence[Sequence[int]], about: dict[str, Any]) -> None:
        """For `create` and `open`."""
        self.path, self.plan, self.about = path, plan, about
        self.prompt_ids = tuple(tuple(ids) for ids in prompt_ids)
        self._keys = plan.keys

    @classmethod
    def create(cls, path: Path, plan: SweepPlan, prompt_ids: Sequence[Sequence[int]], about: dict[str, Any]) -> SweepDirectory:
        """Begins a sweep here, or takes up the same one again. SweepError if another sweep is here, or it cannot be written."""
        if (path / "sweep.json").exists():
            there = cls.open(path)
            changed = [] if there.plan == plan and there.prompt_ids == tuple(map(tuple, prompt_ids)) else ["plan"]
            changed += [name for name in SAME if there.about.get(name) != json.loads(json.dumps(about.get(name)))]
            if changed:
                raise SweepError(
                    f"{path} holds another sweep (it differs in {', '.join(changed)}): choose another directory, or the options "
                    f"of that one: {there.about.get('command', 'see its sweep.json')}"
                )
            return there
        values = {"format": FORMAT, "version": VERSION, "plan": plan.to_dict(), "prompt_ids": prompt_ids, "about": about}
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SweepError(f"{path} cannot be written: {error.strerror or error}; choose another directory") from error
        write_file(path / "sweep.json", json.dumps(values, ensure_ascii=False, indent=1) + "\n")
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> SweepDirectory:
        """A sweep that is there, for reading or going on."""
        try:
            values = json.loads((path / "sweep.json").read_text(encoding="utf-8"))
            if values["format"] != FORMAT or values["version"] != VERSION:
                raise SweepError(f"{path / 'sweep.json'} is not of this version of the program, which reads version {VERSION}")
            return cls(path, SweepPlan.from_dict(values["plan"]), values["prompt_ids"], dict(values["about"]))
        except SweepError:
            raise
        except OSError as error:
            raise SweepError(f"{path} holds no sweep: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise SweepError(f"{path / 'sweep.json'} is not that of a sweep: {error}") from error

    def runs(self) -> list[CellRun]:
        """The finished runs, in the order of the plan. A last line cut off by a kill is left out; SweepError for a wrong one."""
        found: dict[Any, CellRun] = {}
        keys = frozenset(self._keys)
        for path in sorted(self.path.glob("runs*.jsonl")):
            *lines, _cut_off = path.read_text(encoding="utf-8", errors="replace").split("\n")
            for number, line in enumerate(lines, start=1):
                try:
                    run = parse_run(line, self.plan, self.prompt_ids, keys)
                except ValueError as error:
                    raise SweepError(f"{path}, line {number}: {error}") from error
                found.setdefault(run.key, run)
        return [found[key] for key in self._keys if key in found]

    def append(self, run: CellRun, *, part: tuple[int, int] = (0, 1)) -> None:
        """Adds a finished run to the file of this process. SweepError if it cannot be written; then nothing of it is left."""
        path = self.path / (f"runs.{part[0] + 1}-of-{part[1]}.jsonl" if part[1] > 1 else "runs.jsonl")
        line = dump_run(run, self.plan).encode("utf-8")
        try:
            with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
                end = _whole_lines(file)
                try:
                    file.truncate(end)
                    file.seek(end)
                    rest = memoryview(line)
                    while rest:  # a disk that fills up takes a part of it
                        rest = rest[file.write(rest) :]
                except OSError:
                    file.truncate(end)
                    raise
        except OSError as error:
            raise SweepError(_not_written(path, error)) from error

    def merge(self) -> None:
        """Puts the runs of all processes into runs.jsonl, in the order of the plan."""
        parts = list(self.path.glob("runs.*-of-*.jsonl"))
        runs = self.runs()
        write_file(self.path / "runs.jsonl", "".join(dump_run(run, self.plan) for run in runs))
        for path in parts:
            path.unlink()

    def trace(self, run: CellRun) -> Trace:
        """One run as a trace, without texts."""
        key = run.key
        generation = Generation(self.prompt_ids[key.prompt], self.plan.params(key), key.cell.block_size, run.blocks)
        prompt = self.plan.prompts[key.prompt]
        about = self.about | {"prompt": prompt.text, "chat": prompt.chat, "max_new_tokens": self.plan.max_new_tokens}
        return Trace(generation, about, (None,) * len(run.blocks))


def write_file(path: Path, text: str) -> None:
    """The file appears whole, or not at all; SweepError if it cannot be written."""
    partial = path.with_name(f"{path.name}.partial{os.getpid()}")
    try:
        try:
            partial.write_text(text, encoding="utf-8", newline="")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise SweepError(_not_written(path, error)) from error


def _whole_lines(file: FileIO) -> int:
    """Where the last whole line ends: a kill may have left the start of another."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def _not_written(path: Path, error: OSError) -> str:
    return (
        f"{path} cannot be written: {error.strerror or error}. All runs that had finished are kept: make room (or the directory "
        "writable), and start the same sweep again"
    )
