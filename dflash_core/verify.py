"""The verification rules: which drafted tokens are kept, and which token comes after them.

Throughout, p is the target's distribution and q the draft's, both after temperature, top-k and top-p. At temperature 0 they
are one-hot, so no rule needs a greedy special case. To add a rule, add it to `RULES`. A long file, so that the rules can be
compared side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .sampling import Draws, draw, widest


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for N blocks with γ drafted tokens each.

    n_accepted: (N,) drafted tokens kept, 0 … γ.
    next_token: (N,) the token after them: resampled where n_accepted < γ, bonus where it is γ.
    """

    n_accepted: Tensor
    next_token: Tensor


@dataclass(frozen=True, slots=True)
class Rule:
    """One verification rule.

    key, label, summary: its name in code, its name on the page, and one line on how it works.
    source: who uses or published it.
    lossless: the emitted tokens follow the target's distribution exactly.
    same_text: the emitted token is always the target's own draw, so one seed gives one text, for every draft and block size.
    joint: a token's fate depends on tokens drafted after it. Such a rule needs new random numbers for a position that is
        drafted again in a later block.
    propose: (draft_probs (N, γ, V), draws) → drafted ids (N, γ).
    judge: (target_probs (N, γ + 1, V), draft_probs (N, γ, V), drafted (N, γ), draws) → Verdict. γ ≥ 1.
    accept_probs: (target_probs, draft_probs, drafted) → (N, γ) probability of accepting each drafted token, given that token
        and that those before it were accepted; of a joint rule, given the whole drafted block.
    acceptance: (target_probs (…, V), draft_probs (…, V)) → (…) probability that one position is accepted, in closed form.
    """

    key: str
    label: str
    summary: str
    source: str
    lossless: bool
    same_text: bool
    joint: bool
    propose: Callable[[Tensor, Draws], Tensor]
    judge: Callable[[Tensor, Tensor, Tensor, Draws], Verdict]
    accept_probs: Callable[[Tensor, Tensor, Tensor], Tensor]
    acceptance: Callable[[Tensor, Tensor], Tensor]


def propose_by_sampling(draft_probs: Tensor, draws: Draws) -> Tensor:
    """x ~ q."""
    return draw(draft_probs, draws.draft)


def propose_greedily(draft_probs: Tensor, draws: Draws) -> Tensor:
    """x = argmax q."""
    return draft_probs.argmax(-1)


def judge_by_match(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor, draws: Draws) -> Verdict:
    """The target draws y ~ p at every position; x is accepted while y = x, and the first other y is emitted instead.

    y wins a race, like every draw that is to be the same in passes of other shapes: rounding then matters only between the two
    best, while the cumulated sums of an inverse CDF carry it to every token. The draft of this rule draws with other numbers.
    """
    own = _race(target_probs, draws.race(target_probs.shape[-1]))
    n_accepted = _leading(own[:, :-1] == drafted)
    return Verdict(n_accepted, _at(own, n_accepted))


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
    next_token = _draw_residual(p_next, q_next, p_next, rejected, n_accepted, draws)
    return Verdict(n_accepted, next_token)


def propose_by_race(draft_probs: Tensor, draws: Draws) -> Tensor:
    """x = argmax q / E with the exponential noise E of the target's own race: x ~ q, as argmax(log q + Gumbel noise).

    Daliri, Musco, Suresh 2024 (arXiv 2408.07978): Gumbel coupling. With shared noise the two agree as often as p and q overlap,
    nearly.
    """
    return _race(draft_probs, draws.race(draft_probs.shape[-1])[:, :-1])


def judge_by_block(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor, draws: Draws) -> Verdict:
    """Block verification: the longest prefix whose own test passes is kept, so a lucky later token can save an earlier one.

    Sun et al. 2024 (arXiv 2403.10444), algorithm 2. With p₀ = 1 and pᵢ = min(1, pᵢ₋₁ · p(xᵢ)/q(xᵢ)), the prefix of length i
    passes with probability hᵢ = Rᵢ / (Rᵢ + 1 − pᵢ), Rᵢ = Σ (pᵢ·p − q)₊ at the next position, and h_γ = p_γ. After a prefix of
    length i < γ the next token is drawn from norm((pᵢ·p − q)₊).
    """
    n_drafted = drafted.shape[1]
    weight, passing = block_weights(target_probs, draft_probs, drafted)
    index = torch.arange(1, n_drafted + 1, device=drafted.device)
    n_accepted = (index * (draws.accept < passing)).amax(-1)
    p_next = _at(target_probs, n_accepted)
    rejected = n_accepted < n_drafted
    q_next = _at(draft_probs, n_accepted.clamp(max=n_drafted - 1)) * rejected[:, None]
    scale = torch.where(rejected, _at(weight, n_accepted), 1.0)
    return Verdict(n_accepted, _draw_residual(scale[:, None] * p_next, q_next, p_next, rejected, n_accepted, draws))


def judge_naively(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor, draws: Draws) -> Verdict:
    """Wrong on purpose: as `judge_by_ratio`, but the token after a rejection is drawn from p, as if nothing had been learned.

    The emitted law is then min(p, q) + (1 − Σ min(p, q))·p, which is p only where p = q or nothing is accepted.
    """
    verdict = judge_by_ratio(target_probs, draft_probs, drafted, draws)
    rejected = verdict.n_accepted < drafted.shape[1]
    uniforms = torch.where(rejected, _at(draws.residual, verdict.n_accepted), _at(draws.target, verdict.n_accepted))
    return Verdict(verdict.n_accepted, draw(_at(target_probs, verdict.n_accepted), uniforms))


def block_weights(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """The pᵢ (N, γ + 1), p₀ = 1, and hᵢ (N, γ), i ≥ 1, of block verification."""
    ratios = _of_tokens(target_probs[:, :-1], drafted) / _of_tokens(draft_probs, drafted)
    weights = [torch.ones_like(target_probs[:, 0, 0])]
    for ratio in ratios.unbind(1):
        # A q so small that the ratio overflows must not turn a weight of 0 into NaN.
        weights.append((weights[-1] * ratio.clamp(max=1e30)).clamp(max=1.0))
    weight = torch.stack(weights, dim=1)
    inner = weight[:, 1:-1, None]
    rest = (inner * target_probs[:, 1:-1] - draft_probs[:, 1:]).clamp_min(0.0).sum(-1)
    total = rest + 1 - weight[:, 1:-1]
    # 0/0 is p = q with full weight: what comes after is accepted for certain, so this prefix may pass as well.
    passing = torch.where(total > 0, rest / total.clamp_min(1e-30), 1.0)
    return weight, torch.cat([passing, weight[:, -1:]], dim=1)


def target_prob_of(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor) -> Tensor:
    """p(x): a drafted x is kept if an independent draw from p is x too."""
    return _of_tokens(target_probs[:, :-1], drafted)


def ratio_of(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor) -> Tensor:
    """min(1, p(x) / q(x))."""
    return (_of_tokens(target_probs[:, :-1], drafted) / _of_tokens(draft_probs, drafted)).clamp(max=1.0)


def coupled_agreement(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor) -> Tensor:
    """P(x wins both races) / q(x), the former being 1 / Σⱼ max(pⱼ/pₓ, qⱼ/qₓ)."""
    p, q = widest(target_probs[:, :-1]), widest(draft_probs)
    p_x, q_x = _of_tokens(p, drafted), _of_tokens(q, drafted)
    total = torch.maximum(p / p_x[..., None], q / q_x[..., None]).sum(-1)
    return torch.where(p_x > 0, 1 / (total * q_x), 0.0).clamp(max=1.0).to(target_probs.dtype)


def block_survival(target_probs: Tensor, draft_probs: Tensor, drafted: Tensor) -> Tensor:
    """P(the first i are kept | the whole drafted block) over that of the first i − 1: some prefix of length i or more passes."""
    _, passing = block_weights(target_probs, draft_probs, drafted)
    kept = 1 - (1 - passing).flip(-1).cumprod(-1).flip(-1)
    before = torch.cat([torch.ones_like(kept[:, :1]), kept[:, :-1]], dim=1)
    return torch.where(before > 0, kept / before.clamp_min(1e-30), 0.0)


def match_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Σ p·q: two independent draws agree."""
    return (target_probs * draft_probs).sum(-1)


def greedy_match_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """p(argmax q)."""
    return target_probs.gather(-1, draft_probs.argmax(-1, keepdim=True))[..., 0]


def speculative_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Σ min(p, q) = 1 − TV(p, q)."""
    return torch.minimum(target_probs, draft_probs).sum(-1)


def coupled_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Σᵢ 1 / Σⱼ max(pⱼ/pᵢ, qⱼ/qᵢ): both races have the same winner. In O(V log V).

    pⱼ/pᵢ is the larger one exactly where pⱼ/qⱼ ≥ pᵢ/qᵢ, so after sorting by p/q the inner sums are cumulated ones.
    """
    p, q = widest(target_probs), widest(draft_probs)
    order = (p / q.clamp_min(torch.finfo(q.dtype).tiny)).argsort(-1)
    p, q = p.gather(-1, order), q.gather(-1, order)
    p_above = p.flip(-1).cumsum(-1).flip(-1)
    q_below = q.cumsum(-1) - q
    shares = torch.where((p > 0) & (q > 0), 1 / (p_above / p + q_below / q), 0.0)
    return shares.sum(-1).to(target_probs.dtype)


def _race(probs: Tensor, noise: Tensor) -> Tensor:
    """The winners of exponential races: argmax probs / noise, (N, K, V) → (N, K)."""
    return (probs.to(noise.dtype) / noise).argmax(-1)


def _draw_residual(
    target_weight: Tensor, q_next: Tensor, p_next: Tensor, rejected: Tensor, n_accepted: Tensor, draws: Draws
) -> Tensor:
    """The token after the accepted ones: from norm((target_weight − q)₊) after a rejection, from p after a full block."""
    residual = (target_weight - q_next).clamp_min(0.0)
    # p = q up to rounding leaves nothing to draw from: then p itself is the limit.
    weights = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p_next)
    uniforms = torch.where(rejected, _at(draws.residual, n_accepted), _at(draws.target, n_accepted))
    return draw(weights, uniforms)


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
            joint=False,
            propose=propose_by_sampling,
            judge=judge_by_match,
            accept_probs=target_prob_of,
            acceptance=match_acceptance,
        ),
        Rule(
            key="greedy-match",
            label="greedy-match",
            summary="The draft proposes its most likely token x, the target samples y; x is kept if y = x, else y replaces it.",
            source="DFlash's PyTorch code until summer 2026, llama.cpp; the same law as the defaults of SGLang and vLLM",
            lossless=True,
            same_text=True,
            joint=False,
            propose=propose_greedily,
            judge=judge_by_match,
            accept_probs=target_prob_of,
            acceptance=greedy_match_acceptance,
        ),
        Rule(
            key="speculative",
            label="speculative",
            summary="The draft samples x; it is kept with probability min(1, p(x)/q(x)), else redrawn from norm((p − q)₊).",
            source="Leviathan et al. 2023, Chen et al. 2023; DFlash 0.1.0, Transformers, vLLM",
            lossless=True,
            same_text=False,
            joint=False,
            propose=propose_by_sampling,
            judge=judge_by_ratio,
            accept_probs=ratio_of,
            acceptance=speculative_acceptance,
        ),
        Rule(
            key="coupled",
            label="coupled",
            summary="Draft and target draw with the same random noise; x is kept if the target's own draw is x too.",
            source="Daliri, Musco and Suresh 2024",
            lossless=True,
            same_text=True,
            joint=False,
            propose=propose_by_race,
            judge=judge_by_match,
            accept_probs=coupled_agreement,
            acceptance=coupled_acceptance,
        ),
        Rule(
            key="block",
            label="block",
            summary="The draft samples x; the block is judged as a whole, and the longest prefix that passes is kept.",
            source="Sun et al. 2024, block verification",
            lossless=True,
            same_text=False,
            joint=True,
            propose=propose_by_sampling,
            judge=judge_by_block,
            accept_probs=block_survival,
            # At a position alone it is the ratio test; within a block it keeps at least as many tokens.
            acceptance=speculative_acceptance,
        ),
        Rule(
            key="naive",
            label="naive",
            summary="As speculative, but after a rejection the next token is drawn from p instead of the residual.",
            source="nobody on purpose; a common bug",
            lossless=False,
            same_text=False,
            joint=False,
            propose=propose_by_sampling,
            judge=judge_naively,
            accept_probs=ratio_of,
            acceptance=speculative_acceptance,
        ),
    )
}
