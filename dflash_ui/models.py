"""The pair that is loaded, and the loop on the device: locally in this process, on a ZeroGPU Space in one of its workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Any

import torch

from dflash_core.blocks import Block, SamplingParams
from dflash_core.generate import iter_blocks
from dflash_core.pairs import Pair
from dflash_core.race import REPEATS, Lap, Round, iter_race
from dflash_core.sweep.plan import RunKey, SweepPlan
from dflash_core.sweep.runs import Step, TimeEstimate, estimate_time, sweep_runs
from dflash_core.weights import Progress

from .runs import TABLE_SIZE

try:
    from spaces import GPU
except ImportError:  # anywhere but on a ZeroGPU Space

    def GPU(duration: Any) -> Callable[[Any], Any]:  # noqa: N802 - stands in for spaces.GPU
        return lambda function: function


POLL_SECONDS = 0.25
LoadPair = Callable[[str, Callable[[Progress], None]], Pair]


class Shelf:
    """Holds one loaded pair at a time; loads in a thread of its own, so that whoever waits can be told how far it is."""

    def __init__(self, load: LoadPair, name: str) -> None:
        """load: does the loading. name: the pair that a visitor gets without asking."""
        self._load = load
        self.name = name
        self._shelved: tuple[str, Pair] | None = None
        self._progress: Progress | None = None
        self._loading = ""
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def pair(self) -> Pair | None:
        """The pair that is loaded, if one is."""
        return self._shelved[1] if self._shelved else None

    def preload(self) -> None:
        """Starts loading the default pair in the background."""
        self._begin(self.name)

    def load_now(self) -> None:
        """Loads the default pair before returning: a ZeroGPU Space must have it before the page is launched."""
        self._work(self.name)
        if self._error:
            raise self._error

    def steps(self, name: str) -> Iterator[Pair | dict[str, Any]]:
        """Loads a pair unless it is there: yields how that goes, then the pair. Raises what the loading raised.

        For the visitor who has the device: the pair that was on the shelf is gone afterwards.
        """
        while not (shelved := self._shelved) or shelved[0] != name:
            thread = self._begin(name)
            thread.join(POLL_SECONDS)
            if not thread.is_alive() and self._loading == name and self._error:
                raise self._error
            yield self._step()
        yield shelved[1]

    def watch(self) -> Iterator[Pair | dict[str, Any]]:
        """Yields how the loading under way goes, then the pair that is there, if any. Starts nothing."""
        while (thread := self._thread) and thread.is_alive():
            thread.join(POLL_SECONDS)
            yield self._step()
        if self._error:
            raise self._error
        if self.pair:
            yield self.pair

    def _step(self) -> dict[str, Any]:
        progress = self._progress or Progress("Preparing", None, None)
        return {"phase": progress.phase, "fraction": progress.fraction, "seconds_left": progress.seconds_left}

    def _begin(self, name: str) -> threading.Thread:
        """The thread that loads: the one at work, even on another pair, or a new one."""
        with self._lock:
            if self._thread and (self._thread.is_alive() or (self._shelved and self._shelved[0] == name)):
                return self._thread
            self._loading, self._error = name, None
            self._thread = threading.Thread(target=self._work, args=(name,), daemon=True, name=f"load {name}")
            self._thread.start()
            return self._thread

    def _work(self, name: str) -> None:
        # The old pair goes first: two large ones may not fit.
        self._shelved, self._error = None, None

        def report(progress: Progress) -> None:
            self._progress = progress

        try:
            self._shelved = (name, self._load(name, report))
        except Exception as error:  # told to whoever asks for the pair
            self._error = error
        finally:
            self._progress = None


def make_decode(shelf: Shelf) -> Callable[[list[int], SamplingParams, int, int], Iterator[Block]]:
    """The loop over the shelf's pair, as the device runs it. Plain values in, plain values out: it may be in another process."""

    def decode(
        prompt_ids: list[int], params: SamplingParams, block_size: int, max_new_tokens: int
    ) -> Generator[Block, None, None]:
        pair = shelf.pair
        assert pair is not None
        yield from iter_blocks(
            pair.draft if block_size > 1 else None,
            pair.target,
            torch.tensor([prompt_ids]),
            max_new_tokens=max_new_tokens,
            stop_token_ids=pair.stop_token_ids,
            block_size=block_size,
            params=params,
            table_size=TABLE_SIZE,
        )

    return GPU(duration=_gpu_seconds)(decode)


def _gpu_seconds(prompt_ids: list[int], params: SamplingParams, block_size: int, max_new_tokens: int) -> int:
    """What a run is expected to need of a shared GPU, in seconds: shorter requests wait less."""
    return min(120, 15 + max_new_tokens // 20)


def make_race(shelf: Shelf) -> Callable[[list[int], SamplingParams, int, int], Iterator[Lap | Round]]:
    """A race of the shelf's pair, as the device runs it: see `make_decode`."""

    def race(
        prompt_ids: list[int], params: SamplingParams, block_size: int, max_new_tokens: int
    ) -> Generator[Lap | Round, None, None]:
        pair = shelf.pair
        assert pair is not None
        yield from iter_race(
            pair.draft,
            pair.target,
            torch.tensor([prompt_ids]),
            max_new_tokens=max_new_tokens,
            stop_token_ids=pair.stop_token_ids,
            block_size=block_size,
            params=params,
        )

    return GPU(duration=_race_seconds)(race)


def _race_seconds(prompt_ids: list[int], params: SamplingParams, block_size: int, max_new_tokens: int) -> int:
    """As `_gpu_seconds`, of a whole race."""
    return min(120, 15 + 2 * REPEATS * max_new_tokens // 20)


SWEEP_SECONDS = 120  # the most that a shared GPU lends at once; what is missing then is measured by "Go on"


def make_sweep(shelf: Shelf) -> Callable[[SweepPlan, Sequence[Sequence[int]], Collection[RunKey]], Iterator[Step]]:
    """A sweep of the shelf's pair, as the device runs it: see `make_decode`."""

    def sweep(plan: SweepPlan, prompt_ids: Sequence[Sequence[int]], done: Collection[RunKey]) -> Generator[Step, None, None]:
        pair = shelf.pair
        assert pair is not None
        yield from sweep_runs(pair, plan, prompt_ids, done=done)

    return GPU(duration=SWEEP_SECONDS)(sweep)


def make_estimate(shelf: Shelf) -> Callable[[SweepPlan, Sequence[Sequence[int]], Collection[RunKey]], TimeEstimate]:
    """The calibration of a sweep, as the device runs it."""

    def estimate(plan: SweepPlan, prompt_ids: Sequence[Sequence[int]], done: Collection[RunKey]) -> TimeEstimate:
        pair = shelf.pair
        assert pair is not None
        return estimate_time(pair, plan, prompt_ids, done=done)

    return GPU(duration=30)(estimate)
