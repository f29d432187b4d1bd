"""The Race tab: plain decoding against DFlash with the controls of the Run tab, and the replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from dflash_core.race import REPEATS
from dflash_core.verify import RULES

from . import charts, theme
from .controls import sentence, told
from .race import MAX_RACE_TOKENS, Races, race_request
from .race_report import unusual
from .requests import RunRequest
from .run import Run
from .run_tab import RunTab
from .runs import Runs
from .stage import encode, scripted
from .text import text

MAX_SHOWN_PROMPT = 90  # characters
LANE_STATES = ("accepted", "resampled", "bonus")


class RaceTab:
    """Builds the tab inside the current gr.Tab."""

    def __init__(self, tab: gr.Tab, runs: Runs, races: Races, run_tab: RunTab) -> None:
        self._runs, self._races, self._controls = runs, races, run_tab.controls
        gr.Markdown(text("race", "lead"), elem_id="race-lead")
        with gr.Row(equal_height=False, elem_id="race-start"):
            plan = gr.Textbox(
                label=text("race", "plan_label"),
                interactive=False,
                lines=1,
                max_lines=6,
                scale=1,
                min_width=280,
                elem_id="race-plan",
            )
            race = gr.Button(text("race", "race"), variant="primary", scale=0, min_width=120, elem_id="race-go")
            stop = gr.Button(text("race", "stop"), interactive=False, scale=0, min_width=80, elem_id="race-stop")
        states = {key: theme.states()[key].label for key in LANE_STATES}
        boot = {"theme": theme.css_properties(), "config": charts.config(), "empty": text("race", "empty"), "states": states}
        view = scripted("race.js", boot, "", elem_id="race")

        private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        instant: dict[str, Any] = {**private, "queue": False}
        # Races wait for the device in the queue of the runs, which tells each visitor the place.
        streaming: dict[str, Any] = {**private, "concurrency_limit": None}
        inputs = list(self._controls.inputs.values())
        tab.select(self.on_open, inputs, [plan], **instant)
        started = race.click(_busy, None, [race, stop], **instant)
        raced = started.then(self.on_race, inputs, [view], **streaming)
        for ended in (raced.then, raced.failure):  # whatever its documentation says, `then` does not follow an error
            ended(_idle, None, [race, stop], **instant)
            ended(self.on_open, inputs, [plan], **instant)
            ended(run_tab.watch_model, None, [run_tab.model_status], **streaming)  # the race may have changed the pair
        stop.click(self.on_stop, None, None, **instant)

    def on_race(self, request: gr.Request, *values: Any) -> Iterator[str]:
        """Streams a race to the view."""
        try:
            asked = race_request(self._controls.parse(*values))
        except ValueError as error:
            raise told(error, text("race", "cannot")) from error
        race = self._races.start(asked, request.session_hash)
        for payload in self._races.payloads(race):
            yield encode(payload)

    def on_stop(self, request: gr.Request) -> None:
        self._races.stop(request.session_hash)

    def on_open(self, request: gr.Request, *values: Any) -> str:
        """What would be raced, in a line; or why nothing can be."""
        try:
            whole = self._controls.parse(*values)
            asked = race_request(whole)
        except gr.Error as error:
            return f"{error.title}: {error.message}"
        except ValueError as error:
            return sentence(error)
        return self._plan(asked, whole.max_new_tokens > asked.max_new_tokens, self._runs.of_session(request.session_hash))

    def _plan(self, asked: RunRequest, capped: bool, last_run: Run | None) -> str:
        prompt = " ".join(asked.prompt.split())
        seconds = self._races.seconds(asked, last_run)
        return text("race", "plan").format(
            prompt=prompt if len(prompt) <= MAX_SHOWN_PROMPT else f"{prompt[:MAX_SHOWN_PROMPT]}…",
            pair=self._controls.label(asked.pair),
            rule=RULES[asked.params.rule].label,
            temperature=f"{asked.params.temperature:g}",
            more=unusual(asked.params),
            block_size=asked.block_size,
            seed=asked.params.seed,
            tokens=asked.max_new_tokens,
            capped=text("race", "capped").format(most=MAX_RACE_TOKENS) if capped else "",
            repeats=REPEATS,
            estimate=text("race", "no_estimate") if seconds is None else text("race", "estimate").format(time=_time(seconds)),
        )


def _time(seconds: float) -> str:
    """A duration to read: seconds up to a minute and a half, then minutes."""
    if seconds < 90:
        return text("race", "seconds").format(n=max(1.0, seconds))
    return text("race", "minutes").format(n=seconds / 60)


def _busy() -> tuple[Any, Any]:
    return gr.update(interactive=False), gr.update(interactive=True)


def _idle() -> tuple[Any, Any]:
    return gr.update(interactive=True), gr.update(interactive=False)
