"""Races in progress: a race waits for the device like a run does, and tells how far it is; no gradio import.

While it is measured nothing is drawn: the page gets a progress twice a second, and the texts when all is over.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any
from uuid import uuid4

from dflash_core.blocks import SamplingParams, require
from dflash_core.pairs import Pair
from dflash_core.race import ARMS, REPEATS, Arm, Lap, Round

from .race_report import report
from .requests import RunRequest
from .run import Run, make_head
from .runs import ACTIVE, Runs, in_words
from .text import text

MAX_RACE_TOKENS = 256  # on each side, in each repeat
PROGRESS_SECONDS = 0.5

RunRace = Callable[[list[int], SamplingParams, int, int], Iterator[Lap | Round]]


class Race:
    """One race, and what the page is told of it."""

    def __init__(self, request: RunRequest, session: str = "") -> None:
        self.id = uuid4().hex
        self.request = request
        self.session = session
        self.stop = threading.Event()
        self.status = "waiting"
        self.message = ""
        self.head: dict[str, Any] | None = None
        self.rounds: list[Round] = []
        self.result: dict[str, Any] | None = None

    def set(self, status: str, message: str = "") -> None:
        self.status, self.message = status, message

    def payload(self, *, progress: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "race": self.id,
            "status": self.status,
            "message": self.message,
            "progress": progress,
            "head": self.head,
            "result": self.result,
        }


class Pace:
    """How far a race is, counted in tokens: how long a text gets is known once its side has ended one."""

    def __init__(self, max_new_tokens: int) -> None:
        self._expected = dict.fromkeys(ARMS, max_new_tokens)
        self._done = dict.fromkeys(ARMS, 0)  # over all repeats, without the warm-up
        self._text = dict.fromkeys(ARMS, 0)
        self._began: float | None = None

    def add(self, lap: Lap) -> None:
        if not lap.repeat:
            return
        self._began = self._began or time.monotonic()
        if not lap.block.index:
            self._text[lap.arm] = 0
        self._done[lap.arm] += len(lap.block.emitted)
        self._text[lap.arm] += len(lap.block.emitted)
        if lap.block.finish_reason:
            self._expected[lap.arm] = self._text[lap.arm]

    def tokens(self, arm: Arm) -> int:
        """Of the text that this side is writing."""
        return self._text[arm]

    def progress(self) -> dict[str, Any]:
        done, whole = sum(self._done.values()), REPEATS * sum(self._expected.values())
        fraction = min(1.0, done / whole)
        left = (time.monotonic() - self._began) * (1 / fraction - 1) if self._began and fraction else None
        return {"fraction": fraction, "seconds_left": left}


class Races:
    """Starts races and runs them on the device, in the queue that all runs wait in."""

    def __init__(self, runs: Runs, run_race: RunRace) -> None:
        """run_race: the race on the device."""
        self._runs = runs
        self._run_race = run_race
        self._of_session: dict[str, Race] = {}  # those under way
        self._seconds_per_token: dict[str, float] = {}  # by pair: both sides of the last race

    def start(self, request: RunRequest, session: str | None = None) -> Race:
        race = Race(request, session or "")
        self._of_session[race.session] = race
        return race

    def stop(self, session: str | None) -> None:
        """Stops the visitor's race after the current block."""
        if session and (race := self._of_session.get(session)):
            race.stop.set()

    def seconds(self, request: RunRequest, last_run: Run | None) -> float | None:
        """How long a race will take about, from the last race of this pair, or from the visitor's last run; None if unknown."""
        per_token = self._seconds_per_token.get(request.pair)
        if per_token is None and last_run and last_run.blocks and last_run.request.pair == request.pair:
            speed = last_run.stats().tokens_per_second
            per_token = 2 / speed if speed else None
        return REPEATS * request.max_new_tokens * per_token if per_token else None

    def payloads(self, race: Race) -> Generator[dict[str, Any], None, None]:
        """Does the race; yields what the page is to be told. Closing it frees the device; errors become its last payload."""
        try:
            yield from self._runs.on_device(race, self._raced)
        except Exception as error:
            race.set("error", in_words(error))
            yield race.payload()
        finally:
            if race.status in ACTIVE:
                race.set("stopped", text("race", "closed"))
            if self._of_session.get(race.session) is race:
                del self._of_session[race.session]

    def _raced(self, race: Race, pair: Pair) -> Iterator[dict[str, Any]]:
        request = race.request
        prompt_ids = pair.encode(request.prompt, chat=request.chat)[0].tolist()
        about = {
            "pair": pair.label,
            "device": pair.device,
            "dtype": pair.dtype,
            "trained_block_size": pair.draft.block_size,
            "max_new_tokens": request.max_new_tokens,
            "prompt_chips": [],
        }
        race.head = make_head(about, request.params, request.block_size, len(prompt_ids))
        race.set("running", text("race", "warming_up"))
        pace = Pace(request.max_new_tokens)
        yield race.payload(progress={"fraction": None, "seconds_left": None})
        told = time.monotonic()
        steps = self._run_race(prompt_ids, request.params, request.block_size, request.max_new_tokens)
        try:
            for step in steps:
                if isinstance(step, Round):
                    race.rounds.append(step)
                    continue
                pace.add(step)
                if race.stop.is_set():
                    break
                if time.monotonic() - told >= PROGRESS_SECONDS:
                    told = time.monotonic()
                    if step.repeat:
                        race.set("running", _where(step, pace, request))
                    yield race.payload(progress=pace.progress() if step.repeat else {"fraction": None, "seconds_left": None})
        finally:
            steps.close()  # type: ignore[attr-defined]
        self._finish(race, pair)
        yield race.payload()

    def _finish(self, race: Race, pair: Pair) -> None:
        race.result = report(race.rounds, pair, race.head or {})
        whole = len(race.rounds) == REPEATS
        if race.result is None:
            race.set(*(("done", text("race", "no_text")) if race.rounds else ("stopped", text("race", "stopped_early"))))
            return
        said = race.result["said"]
        race.set("done" if whole else "stopped", said if whole else text("race", "stopped").format(n=len(race.rounds), said=said))
        runs = [run for one in race.rounds for run in (one.plain, one.dflash)]
        seconds = sum(block.seconds for run in runs for block in run.blocks)
        self._seconds_per_token[race.request.pair] = 2 * seconds / sum(len(run.token_ids) for run in runs)


def race_request(request: RunRequest) -> RunRequest:
    """The controls' run as a race: shorter if need be. Raises ValueError where there is nothing to race."""
    require(request.block_size > 1, text("race", "no_block"))
    require(request.max_new_tokens > 1, text("race", "no_tokens"))
    return dataclasses.replace(request, max_new_tokens=min(request.max_new_tokens, MAX_RACE_TOKENS))


def _where(lap: Lap, pace: Pace, request: RunRequest) -> str:
    arm = text("race", lap.arm).format(block_size=request.block_size)
    return text("race", "progress").format(
        repeat=lap.repeat, repeats=REPEATS, arm=arm, n=pace.tokens(lap.arm), most=request.max_new_tokens
    )
