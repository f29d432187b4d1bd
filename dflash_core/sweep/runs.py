"""Decodes the runs of a sweep: a generator that can be closed between blocks and goes on where an earlier one stopped."""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass

from ..blocks import Block
from ..pairs import Pair
from .plan import Cell, RunKey, SweepPlan


@dataclass(frozen=True, slots=True)
class Contexts:
    """A run's judged positions scored at all temperatures of the sweep (`whatif.rescore`), summed by place in the block.

    judged: positions judged at place i = 1 … γ. accepted: for each rule, for each of the plan's temperatures, the sum of the
    closed-form acceptance over them.
    """

    judged: tuple[int, ...]
    accepted: dict[str, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True, slots=True)
class CellRun:
    """A finished run. rows: how many were decoded together; the seconds of its blocks are a measurement only with 1."""

    key: RunKey
    blocks: tuple[Block, ...]
    rows: int = 1
    contexts: Contexts | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for block in self.blocks for token in block.emitted)


@dataclass(frozen=True, slots=True)
class Step:
    """One block was decoded, and with it maybe a run finished.

    key: the run it belongs to. run: that run, if the block was its last. n_done, n_runs: finished runs, earlier ones included,
    and all. seconds_left: an estimate from the runs so far; None before the first.
    """

    key: RunKey
    block: Block
    run: CellRun | None
    n_done: int
    n_runs: int
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """What a sweep will take. seconds_of_run: one run to its cap, by block size, 1 being plain decoding."""

    seconds: float
    n_runs: int
    seconds_of_run: dict[int, float]


def encode_prompts(pair: Pair, plan: SweepPlan) -> tuple[tuple[int, ...], ...]:
    """Token ids of each prompt. Raises SweepError, naming the prompt, for one that is empty or too long for the context."""
    raise NotImplementedError


def sweep_runs(
    pair: Pair,
    plan: SweepPlan,
    prompt_ids: tuple[tuple[int, ...], ...],
    *,
    done: Collection[RunKey] = (),
    part: tuple[int, int] = (0, 1),
) -> Generator[Step, None, None]:
    """Decodes the runs that are not done yet and yields a Step for each block. Close it to stop after the current block.

    prompt_ids: of `encode_prompts`. part: (i, n) takes every n-th group of runs from the i-th on.
    """
    raise NotImplementedError


def estimate_time(pair: Pair, plan: SweepPlan, prompt_ids: tuple[tuple[int, ...], ...], *, seconds: float = 4.0) -> TimeEstimate:
    """Decodes the first prompt for a few seconds and says what the whole sweep will take."""
    raise NotImplementedError
