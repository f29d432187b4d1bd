"""The one loop: draft a block, verify it, keep a prefix, report what happened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from itertools import count, islice
from typing import Any, Protocol

import torch
from torch import Tensor

from .blocks import Block, FinishReason, Generation, JudgedToken, SamplingParams, require
from .sampling import GREEDY_BELOW, Randomness, entropy, probabilities, widest
from .stopwatch import Stopwatch
from .target import Target, as_target
from .verify import RULES, Rule, Verdict, judge_by_match


class Draft(Protocol):
    """What the loop needs of a draft."""

    block_size: int
    target_layer_ids: list[int]

    def new_cache(self) -> Any:
        """An empty context cache for one run."""

    def propose(
        self,
        cache: Any,
        target_features: Tensor,
        anchor: Tensor,
        block_size: int,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Logits (1, B − 1, V) for the positions after the anchor, in one pass.

        target_features: (1, n, k·D), of the positions committed since the last call, the anchor's not included.
        anchor: (1, 1) id of the last known token. embed, head: the target's.
        """


def iter_blocks(
    draft: Draft | None,
    target: Any,
    input_ids: Tensor,
    *,
    max_new_tokens: int,
    stop_token_ids: Collection[int] = (),
    block_size: int | None = None,
    params: SamplingParams | None = None,
    details: bool = True,
    table_size: int = 0,
) -> Generator[Block, None, None]:
    """Generates after the prompt and yields one Block for each target pass. Close the iterator to stop.

    draft: None only with block_size 1, which is plain decoding and never touches the draft.
    target: a transformers causal language model, or any `Target`.
    input_ids: (1, L) prompt, L ≥ 1.
    max_new_tokens: cap on the new tokens, at least 1. Generation also ends with (and includes) any of `stop_token_ids`.
    block_size: B, anchor included: B − 1 tokens are drafted. None: the draft's trained size.
    details: record the judged tokens' probabilities; `table_size` > 0 adds the most likely tokens of p and q.

    Raises ValueError, before the first pass, for what cannot work.
    """
    target = as_target(target)
    params = params or SamplingParams()
    if block_size is None:
        block_size = draft.block_size if draft is not None else 1
    require(
        input_ids.ndim == 2 and input_ids.shape[0] == 1,
        f"input_ids must have shape (1, L), not {tuple(input_ids.shape)}",
    )
    require(input_ids.shape[1] >= 1, "the prompt is empty: give at least one token")
    require(int(input_ids.min()) >= 0, "the prompt has negative token ids")
    require(
        int(input_ids.max()) < target.vocab_size,
        f"the prompt has token id {int(input_ids.max())}, but the target's vocabulary ends at {target.vocab_size - 1}: "
        "use the target's own tokenizer",
    )
    require(max_new_tokens >= 1, f"max_new_tokens must be at least 1, not {max_new_tokens}")
    require(block_size >= 1, f"block_size must be at least 1, not {block_size}")
    require(
        block_size == 1 or draft is not None,
        f"block_size {block_size} needs a draft model; without one use block_size 1",
    )
    # The last block may reach past the cap by B − 1 drafted tokens.
    needed = input_ids.shape[1] + max_new_tokens + block_size - 1
    require(
        needed <= target.max_positions,
        f"prompt ({input_ids.shape[1]} tokens) + max_new_tokens ({max_new_tokens}) + block ({block_size}) is {needed}, "
        f"more than the target's context of {target.max_positions}: shorten the prompt or ask for fewer tokens",
    )
    require(table_size >= 0, f"table_size must be 0 or more, not {table_size}")
    return _blocks(
        draft if block_size > 1 else None,
        target,
        input_ids.to(target.device),
        max_new_tokens=max_new_tokens,
        stop_token_ids=frozenset(stop_token_ids),
        block_size=block_size,
        params=params,
        details=details,
        table_size=min(table_size, target.vocab_size),
    )


@torch.inference_mode()
def _blocks(
    draft: Draft | None,
    target: Target,
    input_ids: Tensor,
    *,
    max_new_tokens: int,
    stop_token_ids: frozenset[int],
    block_size: int,
    params: SamplingParams,
    details: bool,
    table_size: int,
) -> Generator[Block, None, None]:
    taps = draft.target_layer_ids if draft else []
    randomness = Randomness(params.seed, target.device)
    target_cache = target.new_cache()
    draft_cache = draft.new_cache() if draft else None
    start = input_ids.shape[1] - 1
    remaining = max_new_tokens
    rule = RULES[params.rule]
    greedy = max(params.temperature, params.effective_draft_temperature) < GREEDY_BELOW

    # Block 0 is the prefill: the prompt is scored in place of a block, and nothing is drafted.
    pending = input_ids
    anchor = input_ids[:, -1:]
    anchor_id = int(anchor)
    features = logits = input_ids.new_empty(0)
    for index in count():
        watch = Stopwatch(target.device)
        n_drafted = block_size - 1 if draft and index else 0
        draws = randomness.draws(start, n_drafted, fresh=rule.joint, greedy=greedy)

        # 1 draft: anchor and masks, with the features of what was committed last → q (1, γ, V) and γ ids, in one pass
        drafted = input_ids.new_empty((1, 0))
        draft_probs = None
        if draft and n_drafted:
            draft_logits = draft.propose(draft_cache, features, anchor, block_size, target.embed, target.head)
            watch.lap("draft")
            draft_probs = probabilities(
                draft_logits, temperature=params.effective_draft_temperature, top_p=params.top_p, top_k=params.top_k
            )
            drafted = rule.propose(draft_probs, draws)
            pending = torch.cat([anchor, drafted], dim=1)
            watch.lap("other")

        # 2 verify: one target pass over anchor + drafts → p (1, γ + 1, V) and features
        logits, features = target.forward(pending, target_cache, taps=taps, last_only=index == 0)
        watch.lap("verify")

        # 3 accept: which drafts stay, and the target's own token after them
        target_probs = probabilities(logits, temperature=params.temperature, top_p=params.top_p, top_k=params.top_k)
        if draft_probs is None:
            draft_probs = target_probs[:, :0]
        # With nothing drafted every rule is one draw from p; the same-text rules make it in their own way.
        judge = rule.judge if n_drafted or rule.same_text else judge_by_match
        verdict = judge(target_probs, draft_probs, drafted, draws)
        n_accepted, next_token, drafted_ids = _to_host(verdict, drafted)

        # 4 commit: the output grows, cut at a stop token or the cap; both caches keep what came before its last token
        emitted, finish_reason = _cut([*drafted_ids[:n_accepted], next_token], remaining, stop_token_ids)
        n_scored = pending.shape[1]
        block_start, start = start, start + len(emitted)
        remaining -= len(emitted)
        target.roll_back(target_cache, start)
        # Of the scored rows, those up to the cache's new end are committed; the draft takes them as context next time.
        features = features[:, : n_scored - (n_drafted + 1) + len(emitted)]
        watch.lap("other")

        # 5 report; what only the instrument needs is left out of the block's time
        judged: tuple[JudgedToken, ...] = ()
        next_prob = None
        if details:
            judged, next_prob = _details(rule, target_probs, draft_probs, drafted, n_accepted, next_token, table_size)
        yield Block(
            index=index,
            start=block_start,
            anchor=anchor_id,
            drafted=drafted_ids,
            n_accepted=n_accepted,
            next_token=next_token,
            next_kind="resampled" if n_accepted < n_drafted else "bonus",
            emitted=emitted,
            finish_reason=finish_reason,
            judged=judged,
            next_target_prob=next_prob,
            **watch.seconds(),
        )
        if finish_reason:
            return
        anchor_id = emitted[-1]
        anchor = pending = torch.tensor([[anchor_id]], device=target.device)


def dflash_generate(
    draft: Draft | None,
    target: Any,
    input_ids: Tensor,
    *,
    max_new_tokens: int,
    stop_token_ids: Collection[int] | None = None,
    temperature: float = 0.0,
    block_size: int | None = None,
    seed: int | None = None,
    rule: str = "match",
    top_p: float = 1.0,
    top_k: int = 0,
    draft_temperature: float | None = None,
    on_block: Callable[[Block], None] | None = None,
    table_size: int = 0,
) -> Generation:
    """Generates to the end and returns the Generation; arguments as in `iter_blocks` and `SamplingParams`.

    on_block sees each block after it was decided and cannot change it; without it (and with table_size 0) nothing is
    recorded beyond the tokens. seed: None draws one from torch's global random state.
    """
    if seed is None:
        seed = int(torch.randint(2**63 - 1, (1,)))
    target = as_target(target)
    if block_size is None:
        block_size = draft.block_size if draft is not None else 1
    params = SamplingParams(temperature, top_p, top_k, draft_temperature, rule, seed)
    blocks = []
    for block in iter_blocks(
        draft,
        target,
        input_ids,
        max_new_tokens=max_new_tokens,
        stop_token_ids=stop_token_ids or (),
        block_size=block_size,
        params=params,
        details=on_block is not None or table_size > 0,
        table_size=table_size,
    ):
        blocks.append(block)
        if on_block is not None:
            on_block(block)
    return Generation(tuple(input_ids[0].tolist()), params, block_size, tuple(blocks))


def accept_uniforms(params: SamplingParams, block: Block) -> tuple[float, ...] | None:
    """The uniform number of each drafted token of a block, made again from the seed; None under a rule that decides without.

    Where the same-text rules compare two draws, the others keep a token if its number lies below a probability.
    """
    rule = RULES[params.rule]
    if rule.same_text or not block.drafted:
        return None
    draws = Randomness(params.seed, torch.device("cpu")).draws(block.start, len(block.drafted), fresh=rule.joint)
    return tuple(draws.accept[0].tolist())


def _to_host(verdict: Verdict, drafted: Tensor) -> tuple[int, int, tuple[int, ...]]:
    """(n_accepted, next_token, drafted ids), brought to the host with the block's one synchronisation."""
    values = torch.cat([verdict.n_accepted, verdict.next_token, drafted[0]]).tolist()
    return values[0], values[1], tuple(values[2:])


def _details(
    rule: Rule, target_probs: Tensor, draft_probs: Tensor, drafted: Tensor, n_accepted: int, next_token: int, table_size: int
) -> tuple[tuple[JudgedToken, ...], float]:
    """What is recorded of the judged positions, and p(next_token). A second synchronisation, but only where details are asked
    for; and the work over the vocabulary is that of the judged positions."""
    n_judged = min(n_accepted + 1, drafted.shape[1])
    n_needed = drafted.shape[1] if rule.joint else n_judged  # a joint verdict depends on the whole block
    accept = rule.accept_probs(target_probs[:, : n_needed + 1], draft_probs[:, :n_needed], drafted[:, :n_needed])[0, :n_judged]
    p, q, x = target_probs[0, :n_judged], draft_probs[0, :n_judged], drafted[0, :n_judged, None]
    top = torch.maximum(p, q).topk(table_size, dim=-1).indices
    numbers = torch.stack([p.gather(1, x)[:, 0], q.gather(1, x)[:, 0], accept, entropy(p), entropy(q)], dim=1)
    tables = torch.stack([widest(top), widest(p.gather(1, top)), widest(q.gather(1, top))], dim=2)
    next_prob = target_probs[0, n_accepted, next_token]
    flat = torch.cat([widest(next_prob[None]), widest(numbers).flatten(), tables.flatten()]).tolist()
    values = iter(flat[1:])
    rows = [list(islice(values, 5)) for _ in range(n_judged)]
    judged = []
    for p_x, q_x, accept_x, p_entropy, q_entropy in rows:
        entries = (list(islice(values, 3)) for _ in range(table_size))
        table = tuple((int(token), p_token, q_token) for token, p_token, q_token in entries)
        judged.append(JudgedToken(p_x, q_x, accept_x, p_entropy, q_entropy, table))
    return tuple(judged), flat[0]


def _cut(candidates: list[int], remaining: int, stop_token_ids: frozenset[int]) -> tuple[tuple[int, ...], FinishReason | None]:
    """What of the candidates is emitted, and whether that ends the generation: at the first stop token, or at the cap."""
    for n, token in enumerate(candidates[:remaining], start=1):
        if token in stop_token_ids:
            return tuple(candidates[:n]), "stop"
    if len(candidates) >= remaining:
        return tuple(candidates[:remaining]), "length"
    return tuple(candidates), None
