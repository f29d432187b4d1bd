"""The Sweep tab: the grid on one side, what it measures on the other, and the events that stream a sweep there."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import gradio as gr

from dflash_core.sweep.prompts import preset_names
from dflash_core.verify import RULES

from . import charts, theme
from .controls import sentence, told
from .run_tab import RunTab
from .runs import Runs, in_words
from .stage import encode, scripted
from .sweep_board import board, cell_runs, whole
from .sweep_request import MAX_ROWS, MAX_SEEDS, MAX_TOKENS, SweepRequest
from .sweeps import Sweep, Sweeps
from .text import text

TEMPERATURES = [f"{t:g}" for t in (0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.2, 1.5, 2.0)]
BLOCK_SIZES = [f"{size}" for size in (2, 3, 4, 6, 8, 12, 16, 24, 32)]
FILES = ("cells.csv", "positions.csv", "runs.jsonl", "summary.json", "report.html")


class SweepTab:
    """Builds the tab inside the current gr.Tab."""

    def __init__(
        self, sweeps: Sweeps, runs: Runs, run_tab: RunTab, pairs: dict[str, str], pair: str, shown: Sweep | None
    ) -> None:
        """pairs: key → label of the pairs on offer. shown: the recorded sweep, on show until the visitor has one."""
        self._sweeps, self._pairs = sweeps, tuple(pairs)
        lead = [text("sweep", "lead"), *([text("sweep", "lead_recorded")] if shown else [])]
        gr.Markdown(" ".join(lead), elem_id="sweep-lead")
        with gr.Row(equal_height=False, elem_id="sweep-tab"):
            with gr.Column(scale=0, min_width=340, elem_id="sweep-controls"):
                self._build(pairs, pair)
            with gr.Column(scale=1, min_width=320):
                boot = {"theme": theme.css_properties(), "config": charts.config(), "files": list(FILES)}
                opening = encode(shown.payload()) if shown else ""
                self._view = scripted("sweep.js", boot, opening, elem_id="sweep", server_functions=sweep_functions(sweeps, runs))
        self._connect(run_tab)

    def _build(self, pairs: dict[str, str], pair: str) -> None:
        several: dict[str, Any] = {"multiselect": True}
        typed: dict[str, Any] = {**several, "allow_custom_value": True}
        temperatures = gr.Dropdown(TEMPERATURES, value=["0", "0.5", "1"], **typed, **_named("temperatures"))
        block_sizes = gr.Dropdown(BLOCK_SIZES, value=["4", "8", "16"], **typed, **_named("block_sizes"))
        rules = gr.CheckboxGroup(
            [(rule.label, key) for key, rule in RULES.items()], value=["match", "speculative"], **_named("rules")
        )
        names = list(preset_names())
        presets = gr.Dropdown(names, value=names[:4], **several, **_named("presets"))
        file = gr.File(file_types=[".txt", ".jsonl"], height=120, label=text("sweep", "file"), elem_id="sweep-file")
        tokens = gr.Slider(8, MAX_TOKENS, 64, step=8, **_named("tokens"))
        seeds = gr.Slider(1, MAX_SEEDS, 1, step=1, **_named("seeds"))
        choices = [(label, key) for key, label in pairs.items()]
        menu = gr.Dropdown(choices, value=pair, **_named("pair"))
        with gr.Accordion(text("controls", "advanced"), open=False, elem_id="sweep-advanced"):
            drafts = gr.Dropdown(TEMPERATURES, value=[], **typed, **_named("draft_temperatures"))
            rows = gr.Slider(1, MAX_ROWS, 1, step=1, **_named("rows"))
            chat = gr.Checkbox(True, **_named("chat"))
        self._inputs: list[Any] = [menu, temperatures, block_sizes, rules, presets, file, seeds, tokens, drafts, rows, chat]
        self._count = gr.Markdown(self.on_change(*(c.value for c in self._inputs))[0], elem_id="sweep-count")
        self._estimate = gr.Button(text("sweep", "estimate"), elem_id="sweep-estimate")
        self._time = gr.Markdown(text("sweep", "not_estimated"), elem_id="sweep-time")
        with gr.Row():
            self._start = gr.Button(
                text("sweep", "start"), variant="primary", interactive=False, elem_id="sweep-start", min_width=120
            )
            self._stop = gr.Button(text("controls", "stop"), interactive=False, elem_id="sweep-stop", min_width=80)

    def _connect(self, run_tab: RunTab) -> None:
        private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        instant: dict[str, Any] = {**private, "queue": False}
        # Sweeps wait for the device in the queue of the runs, which tells each visitor the place.
        streaming: dict[str, Any] = {**private, "concurrency_limit": None}
        buttons = [self._estimate, self._start, self._stop]
        changed = [self._count, self._time, self._start]
        gr.on([control.change for control in self._inputs], self.on_change, self._inputs, changed, **instant)
        asked = self._estimate.click(_busy, None, buttons, **instant)
        started = self._start.click(_busy, None, buttons, **instant)
        for event in (
            asked.then(self.on_estimate, self._inputs, [self._time], **streaming),
            started.then(self.on_start, self._inputs, [self._view], **streaming),
        ):
            for ended in (event.then, event.failure):  # whatever its documentation says, `then` does not follow an error
                ended(self.on_end, self._inputs, buttons, **instant)
                ended(run_tab.watch_model, None, [run_tab.model_status], **streaming)  # it may have changed the pair
        self._stop.click(self.on_stop, None, None, **instant)

    def on_change(self, *values: Any) -> tuple[Any, Any, Any]:
        """How large the grid is, or what is wrong with it. Another grid needs another estimate."""
        stale = (text("sweep", "not_estimated"), gr.update(interactive=False, value=text("sweep", "start")))
        try:
            plan = SweepRequest.parse(*values, pairs=self._pairs).plan
        except ValueError as error:
            return (f"⚠ {html.escape(sentence(error), quote=False)}", *stale)
        n = len(plan.keys)
        count = text("sweep", "count").format(
            cells=len(plan.cells), prompts=len(plan.prompts), seeds=len(plan.seeds), runs=n, tokens=n * plan.max_new_tokens
        )
        return (count, *stale)

    def on_estimate(self, request: gr.Request, *values: Any) -> Iterator[str]:
        """Calibrates; says how that goes, then what the sweep will take."""
        sweep = self._sweeps.of(self._parse(*values), request.session_hash)
        for payload in self._sweeps.estimates(sweep):
            if payload["status"] == "ready":
                yield time_words(sweep)
            else:
                mark = "⚠ " if payload["status"] == "error" else ""
                yield f"{mark}{html.escape(payload['message'], quote=False)}"

    def on_start(self, request: gr.Request, *values: Any) -> Iterator[str]:
        """Streams a sweep to the view."""
        sweep = self._sweeps.of(self._parse(*values), request.session_hash)
        for payload in self._sweeps.payloads(sweep):
            yield encode(payload)

    def on_stop(self, request: gr.Request) -> None:
        """Stops the visitor's sweep after the current block."""
        if sweep := self._sweeps.of_session(request.session_hash):
            sweep.stop.set()

    def on_end(self, request: gr.Request, *values: Any) -> tuple[Any, Any, Any]:
        """Which buttons can be pressed now: Start goes on with what was stopped, and otherwise needs an estimate."""
        sweep = self._sweeps.of_session(request.session_hash)
        try:
            same = sweep is not None and sweep.request == SweepRequest.parse(*values, pairs=self._pairs)
        except ValueError:
            same = False
        ready = bool(same and sweep and sweep.estimate and not sweep.is_complete)
        label = text("sweep", "go_on" if ready and sweep and sweep.lines else "start")
        return gr.update(interactive=True), gr.update(interactive=ready, value=label), gr.update(interactive=False)

    def _parse(self, *values: Any) -> SweepRequest:
        try:
            return SweepRequest.parse(*values, pairs=self._pairs)
        except ValueError as error:
            raise told(error, text("sweep", "cannot")) from error


def sweep_functions(sweeps: Sweeps, runs: Runs) -> list[Callable[[Any], str | None]]:
    """What the view asks of the server, by these names. Anyone can ask, so every value is checked."""

    def get_board(asked: Any) -> str | None:
        """The figures of a sweep at a cut through its grid."""
        sweep = _asked(sweeps, asked)
        return encode(board(sweep, asked)) if sweep and sweep.lines else None

    def get_cell(asked: Any) -> str | None:
        """The runs of a cell."""
        sweep = _asked(sweeps, asked)
        index = whole(asked.get("cell")) if sweep else None
        found = cell_runs(sweep, index) if sweep and index is not None else None
        return encode(found) if found else None

    def get_sweep_run(asked: Any) -> str | None:
        """A run of a sweep for the stage."""
        sweep = _asked(sweeps, asked)
        number = whole(asked.get("run")) if sweep else None
        if sweep is None or number is None or not 0 <= number < len(sweep.lines):
            return None
        run = sweep.open(number)
        if run is None:
            return None
        runs.keep(run)
        return encode(run.payload(0, head=True))

    def get_file(asked: Any) -> str | None:
        """The address of one of the sweep's files, or {"error"}."""
        sweep = _asked(sweeps, asked)
        name = asked.get("name") if sweep else None
        if sweep is None or name not in FILES or not sweep.lines:
            return None
        try:
            return encode({"path": quote(sweep.file(name).as_posix(), safe="/:"), "name": name})
        except Exception as error:
            return encode({"error": sentence(ValueError(in_words(error)))})

    return [get_board, get_cell, get_sweep_run, get_file]


def time_words(sweep: Sweep) -> str:
    """What a calibrated sweep will take, in words."""
    estimate = sweep.estimate
    assert estimate is not None
    each = [
        text("sweep", "seconds_of_run").format(
            what=text("sweep_charts", "plain") if size == 1 else f"B = {size}", seconds=f"{seconds:.2g}"
        )
        for size, seconds in sorted((estimate.seconds_of_run or estimate.seconds_of_row).items())
    ]
    return text("sweep", "estimated").format(time=duration(estimate.seconds), runs=estimate.n_runs, each=", ".join(each))


def duration(seconds: float) -> str:
    """A time to read."""
    if seconds < 90:
        return text("race", "seconds").format(n=max(1.0, seconds))
    if seconds < 5400:
        return text("race", "minutes").format(n=seconds / 60)
    return text("sweep", "hours").format(n=seconds / 3600)


def _asked(sweeps: Sweeps, asked: Any) -> Sweep | None:
    return sweeps.get(asked.get("sweep")) if isinstance(asked, dict) else None


def _named(key: str) -> dict[str, Any]:
    return {"label": text("sweep", key), "info": text("sweep", f"{key}_info"), "elem_id": f"sweep-{key.replace('_', '-')}"}


def _busy() -> tuple[Any, Any, Any]:
    return gr.update(interactive=False), gr.update(interactive=False), gr.update(interactive=True)
