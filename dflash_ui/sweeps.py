"""Sweeps in progress and their results. A sweep waits for the device like a run does. No gradio import.

While it runs the page is told only how far it is, at most three times a second; figures are made when it asks for them.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dflash_core.metrics import tokens_and_blocks
from dflash_core.pairs import Pair
from dflash_core.sweep.about import describe
from dflash_core.sweep.figures import SweepResults
from dflash_core.sweep.outputs import write_results
from dflash_core.sweep.plan import Cell, RunKey, SweepPlan
from dflash_core.sweep.results import sweep_results
from dflash_core.sweep.runs import CellRun, Step, TimeEstimate, encode_prompts
from dflash_core.sweep.store import SweepDirectory, write_file

from . import render
from .run import Run
from .runs import ACTIVE, Runs, in_words
from .sweep_report import REPORT, report_html
from .sweep_request import SweepRequest
from .text import text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FLUSH_SECONDS = 1 / 3
KEPT_SWEEPS = 4

PromptIds = Sequence[Sequence[int]]
RunSweep = Callable[[SweepPlan, PromptIds, Collection[RunKey]], Iterator[Step]]
EstimateTime = Callable[[SweepPlan, PromptIds, Collection[RunKey]], TimeEstimate]


@dataclass(frozen=True, slots=True)
class RunLine:
    """A finished run in the list of its cell. tau: None where nothing was drafted before the text ended."""

    key: RunKey
    tau: float | None
    n_blocks: int
    n_tokens: int
    finish: str

    @classmethod
    def of(cls, run: CellRun) -> RunLine:
        tokens, blocks = tokens_and_blocks(run.blocks)
        finish = run.blocks[-1].finish_reason or ""
        return cls(run.key, tokens / blocks if blocks else None, blocks, len(run.token_ids), finish)


class Sweep:
    """One sweep: what was asked, the runs that are finished, and the figures made of them."""

    def __init__(self, request: SweepRequest) -> None:
        self.id = uuid4().hex
        self.request = request
        self.stop = threading.Event()
        self.status, self.message = "waiting", ""
        self.directory: SweepDirectory | None = None
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self.estimate: TimeEstimate | None = None
        self.lines: list[RunLine] = []  # in the order of finishing: a run's place here is its number
        self.n_runs = 0
        self.seconds_left: float | None = None
        self._runs: dict[RunKey, CellRun] = {}
        self._results: tuple[int, SweepResults] | None = None
        self._written = -1  # runs that the files in the directory tell of
        self._lock = threading.Lock()

    @property
    def plan(self) -> SweepPlan:
        return self.request.plan

    @property
    def about(self) -> dict[str, Any]:
        """Pair, device, dtype, versions …; empty until the pair is there."""
        return self.directory.about if self.directory else {}

    @property
    def done(self) -> Collection[RunKey]:
        return self._runs.keys()

    @property
    def is_complete(self) -> bool:
        return bool(self.lines) and len(self.lines) == self.n_runs

    def set(self, status: str, message: str = "") -> None:
        self.status, self.message = status, message

    def add(self, run: CellRun) -> None:
        self._runs[run.key] = run
        self.lines.append(RunLine.of(run))

    def run(self, number: int) -> CellRun | None:
        """A finished run by its number; None if it is not kept."""
        return self._runs.get(self.lines[number].key)

    def results(self) -> tuple[int, SweepResults]:
        """The figures, and the number of runs they are made of. Made anew only when runs have been added."""
        with self._lock:
            n = len(self.lines)
            if self._results is None or self._results[0] != n:
                self._results = n, sweep_results(self.plan, [self._runs[line.key] for line in self.lines[:n]])
            return self._results

    def is_kept(self, number: int) -> bool:
        """Whether a finished run can be opened."""
        return self.lines[number].key in self._runs

    def numbers_of(self, cell: Cell) -> list[int]:
        """The numbers of a cell's finished runs, ordered by prompt and seed."""
        source = self.plan.decoded_as(cell)
        found = [number for number, line in enumerate(self.lines[:]) if line.key.cell == source]
        return sorted(found, key=lambda number: (self.lines[number].key.prompt, self.lines[number].key.seed))

    def file(self, name: str) -> Path:
        """A file of the sweep, made anew if runs have been added."""
        assert self.directory is not None
        path = self.directory.path / name
        with self._lock:
            n = len(self.lines)
            if self._written != n:
                results = write_results(self.directory)
                write_file(self.directory.path / REPORT, report_html(results, self.plan, self.about))
                self._written = n
        return path

    def open(self, number: int) -> Run | None:
        """A finished run for the stage, as a recorded one; None if it is not kept."""
        run = self.run(number)
        if run is None or self.directory is None or self.tokenizer is None:
            return None
        trace = self.directory.trace(run)
        ids, prompt = trace.generation.prompt_ids, self.plan.prompts[run.key.prompt]
        tokens = render.TokenText(self.tokenizer, ids)
        words: dict[str, str] = {}
        chips = []
        for block in run.blocks:
            chips.append(tokens.block_chips(block))
            words |= tokens.words(block)
        title = text("sweep", "run_title").format(
            prompt=prompt.name, temperature=run.key.cell.temperature, rule=run.key.cell.rule, block_size=run.key.cell.block_size
        )
        about = trace.about | {
            "prompt": prompt.messages[-1][1] if prompt.messages else prompt.text,
            "prompt_chips": render.prompt_chips(self.tokenizer, ids),
            "words": words,
            "recorded": trace.about["date"],
            "title": title,
        }
        shown = type(trace)(trace.generation, about, tuple(chips))
        return Run.recorded(shown, f"sweep-{self.id}-{number}")

    def payload(self, *, progress: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the page is told while the sweep goes on; it asks for figures when `version` has grown."""
        if progress is None and self.status == "running" and self.n_runs:
            progress = {"fraction": len(self.lines) / self.n_runs, "seconds_left": self.seconds_left}
        return {
            "sweep": self.id,
            "status": self.status,
            "message": self.message,
            "progress": progress,
            "version": len(self.lines),
        }


class Sweeps:
    """All sweeps of this server: it measures them, keeps the latest few, and knows whose is whose."""

    def __init__(
        self, runs: Runs, run_sweep: RunSweep, estimate_time: EstimateTime, folder: Path, recorded: Sweep | None = None
    ) -> None:
        """folder: where the sweeps have their directories. recorded: the one that ships with the page."""
        self._runs, self._run_sweep, self._estimate_time = runs, run_sweep, estimate_time
        self._folder = folder
        self._recorded = recorded
        self._sweeps: OrderedDict[str, Sweep] = OrderedDict()
        self._of_session: dict[str, Sweep] = {}
        self._lock = threading.Lock()

    def of(self, request: SweepRequest, session: str | None) -> Sweep:
        """The visitor's sweep for this request: the last one if it is the same and not complete, otherwise a new one."""
        with self._lock:
            last = self._of_session.get(session or "")
            if last and last.request == request and not last.is_complete:
                last.stop.clear()
                return last
            sweep = Sweep(request)
            self._sweeps[sweep.id] = sweep
            if session:
                self._of_session[session] = sweep
            # Those that were only estimated go first.
            ended = sorted((old for old in self._sweeps.values() if old.status not in ACTIVE), key=lambda old: bool(old.lines))
            for dropped in ended[: max(0, len(self._sweeps) - KEPT_SWEEPS)]:
                del self._sweeps[dropped.id]
                self._of_session = {key: kept for key, kept in self._of_session.items() if kept is not dropped}
            return sweep

    def get(self, sweep_id: object) -> Sweep | None:
        if not isinstance(sweep_id, str):
            return None
        return self._recorded if self._recorded and sweep_id == self._recorded.id else self._sweeps.get(sweep_id)

    def of_session(self, session: str | None) -> Sweep | None:
        return self._of_session.get(session or "")

    def estimates(self, sweep: Sweep) -> Iterator[dict[str, Any]]:
        """Calibrates on the device; yields how that goes. The last payload's status is "ready" if there is an estimate now."""
        yield from self._device_work(sweep, self._calibrated)

    def payloads(self, sweep: Sweep) -> Iterator[dict[str, Any]]:
        """Measures what is missing; yields what the page is told. Closing it frees the device and keeps the finished runs."""
        yield from self._device_work(sweep, self._swept)

    def _device_work(self, sweep: Sweep, work: Callable[[Sweep, Pair], Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        sweep.set("waiting")
        try:
            yield from self._runs.on_device(sweep, work)
        except Exception as error:
            sweep.set("error", in_words(error))
            yield sweep.payload()
        finally:
            if sweep.status in ACTIVE:
                sweep.set("stopped", text("sweep", "closed"))

    def _calibrated(self, sweep: Sweep, pair: Pair) -> Iterator[dict[str, Any]]:
        prompt_ids = encode_prompts(pair, sweep.plan)
        sweep.set("running", text("sweep", "calibrating"))
        yield sweep.payload(progress={"fraction": None, "seconds_left": None})
        sweep.estimate = self._estimate_time(sweep.plan, prompt_ids, tuple(sweep.done))
        sweep.set("ready")
        yield sweep.payload()

    def _swept(self, sweep: Sweep, pair: Pair) -> Iterator[dict[str, Any]]:
        plan = sweep.plan
        sweep.set("running", text("sweep", "reading"))
        prompt_ids = encode_prompts(pair, plan)
        if sweep.directory is None:
            path = own_folder(sweep, self._folder)
            sweep.directory = SweepDirectory.create(path, plan, prompt_ids, describe(pair, sweep.request.command(pair)))
        sweep.tokenizer = pair.tokenizer
        sweep.n_runs = len(plan.keys)
        yield sweep.payload()
        flushed = time.monotonic()
        steps = self._run_sweep(plan, prompt_ids, tuple(sweep.done))
        try:
            for step in steps:
                if step.run is not None:
                    sweep.directory.append(step.run)
                    sweep.add(step.run)
                sweep.seconds_left = step.seconds_left
                if sweep.stop.is_set() and not sweep.is_complete:
                    sweep.set("stopped", text("sweep", "stopped").format(n=len(sweep.lines), all=sweep.n_runs))
                    break
                if time.monotonic() - flushed >= FLUSH_SECONDS:
                    flushed = time.monotonic()
                    sweep.set("running", text("sweep", "progress").format(n=len(sweep.lines), all=sweep.n_runs))
                    yield sweep.payload()
            else:
                sweep.set("done", text("sweep", "done").format(n=len(sweep.lines)))
        finally:
            steps.close()  # type: ignore[attr-defined]
        yield sweep.payload()


def own_folder(owner: object, parent: Path) -> Path:
    """A new folder in `parent`, there as long as its owner is. Raises ValueError if it cannot be made."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="sweep-", dir=parent))
    except OSError as error:
        raise ValueError(text("sweep", "no_folder").format(why=error.strerror or error)) from error
    weakref.finalize(owner, shutil.rmtree, path, ignore_errors=True)
    return path
