"""Plain decoding against DFlash on one prompt and seed: the race itself, whether the texts are the same, and what a pass costs.

Both arms run in the one loop with the same settings, fresh caches and nothing recorded, in turns (plain, DFlash, plain, …),
so that a drift of the machine's speed reaches both alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from torch import Tensor

from .blocks import Block, Generation, SamplingParams, require
from .generate import Draft, iter_blocks
from .metrics import RunStats, run_stats
from .same_text import Difference, first_difference
from .sampling import GREEDY_BELOW
from .theory import speedup
from .verify import RULES

REPEATS = 3
WARM_UP_TOKENS = 8

Arm = Literal["plain", "dflash"]
ARMS: tuple[Arm, ...] = ("plain", "dflash")
Outcome = Literal["same", "rounding", "fault", "other_draw", "other_law"]


@dataclass(frozen=True, slots=True)
class Lap:
    """One block of one run of a race. repeat: from 1; 0 is the warm-up, which counts nowhere."""

    repeat: int
    arm: Arm
    block: Block


@dataclass(frozen=True, slots=True)
class TextCheck:
    """Whether DFlash wrote what plain decoding wrote.

    outcome: "same"; "rounding" and "fault" where texts that must be equal part, at `difference`; "other_draw" where the text
    follows the same law but is drawn in another way, and "other_law" where it does not even follow that.
    difference: token_a and margin_a are plain decoding's, token_b and margin_b DFlash's.
    """

    outcome: Outcome
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One repeat: both runs to their ends, and the check of their texts."""

    plain: Generation
    dflash: Generation
    check: TextCheck


@dataclass(frozen=True, slots=True)
class RaceStats:
    """The figures of a race.

    speeds: of each repeat, tokens/s of plain decoding and of DFlash, both without the prefill, which is the same work.
    ratios: of each repeat, the second over the first.
    speedup: their median; low, high: the smallest and the largest of them. That range holds the true median with probability
    `coverage` = 1 − 2^(1 − n), if the n repeats are independent: each falls on either side of it with probability 1/2.
    shown: index of the repeat whose ratio is nearest to the median. plain, dflash: the figures of its runs.
    draft_cost, verify_cost: d and v(B) of `theory.speedup`, from the mean seconds of a pass in the shown repeat: the draft's
    pass and the loop's own work, and the target's pass over B tokens, each over a plain step (its own work included).
    """

    speeds: tuple[tuple[float, float], ...]
    ratios: tuple[float, ...]
    speedup: float
    low: float
    high: float
    coverage: float
    shown: int
    plain: RunStats
    dflash: RunStats
    draft_cost: float
    verify_cost: float

    @property
    def break_even(self) -> float:
        """The τ from which on DFlash is the faster one: what a block costs, in plain steps."""
        return self.draft_cost + self.verify_cost

    @property
    def modelled(self) -> float:
        """τ / (d + v(B)): the shown repeat's speed-up taken apart."""
        assert self.dflash.tau is not None
        return speedup(self.dflash.tau, self.draft_cost, self.verify_cost)

    @property
    def result(self) -> Literal["faster", "slower", "level"]:
        """What all repeats agree on; "level" if they do not."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "level"


def iter_race(
    draft: Draft,
    target: Any,
    input_ids: Tensor,
    *,
    max_new_tokens: int,
    stop_token_ids: Collection[int] = (),
    block_size: int,
    params: SamplingParams,
    repeats: int = REPEATS,
) -> Generator[Lap | Round, None, None]:
    """Runs the race: a warm-up of both arms, then `repeats` times plain decoding and DFlash. Close the iterator to stop.

    Yields a Lap for each block as it was made, and a Round after each repeat; nothing but the loop's own time is in a block's
    seconds. Arguments as for `iter_blocks`; raises ValueError, before the first pass, for what cannot work.
    """
    require(block_size >= 2, f"block_size {block_size} is plain decoding itself: a race needs at least 2")
    require(max_new_tokens >= 2, "the first token comes out of the prefill on both sides: a race needs at least 2 tokens")
    require(repeats >= 1, f"repeats must be at least 1, not {repeats}")
    prompt_ids = tuple(input_ids[0].tolist())
    sizes: dict[Arm, int] = {"plain": 1, "dflash": block_size}
    for repeat in range(repeats + 1):
        runs = {}
        for arm in ARMS:
            blocks = []
            for block in iter_blocks(
                draft,
                target,
                input_ids,
                max_new_tokens=max_new_tokens if repeat else min(max_new_tokens, WARM_UP_TOKENS),
                stop_token_ids=stop_token_ids,
                block_size=sizes[arm],
                params=params,
                details=False,
            ):
                blocks.append(block)
                yield Lap(repeat, arm, block)
            runs[arm] = Generation(prompt_ids, params, sizes[arm], tuple(blocks))
        if repeat:
            yield Round(**runs, check=check_texts(runs["plain"], runs["dflash"], target))


def check_texts(plain: Generation, dflash: Generation, target: Any) -> TextCheck:
    """Compares the texts of two runs where they must be equal: at temperature 0, and under the rules that emit the target's own
    draw. Where they part, the target repeats the passes up to there."""
    rule = RULES[dflash.params.rule]
    if not rule.same_text and dflash.params.temperature >= GREEDY_BELOW:
        return TextCheck("other_draw" if rule.lossless else "other_law")
    difference = first_difference(plain, dflash, target)
    if difference is None:
        return TextCheck("same")
    return TextCheck("rounding" if difference.rounding else "fault", difference)


def race_stats(rounds: Sequence[Round]) -> RaceStats | None:
    """The figures of a race's repeats; None if there is none, or if the text ended with the prefill's token."""
    plain = [run_stats(one.plain.blocks, 1) for one in rounds]
    dflash = [run_stats(one.dflash.blocks, one.dflash.block_size) for one in rounds]
    pairs = [(slow.tokens_per_second, fast.tokens_per_second) for slow, fast in zip(plain, dflash, strict=True)]
    speeds = tuple((slow, fast) for slow, fast in pairs if slow and fast)
    if not rounds or len(speeds) < len(rounds):
        return None
    ratios = tuple(fast / slow for slow, fast in speeds)
    middle = statistics.median(ratios)
    shown = min(range(len(ratios)), key=lambda i: abs(ratios[i] - middle))
    step, block = plain[shown].seconds / plain[shown].n_blocks, dflash[shown]
    return RaceStats(
        speeds=speeds,
        ratios=ratios,
        speedup=middle,
        low=min(ratios),
        high=max(ratios),
        coverage=1 - 2.0 ** (1 - len(ratios)),
        shown=shown,
        plain=plain[shown],
        dflash=block,
        draft_cost=(block.seconds_draft + block.seconds_other) / block.n_blocks / step,
        verify_cost=block.seconds_verify / block.n_blocks / step,
    )


def clock(run: Generation) -> list[float]:
    """Measured seconds, within the loop, from the prefill's token to the end of each block: 0 for block 0."""
    return list(accumulate(block.seconds if block.index else 0.0 for block in run.blocks))
