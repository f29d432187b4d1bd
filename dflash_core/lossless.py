"""Does the output follow the target? Statistical checks of one verification and of whole outputs (same_text.py: an exact one).

Chi-square tests are of the likelihood-ratio form with Williams' correction (Sokal and Rohlf 1995, section 17.2). Pearson's has
a far heavier tail at the levels used here: with an outcome expected 5 times, "1e-6" is a false alarm of 7e-5.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import special
from torch import Tensor

from .blocks import JudgedToken, SamplingParams, require
from .generate import Draft, dflash_generate
from .metrics import wilson_interval
from .sampling import Draws
from .verify import Rule

LEVEL = 1e-6
BAND = 0.99  # share of honest samples whose total variation lies inside the null band
BAND_SAMPLES = 2000
MIN_EXPECTED = 5.0  # outcomes expected less often are pooled
MAX_ELEMENTS = 2**22  # of the largest array at a time


@dataclass(frozen=True, slots=True)
class LawCheck:
    """n verifications of one position under a rule, and how the first token they emitted compares with p.

    level: a p-value below it counts as a difference; that is how often an exact rule is accused.
    target_probs, draft_probs: p and q, summing to 1. counts: how often each token was emitted; kept_counts: of these, as an
    accepted draft.
    total_variation: ½ Σ |counts/n − p|. null_band: 99 % of honest samples of size n from p itself stay at or below it.
    p_value: of the chi-square test of counts against p; 0 if a token of probability 0 came up.
    acceptance: the rule's probability of accepting, in closed form; None for a joint rule with γ > 1, where it is only a bound.
    acceptance_low, acceptance_high: Wilson's 95 % interval of the measured acceptance, accepted / n.
    """

    rule: str
    n: int
    seed: int
    level: float
    target_probs: tuple[float, ...]
    draft_probs: tuple[float, ...]
    counts: tuple[int, ...]
    kept_counts: tuple[int, ...]
    total_variation: float
    null_band: float
    p_value: float
    acceptance: float | None
    acceptance_low: float
    acceptance_high: float

    @property
    def accepted(self) -> int:
        return sum(self.kept_counts)

    @property
    def differs(self) -> bool:
        """The rule was found not to be lossless. If not, no difference was found, at this level and with this n."""
        return self.p_value < self.level

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def verify_law(rule: Rule, target_probs: Tensor, draft_probs: Tensor, *, n: int, seed: int, level: float = LEVEL) -> LawCheck:
    """Verifies one block n times, with new random numbers each time, and tests the law of the first token it emits.

    target_probs: (γ + 1, V); draft_probs: (γ, V), γ ≥ 1, rows summing to 1. For one position alone γ is 1, and the last row of
    target_probs does not matter. Memory is bounded, whatever n and V.

    Raises ValueError for shapes that do not fit, probabilities that are none, and n < 1.
    """
    gamma, vocab_size = draft_probs.shape if draft_probs.ndim == 2 else (0, 0)
    require(
        gamma >= 1 and target_probs.shape == (gamma + 1, vocab_size),
        f"target_probs must have shape (γ + 1, V) and draft_probs (γ, V), not {tuple(target_probs.shape)} "
        f"and {tuple(draft_probs.shape)}",
    )
    for probs in (target_probs, draft_probs):
        sums = probs.sum(-1)
        require(
            bool((probs >= 0).all() and ((sums - 1).abs() < 1e-3).all()), "each row of probabilities must be ≥ 0 and sum to 1"
        )
    require(n >= 1, f"n must be at least 1, not {n}")
    generator = torch.Generator().manual_seed(seed)
    counts, kept_counts = (np.zeros(vocab_size, dtype=np.int64) for _ in range(2))
    chunk = max(1, MAX_ELEMENTS // ((gamma + 1) * vocab_size))
    for start in range(0, n, chunk):
        size = min(chunk, n - start)
        draws = _draws(size, gamma, generator)
        p, q = target_probs.expand(size, -1, -1), draft_probs.expand(size, -1, -1)
        drafted = rule.propose(q, draws)
        verdict = rule.judge(p, q, drafted, draws)
        kept = verdict.n_accepted > 0
        first = torch.where(kept, drafted[:, 0], verdict.next_token)
        counts += np.bincount(first.numpy(), minlength=vocab_size)
        kept_counts += np.bincount(first[kept].numpy(), minlength=vocab_size)
    law, draft_law = (_normalised(probs[0].double().numpy()) for probs in (target_probs, draft_probs))
    low, high = wilson_interval(int(kept_counts.sum()), n)
    assert low is not None and high is not None
    known = gamma == 1 or not rule.joint
    return LawCheck(
        rule=rule.key,
        n=n,
        seed=seed,
        level=level,
        target_probs=tuple(law.tolist()),
        draft_probs=tuple(draft_law.tolist()),
        counts=tuple(counts.tolist()),
        kept_counts=tuple(kept_counts.tolist()),
        total_variation=float(np.abs(counts / n - law).sum() / 2),
        null_band=null_band(law, n, seed=seed),
        p_value=chi_square_p_value(counts, law),
        acceptance=min(1.0, float(rule.acceptance(target_probs[0], draft_probs[0]))) if known else None,
        acceptance_low=low,
        acceptance_high=high,
    )


def distributions_of(judged: JudgedToken) -> tuple[tuple[int, ...], Tensor, Tensor]:
    """Token ids, p and q (K + 1) in float64 of a recorded position: its table of K tokens, then "the rest" as one token more.

    What the table leaves out is one pseudo-token here, for p and q alike. A check of a rule on these pooled distributions is
    exact, as every rule is defined for any p and q; its acceptance is that of the pooled distributions, not of the full ones.

    Raises ValueError if the position has no table, or one that is no distribution.
    """
    require(bool(judged.table), "this position has no table of probabilities: record the run with table_size > 0")
    tokens, *columns = zip(*judged.table, strict=True)
    laws = []
    for column in columns:
        row = torch.tensor(column, dtype=torch.float64)
        require(
            bool((row >= 0).all()) and float(row.sum()) < 1 + 1e-3, "the table's probabilities must be ≥ 0 and sum to at most 1"
        )
        row = torch.cat([row, (1 - row.sum()).clamp_min(0.0)[None]])
        laws.append(row / row.sum())
    return tokens, laws[0], laws[1]


def redraw_bias(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Total variation between p and what `naive` emits, min(p, q) + (1 − α)·p with α = Σ min(p, q): (…, V) → (…).

    It is 0 where p = q and where nothing is accepted, so it tells at which positions the residual matters.
    """
    kept = torch.minimum(target_probs, draft_probs)
    return (kept - kept.sum(-1, keepdim=True) * target_probs).abs().sum(-1) / 2


def null_band(probs: ArrayLike, n: int, *, seed: int, share: float = BAND) -> float:
    """The total variation from probs that this share of samples of size n, drawn from probs itself, does not exceed."""
    law = _normalised(np.asarray(probs, dtype=np.float64))
    generator = np.random.default_rng(seed)
    chunk = max(1, MAX_ELEMENTS // len(law))
    sizes = [min(chunk, BAND_SAMPLES - start) for start in range(0, BAND_SAMPLES, chunk)]
    samples = [np.abs(generator.multinomial(n, law, size) / n - law).sum(-1) / 2 for size in sizes]
    return float(np.quantile(np.concatenate(samples), share, method="higher"))


def chi_square_p_value(counts: ArrayLike, probs: ArrayLike) -> float:
    """p-value of counts (V) against probs (V). The rarest outcomes are pooled until they are expected 5 times together.

    0 if an outcome of probability 0 came up; 1 if pooling leaves a single class.
    """
    observed, law = np.asarray(counts, dtype=np.float64), _normalised(np.asarray(probs, dtype=np.float64))
    if observed[law == 0].any():
        return 0.0
    order = np.argsort(law)
    observed, expected = observed[order], law[order] * observed.sum()
    pooled = _n_pooled(expected)
    observed, expected = (np.concatenate([[v[:pooled].sum()], v[pooled:]]) for v in (observed, expected))
    return _p_value(observed[None], expected[None], len(observed) - 1)


@dataclass(frozen=True, slots=True)
class TwoSampleCheck:
    """Two samples of outputs, tested for coming from one law.

    classes: outcomes compared, the rare ones pooled; 1 means that nothing repeats, and nothing can be said.
    """

    n_a: int
    n_b: int
    classes: int
    p_value: float
    level: float

    @property
    def differs(self) -> bool:
        return self.p_value < self.level


def two_sample_test(a: Sequence[Hashable], b: Sequence[Hashable], *, level: float = LEVEL) -> TwoSampleCheck:
    """Chi-square test of homogeneity. Outcomes that are expected fewer than 5 times in a sample are pooled.

    The outcomes are whole outputs, such as tuples of token ids: short ones, or none repeats. Raises ValueError if one is empty.
    """
    require(len(a) > 0 and len(b) > 0, "both samples need at least one output")
    counts_a, counts_b = Counter(a), Counter(b)
    table = np.array([[counts[outcome] for outcome in counts_a | counts_b] for counts in (counts_a, counts_b)], dtype=np.float64)
    table = table[:, np.argsort(table.sum(0), kind="stable")]
    shares = table.sum(1, keepdims=True) / table.sum()
    pooled = _n_pooled(table.sum(0) * shares.min())
    table = np.concatenate([table[:, :pooled].sum(1, keepdims=True), table[:, pooled:]], axis=1)
    classes = table.shape[1]
    return TwoSampleCheck(len(a), len(b), classes, _p_value(table, table.sum(0) * shares, classes - 1), level)


def compare_with_plain(
    draft: Draft,
    target: Any,
    input_ids: Tensor,
    *,
    n: int,
    max_new_tokens: int,
    block_size: int,
    params: SamplingParams,
    stop_token_ids: Collection[int] = (),
    level: float = LEVEL,
) -> TwoSampleCheck:
    """n outputs under params.rule and n of plain decoding, all with seeds of their own from params.seed on, compared."""

    def outputs(size: int, first_seed: int) -> list[tuple[int, ...]]:
        options = dataclasses.asdict(params)
        return [
            dflash_generate(
                draft,
                target,
                input_ids,
                max_new_tokens=max_new_tokens,
                stop_token_ids=stop_token_ids,
                block_size=size,
                **options | {"seed": first_seed + i},
            ).token_ids
            for i in range(n)
        ]

    return two_sample_test(outputs(block_size, params.seed), outputs(1, params.seed + n), level=level)


def _draws(n: int, gamma: int, generator: torch.Generator) -> Draws:
    """Random numbers for n independent verifications."""
    target, residual = (torch.rand(n, gamma + 1, dtype=torch.float64, generator=generator) for _ in range(2))
    draft, accept = (torch.rand(n, gamma, dtype=torch.float64, generator=generator) for _ in range(2))
    noise: list[Tensor] = []

    def race(vocab_size: int) -> Tensor:
        if not noise:  # draft and target share it
            noise.append(torch.empty(n, gamma + 1, vocab_size, dtype=torch.float64).exponential_(generator=generator))
        return noise[0]

    return Draws(target, draft, accept, residual, race)


def _normalised(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return weights / weights.sum()


def _n_pooled(expected: np.ndarray[Any, Any]) -> int:
    """How many of the smallest of these (ascending) make one class expected MIN_EXPECTED times; 1 if none is that rare."""
    rare = int((expected < MIN_EXPECTED).sum())
    enough = int(np.searchsorted(expected.cumsum(), MIN_EXPECTED)) + 1
    return min(max(rare, enough if rare else 1, 1), len(expected))


def _p_value(observed: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], freedom: int) -> float:
    """G = 2 Σ O ln(O/E) over Williams' correction, referred to chi-square. observed, expected: (samples, classes)."""
    if freedom < 1:
        return 1.0
    positive = observed > 0
    g = 2 * float((observed[positive] * np.log(observed[positive] / expected[positive])).sum())
    total = observed.sum()
    by_sample, by_class = total / observed.sum(1), total / expected.sum(0)
    rows = float(by_sample.sum()) - 1 if len(observed) > 1 else 1.0
    correction = 1 + rows * (float(by_class.sum()) - 1) / (6 * total * freedom)
    return float(special.chdtrc(freedom, max(0.0, g) / correction))
