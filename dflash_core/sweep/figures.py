"""The figures of a sweep: a result for each cell, differences between rules, speeds, the same-contexts curves.

Every figure is an `Estimate`: value, 95 % interval, and n, the number of independent units behind it. Unless said otherwise
these are prompts: whole prompts are drawn anew with all their seeds (`intervals.cluster_interval`).
"""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Cell


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval and the number of independent units behind it.

    unit: "prompts"; "seeds", where there is one prompt only; "judged" (tokens) or "blocks".
    low, high: None where there is no interval: with one or two units, or units that all agree.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    unit: str = "prompts"


@dataclass(frozen=True, slots=True)
class PositionResult:
    """Acceptance at the i-th drafted position, i = 1 … γ, pooled over the cell's runs.

    rate: accepted / judged; its n is `judged`. survival: P(A ≥ i), by Kaplan-Meier where blocks were cut; its n is the number
    of blocks. Wilson intervals; they take blocks as independent. None while nothing was judged.
    """

    i: int
    accepted: int
    judged: int
    rate: Estimate | None
    survival: Estimate | None


@dataclass(frozen=True, slots=True)
class CellSpeed:
    """Speeds of a cell, measured on the runs that were decoded one by one, beside plain decoding of the same prompts.

    tokens_per_second, plain_tokens_per_second: without the prefill. speedup: their ratio, = τ / (d + v) on these runs.
    draft_cost: d, the time of a draft pass with all that the loop adds, over that of a plain step. verify_cost: v(B), the
    target's pass over B tokens, over a plain step. n is the number of timed prompts; n_blocks of timed blocks.
    """

    n_blocks: int
    tokens_per_second: Estimate
    plain_tokens_per_second: Estimate
    speedup: Estimate
    draft_cost: Estimate
    verify_cost: Estimate


@dataclass(frozen=True, slots=True)
class CellResult:
    """The figures of one cell from its finished runs so far.

    shared: nothing is drawn here (temperature 0), so these are the runs of the first rule.
    n_cut: blocks cut short by a stop token or the cap; they count what came out. n_tokens: new tokens, the prefill's included.
    tau: acceptance length; None while there is no block. tau_by_kind: the same for each kind of prompt.
    alpha: accepted / judged, Wilson interval, n = judged.
    tau_independent: what constant independent acceptance alpha would give, (1 − α^B) / (1 − α): theory beside measurement.
    repeated_share: mean over the runs of the share of text that repeats itself.
    speed: None where no timed run and plain run of one prompt are finished.
    batched_tokens_per_second: of the runs decoded together with others, tokens over their shares of the passes' time: the
    throughput of `rows` generations at once, not the speed of one.
    """

    cell: Cell
    shared: bool
    n_prompts: int
    n_seeds: int
    n_runs: int
    n_blocks: int
    n_cut: int
    n_tokens: int
    tau: Estimate | None
    tau_by_kind: dict[str, Estimate]
    alpha: Estimate | None
    tau_independent: float | None
    positions: tuple[PositionResult, ...]
    repeated_share: float | None
    speed: CellSpeed | None
    batched_tokens_per_second: Estimate | None


@dataclass(frozen=True, slots=True)
class RuleDifference:
    """τ of `rule` minus τ of `other` on the prompts that both have finished, paired by prompt."""

    temperature: float
    draft_temperature: float | None
    block_size: int
    rule: str
    other: str
    tau: Estimate


@dataclass(frozen=True, slots=True)
class ContextCurve:
    """τ that one rule would have at each temperature at the contexts of the runs of `from_temperature` under `from_rule`."""

    rule: str
    block_size: int
    from_temperature: float
    from_rule: str
    temperatures: tuple[float, ...]
    taus: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """τ / (d + v(B)) at every B from 2 to the largest measured: α at each position from the largest block, d and v(B)
    measured, and between measured sizes on a straight line. best: its (B, speed-up); (1, 1.0) if plain decoding is faster."""

    temperature: float
    draft_temperature: float | None
    rule: str
    block_sizes: tuple[int, ...]
    speedups: tuple[float, ...]
    best: tuple[int, float]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The block size to use at one temperature under one rule. 1 is plain decoding.

    speedup: of that block size, measured. within_noise: the sizes (1 among them) whose measured speed cannot be told from it.
    text: the same in words, to be shown as it is.
    """

    temperature: float
    draft_temperature: float | None
    rule: str
    block_size: int
    speedup: Estimate
    within_noise: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SweepResults:
    """All figures of a sweep, finished or not."""

    cells: tuple[CellResult, ...]
    differences: tuple[RuleDifference, ...]
    curves: tuple[ContextCurve, ...]
    models: tuple[SpeedModel, ...]
    recommendations: tuple[Recommendation, ...]
