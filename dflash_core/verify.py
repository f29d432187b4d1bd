"""The verification rules: which drafted tokens are kept, and which token comes after them.

Throughout, p is the target's distribution and q the draft's, both after temperature, top-k and top-p. At temperature 0 they
are one-hot, so no rule needs a greedy special case. To add a rule, add it to `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .sampling import Draws, draw


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for N blocks with γ drafted tokens each.

    n_accepted: (N,) drafted tokens kept, 0 … γ.
    next_token: (N,) the token after them: resampled where n_accepted < γ, bonus where it is γ.
    accept_probs: (N, γ) the rule's probability of accepting each drafted token x, given x.
    """

    n_accepted: Tensor
    next_token: Tensor
    accept_probs: Tensor


@dataclass(frozen=True, slots=True)
class Rule:
    """One verification rule.

    key, label, summary: its name in code, its name on the page, and one line on how it works.
    source: who uses or published it.
    lossless: the emitted tokens follow the target's distribution exactly.
    same_text: the emitted token is always the target's own draw, so one seed gives one text, for every draft and block size.
    propose: (draft_probs (N, γ, V), draws) → drafted ids (N, γ).
    judge: (target_probs (N, γ + 1, V), draft_probs (N, γ, V), drafted (N, γ), draws) → Verdict. γ ≥ 1.
    acceptance: (target_probs (…, V), draft_probs (…, V)) → (…) probability that one position is accepted, in closed form.
    """

    key: str
    label: str
    summary: str
    source: str
    lossless: bool
    same_text: bool
    propose: Callable[[Tensor, Draws], Tensor]
    judge: Callable[[Tensor, Tensor, Tensor, Draws], Verdict]
    acceptance: Callable[[Tensor, Tensor], Tensor]


def propose_by_sampling(draft_probs: Tensor, draws: Draws) -> Tensor:
    """x ~ q."""
    return draw(draft_probs, draws.draft)


def propose_greedily(draft_probs: Tensor, draws: Draws) -> Tensor:
    """x = argmax q."""
    return draft_probs.argmax(-1)


def judge_by_match(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor, draws: Draws) -> Verdict:
    """The target draws y ~ p at every position; x is accepted while y = x, and the first other y is emitted instead."""
    own = draw(target_probs, draws.target)
    n_accepted = _leading(own[:, :-1] == drafted)
    return Verdict(n_accepted, _at(own, n_accepted), _of_tokens(target_probs[:, :-1], drafted))


def judge_by_ratio(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor, draws: Draws) -> Verdict:
    """x is accepted with probability min(1, p(x) / q(x)); after a rejection the next token is drawn from norm((p − q)₊).

    Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """
    p_drafted = _of_tokens(target_probs[:, :-1], drafted)
    q_drafted = _of_tokens(draft_probs, drafted)
    n_accepted = _leading(draws.accept * q_drafted < p_drafted)
    n_drafted = drafted.shape[1]
    p_next = _at(target_probs, n_accepted)
    rejected = n_accepted < n_drafted
    q_next = _at(draft_probs, n_accepted.clamp(max=n_drafted - 1)) * rejected[:, None]
    residual = (p_next - q_next).clamp_min(0.0)
    # p = q up to rounding leaves nothing to draw from: then p itself is the limit.
    weights = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p_next)
    uniforms = torch.where(rejected, _at(draws.residual, n_accepted), _at(draws.target, n_accepted))
    return Verdict(n_accepted, draw(weights, uniforms), (p_drafted / q_drafted).clamp(max=1.0))


def match_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Σ p·q: two independent draws agree."""
    return (target_probs * draft_probs).sum(-1)


def greedy_match_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """p(argmax q)."""
    return target_probs.gather(-1, draft_probs.argmax(-1, keepdim=True))[..., 0]


def speculative_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Σ min(p, q) = 1 − TV(p, q)."""
    return torch.minimum(target_probs, draft_probs).sum(-1)


def _leading(kept: Tensor) -> Tensor:
    """Number of leading True in each row of kept (N, γ)."""
    return kept.long().cumprod(-1).sum(-1)


def _at(values: Tensor, index: Tensor) -> Tensor:
    """values[n, index[n]] for each n: (N, K, …) and (N,) → (N, …)."""
    return values[torch.arange(values.shape[0], device=values.device), index]


def _of_tokens(probs: Tensor, token_ids: Tensor) -> Tensor:
    """Probability of one token at each position: (N, K, V) and (N, K) → (N, K)."""
    return probs.gather(-1, token_ids[..., None])[..., 0]


RULES: dict[str, Rule] = {
    rule.key: rule
    for rule in (
        Rule(
            key="match",
            label="match",
            summary="The draft samples x, the target samples its own y; x is kept if y = x, otherwise y replaces it.",
            source="DFlash's article and its MLX code of spring 2026",
            lossless=True,
            same_text=True,
            propose=propose_by_sampling,
            judge=judge_by_match,
            acceptance=match_acceptance,
        ),
        Rule(
            key="greedy-match",
            label="greedy-match",
            summary="The draft proposes its most likely token x, the target samples y; x is kept if y = x, else y replaces it.",
            source="DFlash's PyTorch code until summer 2026, llama.cpp; the same law as the defaults of SGLang and vLLM",
            lossless=True,
            same_text=True,
            propose=propose_greedily,
            judge=judge_by_match,
            acceptance=greedy_match_acceptance,
        ),
        Rule(
            key="speculative",
            label="speculative",
            summary="The draft samples x; it is kept with probability min(1, p(x)/q(x)), else redrawn from norm((p − q)₊).",
            source="Leviathan et al. 2023, Chen et al. 2023; DFlash 0.1.0, Transformers, vLLM",
            lossless=True,
            same_text=False,
            propose=propose_by_sampling,
            judge=judge_by_ratio,
            acceptance=speculative_acceptance,
        ),
    )
}
