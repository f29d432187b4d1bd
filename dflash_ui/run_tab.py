"""The Run tab: controls on one side, the stage on the other, and the events that stream a run from here to there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr

from dflash_core.pairs import PAIRS, Pair

from .controls import Controls, sentence
from .models import Shelf
from .opened import OpenedRuns
from .render import TEXT_STATES
from .run import Run
from .runs import Runs
from .stage import encode, stage
from .text import text
from .traces import known_runs, trace_functions


class RunTab:
    """Builds the tab inside the current gr.Blocks."""

    def __init__(
        self, page: gr.Blocks, runs: Runs, shelf: Shelf, pairs: dict[str, str], recorded: Sequence[Run], opened: OpenedRuns
    ) -> None:
        """pairs: key → label of the pairs on offer. recorded: the first one is on show when the page opens."""
        self._runs, self._shelf = runs, shelf
        with gr.Row(equal_height=False, elem_id="run-tab"):
            with gr.Column(scale=0, min_width=340, elem_id="controls"):
                self.controls = Controls(pairs, shelf.name)
            with gr.Column(scale=1, min_width=320, elem_id="run-stage"):
                self.model_status = gr.Markdown(text("model", "idle"), elem_id="model-status")
                functions = [*stage_functions(runs), *trace_functions(runs, opened)]
                opening = encode(recorded[0].payload(0, head=True)) if recorded else ""
                self.stage = stage(opening, functions, known_runs(recorded))
        self._connect(page)

    def _connect(self, page: gr.Blocks) -> None:
        """Events. None of them is offered as an API: scripts have `generate`."""
        private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        instant: dict[str, Any] = {**private, "queue": False}
        # Runs wait for the device in a queue of their own, which tells each visitor the place.
        streaming: dict[str, Any] = {**private, "concurrency_limit": None}
        controls = self.controls
        inputs = list(controls.inputs.values())
        buttons = [controls.run, controls.stop, controls.plain]

        started = gr.on([controls.run.click, controls.inputs["prompt"].submit], _busy, None, buttons, **instant)
        measuring = controls.plain.click(_busy, None, buttons, **instant)
        for streamed in (
            started.then(self.on_run, inputs, [self.stage], **streaming),
            measuring.then(self.on_plain, None, [self.stage], **streaming),
        ):
            # Whatever its documentation says, `then` does not follow an error.
            for ended in (streamed.then, streamed.failure):
                ended(_idle, None, buttons, **instant)
                ended(self.watch_model, None, [self.model_status], **streaming)  # the run may have changed the pair
        controls.stop.click(self.on_stop, None, None, **instant)
        page.load(controls.restore, None, [*inputs, controls.large_blocks], **streaming)  # queued, or its warning is not seen
        page.load(self.watch_model, None, [self.model_status], **streaming)

    def on_run(self, request: gr.Request, *values: Any) -> Iterator[str]:
        """Streams a run to the stage."""
        run = self._runs.start(self.controls.parse(*values), request.session_hash)
        for payload in self._runs.payloads(run):
            yield encode(payload)

    def on_plain(self, request: gr.Request) -> Iterator[str]:
        """Measures plain decoding for the visitor's last run, and streams how far that is."""
        run = self._runs.of_session(request.session_hash)
        if run is None or not run.blocks:
            raise gr.Error("There is no run of yours to compare with: press Run first.", print_exception=False)
        if run.request.block_size == 1:
            raise gr.Error("The last run was plain decoding itself: choose a larger block size first.", print_exception=False)
        yield encode(run.payload(head=True))  # the stage may show another run by now
        for payload in self._runs.plain_payloads(run):
            yield encode(payload)

    def on_stop(self, request: gr.Request) -> None:
        """Stops the visitor's run after the current block."""
        if run := self._runs.of_session(request.session_hash):
            run.stop.set()

    def watch_model(self) -> Iterator[str]:
        """Says how far the models are that are being loaded, until one pair is there."""
        try:
            for step in self._shelf.watch():
                if isinstance(step, Pair):
                    values = {
                        "label": step.label,
                        "dtype": step.dtype,
                        "device": step.device,
                        "block_size": step.draft.block_size,
                    }
                    yield text("model", "ready").format(**values)
                else:
                    share = "" if step["fraction"] is None else f" ({step['fraction']:.0%})"
                    left = "" if step["seconds_left"] is None else f", about {step['seconds_left']:.0f} s left"
                    yield text("model", "loading").format(phase=step["phase"], share=share, left=left)
        except Exception as error:
            yield f"⚠ {sentence(error)}"

    def generate(
        self,
        prompt: str,
        temperature: float = 0.0,
        block_size: int = 8,
        max_new_tokens: int = 128,
        seed: int = 0,
        rule: str = "match",
        pair: str = "",
        top_p: float = 1.0,
        top_k: int = 0,
        draft_temperature: float | None = None,
        chat: bool = True,
    ) -> dict[str, Any]:
        """Runs one generation and returns its text, token ids, figures and trace: the endpoint for scripts."""
        unlock = draft_temperature is not None
        name = self._shelf.name if pair == "" else pair
        values = (
            prompt,
            temperature,
            block_size,
            max_new_tokens,
            seed,
            rule,
            name,
            top_p,
            top_k,
            unlock,
            draft_temperature,
            chat,
        )
        run = self._runs.start(self.controls.parse(*values))
        for _ in self._runs.payloads(run):
            pass
        if run.status == "error":
            raise gr.Error(run.message, print_exception=False)
        chips = [chip for view in run.views for chip in view["chips"] if chip["s"] in TEXT_STATES and not chip.get("special")]
        return {
            "text": "".join(chip["t"] for chip in chips),
            "token_ids": run.token_ids,
            "finish_reason": run.blocks[-1].finish_reason,
            "stats": run.payload()["stats"],
            "trace": run.trace(),
        }


def stage_functions(runs: Runs) -> list[Callable[[Any], str | None]]:
    """What the stage asks of the server, by these names. Anyone can ask, so every value is checked."""

    def get_run(asked: Any) -> str | None:
        """The payload of a run with its blocks from `start` on, or None."""
        if not isinstance(asked, dict) or not isinstance(start := asked.get("start"), int) or start < 0:
            return None
        run = runs.get(asked.get("run"))
        return encode(run.payload(start, head=start == 0)) if run else None

    def get_trace(run_id: Any) -> str | None:
        """The run as a JSONL trace, or None."""
        run = runs.get(run_id)
        return run.trace() if run and run.blocks else None

    return [get_run, get_trace]


def offered_pairs(first: str, label: str | None, *, only: bool) -> dict[str, str]:
    """Key → label for the menu, `first` in front. label: for a pair that is none of the registry. only: offer no other."""
    named = {key: f"{spec.label} · {spec.memory}" for key, spec in PAIRS.items()}
    own = {first: label or named[first]}
    return own if only else own | named


def _busy() -> tuple[Any, Any, Any]:
    return gr.update(interactive=False), gr.update(interactive=True), gr.update(interactive=False)


def _idle() -> tuple[Any, Any, Any]:
    return gr.update(interactive=True), gr.update(interactive=False), gr.update(interactive=True)
