"""Closed forms of speculative decoding: acceptance length, its law, speed-up, and the best block size.

α is a conditional acceptance (accepted / judged), B a block size with its anchor, γ = B − 1 the drafted tokens, and τ the
acceptance length: the accepted tokens and the one that the target adds.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence

from .blocks import is_within, require


def expected_acceptance_length(alpha: float, block_size: int) -> float:
    """E[τ] = (1 − α^B) / (1 − α), which is B at α = 1.

    Assumes that every drafted token is accepted with the same probability α, independently of the others, and that no stop
    token or cap cuts the block. Leviathan et al. 2023 (arXiv 2211.17192), equation 1, with γ + 1 = B.
    Raises ValueError unless 0 ≤ α ≤ 1 and B is a whole number of 1 or more.
    """
    _check_alphas([alpha])
    require(
        isinstance(block_size, int) and not isinstance(block_size, bool) and block_size >= 1,
        f"block_size counts the anchor and must be a whole number of 1 or more, not {block_size!r}",
    )
    # The same as a sum, which loses no digits near α = 1.
    return float(sum(alpha**i for i in range(block_size)))


def expected_acceptance_length_by_position(alphas: Sequence[float]) -> float:
    """E[τ] = 1 + Σᵢ Πⱼ≤ᵢ αⱼ.

    alphas: αᵢ = P(the i-th drafted token is accepted | it is judged), i = 1 … γ. That the first i are all accepted has the
    probability Πⱼ≤ᵢ αⱼ by the chain rule, and E[A] = Σᵢ P(A ≥ i): so no independence is assumed, only that no block is cut.
    The α of `expected_acceptance_length` at every position gives its value. Raises ValueError unless 0 ≤ αᵢ ≤ 1.
    """
    return 1.0 + sum(_survival(alphas))


def acceptance_length_law(alphas: Sequence[float]) -> list[float]:
    """P(τ = 1), …, P(τ = γ + 1): Πⱼ<ₙ αⱼ · (1 − αₙ) for n ≤ γ, and Πⱼ αⱼ for the full block.

    alphas, assumptions and errors as in `expected_acceptance_length_by_position`. With one α at every position it is the
    capped geometric law of Leviathan et al. 2023 (arXiv 2211.17192), section 3.1. Without a drafted token it is [1].
    """
    survival = _survival(alphas)
    # As products, not as differences of survivals: those would cancel near α = 1.
    stops = [before * (1.0 - alpha) for before, alpha in zip([1.0, *survival], alphas, strict=False)]
    return [*stops, survival[-1] if survival else 1.0]


def speedup(tau: float, draft_cost: float, verify_cost: float) -> float:
    """Speed over plain decoding of a block drafter: τ / (d + v(B)).

    tau: mean tokens for each draft-verify cycle. draft_cost, verify_cost: d and v(B), the measured times of the one draft
    pass and of the target's pass over B tokens, each divided by that of a plain step at the same context length. What the
    loop adds (sampling, judging) belongs to d. The prefill, the same for both, is left out.
    Assumes that a cycle's cost does not depend on how many tokens it gains. Leviathan et al. 2023 (arXiv 2211.17192),
    theorem 3.8, has γ·c + 1 below the line: γ draft passes one after the other, and a verification as cheap as one step.
    Raises ValueError unless τ ≥ 1, both costs are 0 or more and their sum is above 0.
    """
    require(is_within(tau, 1, sys.float_info.max), f"tau counts the target's own token and must be 1 or more, not {tau!r}")
    _check_costs(draft_cost, [verify_cost])
    require(draft_cost + verify_cost > 0, "draft_cost and verify_cost must not both be 0: they are times over a plain step's")
    return tau / (draft_cost + verify_cost)


def best_block_size(alphas: Sequence[float], draft_cost: float, verify_costs: Mapping[int, float]) -> tuple[int, float]:
    """The fastest block size and its speed-up over plain decoding; (1, 1.0), plain decoding, if no block is faster.

    alphas: conditional acceptance at positions 1, 2, …, at least up to the largest candidate's γ = B − 1.
    draft_cost: d. verify_costs: v(B) for each candidate B ≥ 2. Both as in `speedup`; of equals the smaller B is taken.
    Assumes that αᵢ and d are the same for every B, which holds roughly for a one-pass drafter near its trained size: a
    block of another size is another input to the draft. Leviathan et al. 2023 (arXiv 2211.17192), section 3.5, with
    measured costs in place of c. Raises ValueError for candidates below 2 or beyond the alphas, and as `speedup` does.
    """
    _check_alphas(alphas)
    _check_costs(draft_cost, verify_costs.values())
    wrong = [b for b in verify_costs if not isinstance(b, int) or isinstance(b, bool) or b < 2]
    require(
        not wrong,
        f"verify_costs must have block sizes of 2 or more as keys, not {wrong}: plain decoding (1) always takes part",
    )
    largest = max(verify_costs, default=1)
    require(
        largest - 1 <= len(alphas),
        f"block size {largest} drafts {largest - 1} tokens, but there are alphas for {len(alphas)} positions only: "
        "measure more positions or leave the larger blocks out",
    )
    best = (1, 1.0)
    for block_size in sorted(verify_costs):
        tau = expected_acceptance_length_by_position(alphas[: block_size - 1])
        gain = speedup(tau, draft_cost, verify_costs[block_size])
        if gain > best[1]:
            best = (block_size, gain)
    return best


def _survival(alphas: Sequence[float]) -> list[float]:
    """P(A ≥ i), i = 1 … γ."""
    _check_alphas(alphas)
    return list(itertools.accumulate((float(alpha) for alpha in alphas), operator.mul))


def _check_alphas(alphas: Sequence[float]) -> None:
    wrong = [alpha for alpha in alphas if not is_within(alpha, 0, 1)]
    require(not wrong, f"alpha is a probability: it must be a number from 0 to 1, not {wrong[:1]}")


def _check_costs(draft_cost: float, verify_costs: Iterable[float]) -> None:
    wrong = [cost for cost in (draft_cost, *verify_costs) if not is_within(cost, 0, sys.float_info.max)]
    require(not wrong, f"a cost is a time over that of a plain step: it must be a number of 0 or more, not {wrong[:1]}")
