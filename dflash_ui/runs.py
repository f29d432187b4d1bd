"""Runs in progress, and those that were made: what the page is sent while blocks are made. No gradio import.

A run waits its turn for the device, waits for its pair to be loaded, then decodes; all the while it yields payload strings
for the stage, at most 15 a second. Whatever happens, the device is freed when the generator ends or is closed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from dflash_core.blocks import Block, SamplingParams
from dflash_core.metrics import RunningMetrics
from dflash_core.pairs import Pair
from dflash_core.sampling import GREEDY_BELOW
from dflash_core.verify import RULES
from dflash_core.weights import WeightsUnavailable

from .device_queue import DeviceQueue
from .requests import RunRequest
from .run import Run

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1 / 15
TABLE_SIZE = 12  # most likely tokens recorded with each judged token
ACTIVE = ("waiting", "loading", "running")
KEPT_RUNS = 64
WAIT_SECONDS = 0.5  # between looks at whether a waiting visitor has left

Decode = Callable[[list[int], SamplingParams, int, int], Iterator[Block]]


class Asked(Protocol):
    @property
    def pair(self) -> str: ...


class Job(Protocol):
    """Work that a visitor asked for and that waits for the device. `stop` is set to end it."""

    @property
    def request(self) -> Asked: ...

    stop: threading.Event

    def set(self, status: str, message: str = "") -> None: ...

    def payload(self, *, progress: dict[str, Any] | None = None) -> dict[str, Any]: ...


SomeJob = TypeVar("SomeJob", bound=Job)


class Runs:
    """All runs of this server: it makes them, keeps the latest few, and knows whose is whose."""

    def __init__(
        self,
        load: Callable[[str], Iterator[Pair | dict[str, Any]]],
        decode: Decode,
        recorded: Sequence[Run] = (),
        elsewhere: Callable[[str], Run | None] = lambda _: None,
    ) -> None:
        """load: yields progress (see the stage's payload) until it yields the pair. decode: the loop, on the device.

        elsewhere: looks up runs that were not made here, such as those opened from files.
        """
        self._load = load
        self._decode = decode
        self._queue = DeviceQueue()
        self._recorded = {run.id: run for run in recorded}
        self._elsewhere = elsewhere
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._of_session: dict[str, Run] = {}
        self._lock = threading.Lock()

    def start(self, request: RunRequest, session: str | None = None) -> Run:
        run = Run(request)
        self.keep(run, session)
        return run

    def keep(self, run: Run, session: str | None = None) -> None:
        """Takes in a run, made here or elsewhere, so that the page can ask for it. Beyond the latest few, ended ones go."""
        with self._lock:
            self._runs[run.id] = run
            if session:
                self._of_session[session] = run
            ended = [old for old in self._runs.values() if old.status not in ACTIVE]
            for dropped in ended[: max(0, len(self._runs) - KEPT_RUNS)]:
                del self._runs[dropped.id]
                self._of_session = {key: kept for key, kept in self._of_session.items() if kept is not dropped}

    def get(self, run_id: object) -> Run | None:
        if not isinstance(run_id, str):
            return None
        return self._runs.get(run_id) or self._recorded.get(run_id) or self._elsewhere(run_id)

    def of_session(self, session: str | None) -> Run | None:
        return self._of_session.get(session or "")

    def payloads(self, run: Run) -> Iterator[dict[str, Any]]:
        """Does the run; yields what the stage is to be told. Closing it frees the device; errors become its last payload."""
        try:
            yield from self.on_device(run, self._decoded)
        except Exception as error:
            run.set("error", in_words(error))
            yield run.payload()
        finally:
            if run.status in ("waiting", "loading", "running"):
                run.set("stopped", "Stopped: the page that asked for it was closed")

    def plain_payloads(self, run: Run) -> Iterator[dict[str, Any]]:
        """Measures plain decoding of the same prompt, seed and length, for the run's speed-up."""
        before = (run.status, run.message)
        run.stop.clear()
        try:
            yield from self.on_device(run, self._measured_plain)
        except Exception as error:
            run.plain = None
            run.set(before[0], f"Plain decoding could not be measured: {in_words(error)}")
        except GeneratorExit:
            run.set(*before)
            raise
        else:
            run.set(*before)
        yield run.payload()

    def on_device(self, run: SomeJob, work: Callable[[SomeJob, Pair], Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        """Waits for the device and the job's pair, then does `work`; yields its payloads. Closing it frees the device."""
        with self._queue.ticket() as ticket:
            while ahead := self._queue.ahead(ticket, WAIT_SECONDS):
                run.set("waiting", f"{ahead} ahead of you on this device" if ahead > 1 else "one run ahead of you on this device")
                if run.stop.is_set():
                    run.set("stopped", "Stopped while waiting")
                    yield run.payload()
                    return
                yield run.payload()
            for step in self._load(run.request.pair):
                if isinstance(step, Pair):
                    yield from work(run, step)
                    return
                if run.stop.is_set():
                    run.set("stopped", "Stopped before the models were loaded")
                    yield run.payload()
                    return
                run.set("loading", step["phase"])
                yield run.payload(progress={name: step[name] for name in ("fraction", "seconds_left")})

    def _decoded(self, run: Run, pair: Pair) -> Iterator[dict[str, Any]]:
        request = run.request
        prompt_ids = pair.encode(request.prompt, chat=request.chat)[0].tolist()
        blocks = self._decode(prompt_ids, request.params, request.block_size, request.max_new_tokens)
        run.begin(pair, prompt_ids)
        run.set("running", "Reading the prompt")
        yield run.payload(head=True)
        sent, flushed = 0, time.monotonic()
        try:
            for block in blocks:
                run.add(block)
                run.set("running", f"{run.n_tokens:,} of at most {request.max_new_tokens:,} tokens")
                if run.stop.is_set() and not block.finish_reason:
                    run.set("stopped", "Stopped; the text so far is kept")
                    break
                if time.monotonic() - flushed >= FLUSH_SECONDS:
                    yield run.payload(sent)
                    sent, flushed = len(run.views), time.monotonic()
            else:
                why = {"stop": "The model ended its answer", "length": "Token limit reached"}
                run.set("done", why[run.blocks[-1].finish_reason or "length"])
        except Exception:
            yield run.payload(sent)  # what there was before it went wrong
            raise
        finally:
            blocks.close()  # type: ignore[attr-defined]
        yield run.payload(sent)

    def _measured_plain(self, run: Run, pair: Pair) -> Iterator[dict[str, Any]]:
        request, wanted = run.request, run.n_tokens
        metrics, shown = RunningMetrics(1), time.monotonic()
        tokens: list[int] = []
        blocks = self._decode(run.prompt_ids, request.params, 1, wanted)
        try:
            for block in blocks:
                metrics.add(block)
                tokens += block.emitted
                if run.stop.is_set():
                    return
                if time.monotonic() - shown >= WAIT_SECONDS or not block.index:
                    shown = time.monotonic()
                    run.set("running", "Measuring plain decoding of the same prompt")
                    yield run.payload(progress={"fraction": len(tokens) / wanted, "seconds_left": None})
        finally:
            blocks.close()  # type: ignore[attr-defined]
        plain, drafted = metrics.stats(), run.stats().tokens_per_second
        same_text = RULES[request.params.rule].same_text or request.params.temperature < GREEDY_BELOW
        run.plain = {
            "tokens_per_second": plain.tokens_per_second,
            "speedup": drafted / plain.tokens_per_second if drafted and plain.tokens_per_second else None,
            "n_tokens": len(tokens),
            "same_text": tokens == run.token_ids if same_text else None,
            "note": f"one run of {len(tokens)} tokens each, {pair.dtype} on {pair.device}, one after the other",
        }


def in_words(error: Exception) -> str:
    """The error in a visitor's words. What a person can act on says so itself; anything else is our fault, and logged."""
    if isinstance(error, (ValueError, WeightsUnavailable)):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "The device's memory is full: ask for fewer tokens, shorten the prompt, or choose a smaller pair"
    logger.exception("A run failed")
    return f"Something went wrong in this program ({type(error).__name__}); its log has the details"
