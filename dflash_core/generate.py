"""One generation, block by block: the loop of rows.py with a single row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator
from typing import Any, Protocol

import torch
from torch import Tensor

from .blocks import Block, Generation, SamplingParams, require
from .rows import Request, generate_rows
from .sampling import Randomness
from .target import as_target
from .verify import RULES


class Draft(Protocol):
    """What the loop needs of a draft.

    One that also has `batches = True` drafts for R rows in one pass. Then new_cache takes the number of rows; its caches have
    `put(row, other, other_row=0)`, which makes a row a copy of one in another cache or the same; and propose takes anchors
    (R, 1) and, for R > 1, n_new: target_features (1, Σ n, k·D) are those of the rows side by side, n of each.
    """

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
    request = Request(tuple(input_ids[0].tolist()), params, block_size, max_new_tokens, tuple(stop_token_ids))
    request.check(draft, target)
    require(table_size >= 0, f"table_size must be 0 or more, not {table_size}")
    run = generate_rows(draft, target, iter([request]), capacity=1, record=details, table_size=min(table_size, target.vocab_size))
    return _blocks_of(run)


def _blocks_of(run: Generator[tuple[int, Block], None, None]) -> Generator[Block, None, None]:
    """The blocks of a run of one row."""
    with contextlib.closing(run):
        for _, block in run:
            yield block


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
