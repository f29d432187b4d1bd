"""The one loop: draft a block of each row, verify them in one pass, keep a prefix of each, report what happened.

A row is one generation. Rows stand at different positions and keep prefixes of different lengths; each draws from its own
position-keyed randomness, so it gives the tokens that it gives alone, up to the rounding of passes of other shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .blocks import Block, FinishReason, SamplingParams, require
from .judged import judged_tokens
from .sampling import GREEDY_BELOW, Draws, Randomness, probabilities, stacked
from .stopwatch import Stopwatch
from .target import Target, as_target
from .verify import RULES, Rule, judge_by_match

if TYPE_CHECKING:
    from .generate import Draft


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to be made.

    block_size: B, anchor included: B − 1 tokens are drafted; 1 is plain decoding.
    max_new_tokens: cap on the new tokens. Generation also ends with (and includes) any of `stop_token_ids`.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    block_size: int
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()

    def check(self, draft: Draft | None, target: Target) -> None:
        """Raises ValueError for what cannot work with this pair."""
        n_prompt, block_size = len(self.prompt_ids), self.block_size
        require(n_prompt >= 1, "the prompt is empty: give at least one token")
        require(min(self.prompt_ids) >= 0, "the prompt has negative token ids")
        require(
            max(self.prompt_ids) < target.vocab_size,
            f"the prompt has token id {max(self.prompt_ids)}, but the target's vocabulary ends at {target.vocab_size - 1}: "
            "use the target's own tokenizer",
        )
        require(self.max_new_tokens >= 1, f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        require(block_size >= 1, f"block_size must be at least 1, not {block_size}")
        require(
            block_size == 1 or draft is not None,
            f"block_size {block_size} needs a draft model; without one use block_size 1",
        )
        # The last block may reach past the cap by B − 1 drafted tokens.
        needed = n_prompt + self.max_new_tokens + block_size - 1
        require(
            needed <= target.max_positions,
            f"prompt ({n_prompt} tokens) + max_new_tokens ({self.max_new_tokens}) + block ({block_size}) is {needed}, "
            f"more than the target's context of {target.max_positions}: shorten the prompt or ask for fewer tokens",
        )


_NOTHING = torch.empty(0)


def iter_rows(
    draft: Draft | None,
    target: Any,
    requests: Iterable[Request],
    *,
    rows: int = 8,
    record: bool = True,
    table_size: int = 0,
) -> Generator[tuple[int, Block], None, None]:
    """Makes many generations, up to `rows` of them in one batch; yields (index of the request, its next Block).

    A row whose generation ended takes the next of `requests`, which is drawn only then. A pass holds one block size: a request
    of another one waits until the rows at work are done, so put those of one block size side by side; and among them those of
    one prompt, since a prompt that comes several times in a row is prefilled once.
    With a pair that cannot batch (either side lacks `batches`) the requests are made one after the other.

    record: of the judged tokens' probabilities; `table_size` > 0 adds the most likely tokens of p and q.
    A block's draft, verify and other seconds are the pass's over the number of rows in it, so their sum over all blocks is the
    time spent in the loop, recording not included; what a block would have taken alone they do not say.
    Closing the iterator stops all. Raises ValueError for a request that cannot work, when it is drawn (`Request.check`).
    """
    require(rows >= 1, f"rows must be at least 1, not {rows}")
    require(table_size >= 0, f"table_size must be 0 or more, not {table_size}")
    target = as_target(target)
    if not getattr(target, "batches", False) or not (draft is None or getattr(draft, "batches", False)):
        rows = 1
    return generate_rows(
        draft, target, iter(requests), capacity=rows, record=record, table_size=min(table_size, target.vocab_size)
    )


@dataclass(slots=True)
class _Row:
    """A request at work: where it stands between two passes."""

    index: int
    request: Request
    law: SamplingParams  # how it draws, but for the seed
    randomness: Randomness
    start: int  # absolute position of the anchor
    anchor: int
    remaining: int
    n_blocks: int = 0
    features: Tensor = _NOTHING  # (1, n, k·D) of what was committed last: the draft has not seen them yet

    @classmethod
    def of(cls, index: int, request: Request, device: torch.device) -> _Row:
        prompt, law = request.prompt_ids, dataclasses.replace(request.params, seed=0)
        randomness = Randomness(request.params.seed, device)
        return cls(index, request, law, randomness, len(prompt) - 1, prompt[-1], request.max_new_tokens)

    def take(self, n_accepted: int, next_token: int, drafted: tuple[int, ...]) -> Block:
        """The output grows, cut at a stop token or at the cap. The block says nothing yet of its probabilities and time."""
        emitted, finish_reason = _cut([*drafted[:n_accepted], next_token], self.remaining, self.request.stop_token_ids)
        block = Block(
            index=self.n_blocks,
            start=self.start,
            anchor=self.anchor,
            drafted=drafted,
            n_accepted=n_accepted,
            next_token=next_token,
            next_kind="resampled" if n_accepted < len(drafted) else "bonus",
            emitted=emitted,
            finish_reason=finish_reason,
        )
        self.n_blocks += 1
        self.start += len(emitted)
        self.anchor = emitted[-1]
        self.remaining -= len(emitted)
        return block


@torch.inference_mode()
def generate_rows(
    draft: Draft | None, target: Target, requests: Iterator[Request], *, capacity: int, record: bool, table_size: int
) -> Generator[tuple[int, Block], None, None]:
    """The loop itself, over checked arguments; `iter_rows` and `generate.iter_blocks` say what they mean."""
    device = target.device
    waiting = enumerate(requests)
    upcoming: tuple[int, Request] | None = None
    at_work: list[_Row] = []  # at_work[i] has row i of the caches
    target_cache: Any = None
    draft_cache: Any = None
    known: tuple[Any, ...] = ()  # the last prompt, and what its prefill gave: it is often the next one too
    while True:
        if upcoming is None and len(at_work) < capacity:
            upcoming = next(waiting, None)
            if upcoming is not None:
                upcoming[1].check(draft, target)

        # A pass is the prefill of a new row, its block 0: the prompt is scored in place of a block, and nothing is drafted. Or it
        # is one block of every row at work.
        watch = Stopwatch(device)
        is_prefill = upcoming is not None and (not at_work or upcoming[1].block_size == at_work[0].request.block_size)
        if is_prefill and upcoming is not None:
            rows, upcoming = [_Row.of(*upcoming, device)], None
            pending = torch.tensor([rows[0].request.prompt_ids], device=device)
            cache = target.new_cache()
        elif at_work:
            rows, cache = list(at_work), target_cache
            pending = torch.tensor([[row.anchor] for row in rows], device=device)
        else:
            return
        block_size = rows[0].request.block_size
        n_drafted = 0 if is_prefill else block_size - 1
        groups = _groups(rows, n_drafted)

        # 1 draft: anchors and masks, with the features of what was committed last → q (R, γ, V) and γ ids, in one pass
        if draft and n_drafted:
            context = torch.cat([row.features for row in rows], dim=1) if len(rows) > 1 else rows[0].features
            ragged: dict[str, Any] = {"n_new": [row.features.shape[1] for row in rows]} if len(rows) > 1 else {}
            draft_logits = draft.propose(draft_cache, context, pending, block_size, target.embed, target.head, **ragged)
            watch.lap("draft")
            for group in groups:
                group.propose(draft_logits)
            drafted = groups[0].drafted
            if len(groups) > 1:
                drafted = pending.new_empty((len(rows), n_drafted))
                for group in groups:
                    drafted[group.members] = group.drafted  # on a GPU this waits, as the list becomes a tensor there
            pending = torch.cat([pending, drafted], dim=1)
            watch.lap("other")

        # 2 verify: one target pass over anchors + drafts → p (R, γ + 1, V) and features
        taps = draft.target_layer_ids if draft and block_size > 1 else []
        key = rows[0].request.prompt_ids, taps
        if is_prefill and known and known[0] == key:
            _, cache, logits, features = known
        else:
            logits, features = target.forward(pending, cache, taps=taps, last_only=is_prefill)
            if is_prefill and capacity > 1:  # a single row goes on in the prompt's own cache
                known = key, cache, logits, features
        watch.lap("verify")

        # 3 accept: which drafts stay, and the target's own token after them. The pass's one synchronisation
        verdicts = torch.cat([group.judge(logits) for group in groups]).tolist()

        # 4 commit: each output grows, and the caches keep what came before its last token
        order = [i for group in groups for i in group.members]
        blocks = {i: rows[i].take(n_kept, token, tuple(ids)) for i, (n_kept, token, *ids) in zip(order, verdicts, strict=True)}
        target.roll_back(cache, *[row.start for row in rows])
        # Of the scored tokens those up to the cache's new end are committed; the draft takes them as context next time.
        n_before = pending.shape[1] - (n_drafted + 1)
        for i, row in enumerate(rows):
            row.features = features[i : i + 1, : n_before + len(blocks[i].emitted)]
        if is_prefill and not blocks[0].finish_reason:
            target_cache = _seated(target, target_cache, cache, len(at_work), capacity)
            if draft and block_size > 1:
                draft_cache = _seated(draft, draft_cache, draft.new_cache(), len(at_work), capacity)
            at_work += rows
        for i in reversed(range(0 if is_prefill else len(rows))):
            if blocks[i].finish_reason:  # the last row moves to its place
                last = at_work.pop()
                if i < len(at_work):
                    at_work[i] = last
                    target_cache.put(i, target_cache, len(at_work))
                    if block_size > 1:
                        draft_cache.put(i, draft_cache, len(at_work))
        watch.lap("other")

        # 5 report; what only the instrument needs is left out of the blocks' time
        shared: dict[str, Any] = {part: value / len(rows) for part, value in watch.seconds().items()}
        recorded: dict[int, dict[str, Any]] = {}
        for group in groups if record else ():
            decided = [blocks[i] for i in group.members]
            details = judged_tokens(group.rule, group.target_probs, group.draft_probs, group.drafted, decided, table_size)
            for i, (judged, next_prob) in zip(group.members, details, strict=True):
                recorded[i] = {"judged": judged, "next_target_prob": next_prob}
        for i, row in enumerate(rows):
            yield row.index, dataclasses.replace(blocks[i], **shared, **recorded.get(i, {}))


@dataclass(slots=True)
class _Group:
    """The N rows of a pass that draw alike, but for the seed: they are drawn and judged together."""

    law: SamplingParams
    members: list[int]  # their places in the pass
    draws: Draws
    drafted: Tensor = _NOTHING  # (N, γ)
    draft_probs: Tensor = _NOTHING  # (N, γ, V)
    target_probs: Tensor = _NOTHING  # (N, γ + 1, V)

    @property
    def rule(self) -> Rule:
        return RULES[self.law.rule]

    def propose(self, draft_logits: Tensor) -> None:
        """Draws the drafted tokens from the logits (R, γ, V) of all rows of the pass."""
        self.draft_probs = self._probabilities(draft_logits, self.law.effective_draft_temperature)
        self.drafted = self.rule.propose(self.draft_probs, self.draws)

    def judge(self, logits: Tensor) -> Tensor:
        """The verdicts (N, 2 + γ), from the target's logits (R, γ + 1, V): n_accepted, next_token and the drafted ids."""
        self.target_probs = self._probabilities(logits, self.law.temperature)
        judge = self.rule.judge
        if self.target_probs.shape[1] == 1:
            self.draft_probs = self.target_probs[:, :0]
            self.drafted = torch.empty((len(self.members), 0), dtype=torch.long, device=logits.device)
            # With nothing drafted every rule is one draw from p; the same-text rules make it in their own way.
            judge = judge if self.rule.same_text else judge_by_match
        verdict = judge(self.target_probs, self.draft_probs, self.drafted, self.draws)
        return torch.cat([verdict.n_accepted[:, None], verdict.next_token[:, None], self.drafted], dim=1)

    def _probabilities(self, logits: Tensor, temperature: float) -> Tensor:
        own = logits if len(self.members) == len(logits) else logits[self.members]
        return probabilities(own, temperature=temperature, top_p=self.law.top_p, top_k=self.law.top_k)


def _groups(rows: list[_Row], n_drafted: int) -> list[_Group]:
    alike: dict[SamplingParams, list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault(row.law, []).append(i)
    groups = []
    for law, members in alike.items():
        fresh, greedy = RULES[law.rule].joint, max(law.temperature, law.effective_draft_temperature) < GREEDY_BELOW
        draws = [rows[i].randomness.draws(rows[i].start, n_drafted, fresh=fresh, greedy=greedy) for i in members]
        groups.append(_Group(law, members, stacked(draws)))
    return groups


def _seated(model: Any, cache: Any, one: Any, row: int, capacity: int) -> Any:
    """The cache of all rows, in which a new row now has what its own cache has. A single row's own cache will do."""
    if capacity == 1:
        return one
    cache = cache or model.new_cache(capacity)
    cache.put(row, one)
    return cache


def _cut(candidates: list[int], remaining: int, stop_token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
    """What of the candidates is emitted, and whether that ends the generation: at the first stop token, or at the cap."""
    for n, token in enumerate(candidates[:remaining], start=1):
        if token in stop_token_ids:
            return tuple(candidates[:n]), "stop"
    if len(candidates) >= remaining:
        return tuple(candidates[:remaining]), "length"
    return tuple(candidates), None
