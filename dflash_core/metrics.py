"""From blocks to the figures of a run: acceptance length τ, rates with intervals, histogram, time.

What counts: block 0 (the prefill's token) is left out of every acceptance figure; a token after the first rejection was never
judged; τ counts what was emitted, and a block that a stop token or the cap cut short is counted so and flagged (`n_cut`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy import special  # scipy.stats takes a second to import

from .blocks import Block
from .theory import acceptance_length_law

CONFIDENCE = 0.95
Z = float(special.ndtri((1 + CONFIDENCE) / 2))
REPEAT_WINDOW = 16  # tokens; a longer phrase that comes again counts as repetition


@dataclass(frozen=True, slots=True)
class PositionStats:
    """Acceptance at the i-th drafted position of a block (1 … γ).

    rate: conditional acceptance, accepted / judged, with its Wilson 95 % interval; None while nothing was judged.
    survival: P(A ≥ i), the product of the conditional rates up to i. Without cut blocks that is accepted / blocks; with
    them it is the Kaplan-Meier estimate, which uses a cut block as far as it was judged.
    """

    i: int
    accepted: int
    judged: int
    rate: float | None
    low: float | None
    high: float | None
    survival: float | None


@dataclass(frozen=True, slots=True)
class RunStats:
    """The figures of one run. Intervals are 95 %; a figure is None while it is undefined.

    n_blocks: draft-verify cycles (target passes after the prefill). n_cut: of them, cut by a stop token or the cap.
    n_tokens: new tokens, the prefill's included. target_passes: the prefill included.
    tau: tokens per cycle, interval by Student's t over the run's blocks taken as independent.
    drafted, judged, accepted: drafted tokens; alpha = accepted / judged, with its Wilson interval.
    passes_saved: target passes that plain decoding would have needed beyond these.
    seconds, tokens_per_second: of the cycles, without the prefill and without the consumer's time.
    lengths: number of blocks of acceptance length 1, 2, … B; lengths_expected: the same total spread by the geometric law
    P(A ≥ i) = αⁱ cut at γ, what constant independent acceptance α would give.
    repeated_share: share of the new tokens that lie in a phrase of 16 tokens seen before in the output.
    """

    n_blocks: int
    n_cut: int
    n_tokens: int
    target_passes: int
    passes_saved: int
    tau: float | None
    tau_low: float | None
    tau_high: float | None
    drafted: int
    judged: int
    accepted: int
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    seconds: float
    seconds_draft: float
    seconds_verify: float
    seconds_other: float
    tokens_per_second: float | None
    lengths: tuple[int, ...]
    lengths_expected: tuple[float, ...] | None
    positions: tuple[PositionStats, ...]
    repeated_share: float


def wilson_interval(successes: float, trials: float) -> tuple[float, float] | tuple[None, None]:
    """Wilson's 95 % score interval of a proportion (Wilson 1927); (None, None) without trials.

    Written out because it is needed for every position 15 times a second; scipy's takes a hundred times as long.
    """
    if trials == 0:
        return None, None
    rate, z2 = successes / trials, Z * Z
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def survival_interval(positions: Sequence[PositionStats], i: int) -> tuple[float, float] | tuple[None, None]:
    """95 % interval of the survival at position i: Wilson's, which without cut blocks is that of accepted / blocks.

    With cut blocks the trials are as many as would give Greenwood's variance of the Kaplan-Meier estimate (Greenwood 1926).
    Takes blocks as independent. (None, None) where the survival is undefined.
    """
    survival = positions[i - 1].survival
    if survival is None:
        return None, None
    variance = sum((p.judged - p.accepted) / (p.judged * p.accepted) for p in positions[:i] if p.judged and p.accepted)
    if survival == 0.0:
        trials = float(positions[0].judged)
    elif survival == 1.0:
        trials = float(positions[i - 1].judged)
    else:
        trials = (1 - survival) / (survival * variance)
    return wilson_interval(survival * trials, trials)


def geometric_lengths(alpha: float, n_drafted: int) -> list[float]:
    """P(acceptance length = 1, …, γ + 1) if each token is accepted with probability α, independently.

    Leviathan et al. 2023 (arXiv 2211.17192), section 3.1: a capped geometric law.
    """
    return acceptance_length_law([alpha] * n_drafted)


class RunningMetrics:
    """Accumulates blocks in order; the cost of one block does not depend on how many came before."""

    def __init__(self, block_size: int) -> None:
        self._n_drafted = block_size - 1
        self.n_tokens = self._target_passes = self._n_cut = 0
        self._lengths = [0] * block_size
        self._accepted_at = [0] * self._n_drafted
        self._judged_at = [0] * self._n_drafted
        self._drafted = 0
        self._seconds = [0.0, 0.0, 0.0]
        self._recent: list[int] = []
        self._seen: set[tuple[int, ...]] = set()
        self._repeated = self._repeated_until = 0

    def add(self, block: Block) -> None:
        self._target_passes += 1
        for token in block.emitted:
            self._add_token(token)
        if block.index == 0:
            return
        self._n_cut += block.is_cut
        self._lengths[block.acceptance_length - 1] += 1
        self._drafted += len(block.drafted)
        for i in range(block.accepted + block.rejected):
            self._judged_at[i] += 1
            self._accepted_at[i] += i < block.accepted
        for i, seconds in enumerate((block.draft_seconds, block.verify_seconds, block.other_seconds)):
            self._seconds[i] += seconds

    def _add_token(self, token: int) -> None:
        self.n_tokens += 1
        self._recent = [*self._recent, token][-REPEAT_WINDOW:]
        if len(self._recent) < REPEAT_WINDOW:
            return
        phrase = tuple(self._recent)
        if phrase in self._seen:
            fresh_from = max(self._repeated_until, self.n_tokens - REPEAT_WINDOW)
            self._repeated += self.n_tokens - fresh_from
            self._repeated_until = self.n_tokens
        self._seen.add(phrase)

    @property
    def tau(self) -> float | None:
        """Tokens per cycle so far."""
        n_blocks = sum(self._lengths)
        return sum(n * (i + 1) for i, n in enumerate(self._lengths)) / n_blocks if n_blocks else None

    @property
    def seconds(self) -> float:
        """Loop time of the cycles so far, without the prefill and without the consumer's time."""
        return sum(self._seconds)

    def stats(self) -> RunStats:
        n_blocks, tau = sum(self._lengths), self.tau
        tau_low, tau_high = self._tau_interval()
        accepted, judged = sum(self._accepted_at), sum(self._judged_at)
        alpha = accepted / judged if judged else None
        alpha_low, alpha_high = wilson_interval(accepted, judged)
        seconds = self.seconds
        expected = None
        if alpha is not None:
            expected = tuple(n_blocks * share for share in geometric_lengths(alpha, self._n_drafted))
        return RunStats(
            n_blocks=n_blocks,
            n_cut=self._n_cut,
            n_tokens=self.n_tokens,
            target_passes=self._target_passes,
            passes_saved=self.n_tokens - self._target_passes,
            tau=tau,
            tau_low=tau_low,
            tau_high=tau_high,
            drafted=self._drafted,
            judged=judged,
            accepted=accepted,
            alpha=alpha,
            alpha_low=alpha_low,
            alpha_high=alpha_high,
            seconds=seconds,
            seconds_draft=self._seconds[0],
            seconds_verify=self._seconds[1],
            seconds_other=self._seconds[2],
            tokens_per_second=tau * n_blocks / seconds if tau and seconds else None,
            lengths=tuple(self._lengths),
            lengths_expected=expected,
            positions=tuple(self._positions()),
            repeated_share=self._repeated / self.n_tokens if self.n_tokens else 0.0,
        )

    def _tau_interval(self) -> tuple[float, float] | tuple[None, None]:
        n, tau = sum(self._lengths), self.tau
        if n < 2 or tau is None or self._n_drafted == 0:
            return None, None
        variance = sum(count * (i + 1 - tau) ** 2 for i, count in enumerate(self._lengths)) / (n - 1)
        half = float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * math.sqrt(variance / n)
        return max(1.0, tau - half), min(float(len(self._lengths)), tau + half)

    def _positions(self) -> Iterable[PositionStats]:
        survival: float | None = 1.0
        for i, (accepted, judged) in enumerate(zip(self._accepted_at, self._judged_at, strict=True), start=1):
            rate = accepted / judged if judged else None
            survival = survival * rate if survival is not None and rate is not None else (0.0 if survival == 0.0 else None)
            low, high = wilson_interval(accepted, judged)
            yield PositionStats(i, accepted, judged, rate, low, high, survival)


def tokens_and_blocks(blocks: Sequence[Block]) -> tuple[int, int]:
    """Of a run's draft-verify cycles, whose ratio is its τ: block 0, the prefill's, is left out."""
    return sum(len(block.emitted) for block in blocks[1:]), len(blocks) - 1


def run_stats(blocks: Iterable[Block], block_size: int) -> RunStats:
    """The figures of a list of blocks."""
    metrics = RunningMetrics(block_size)
    for block in blocks:
        metrics.add(block)
    return metrics.stats()
