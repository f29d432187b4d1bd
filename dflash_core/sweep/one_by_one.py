"""Decodes requests one after another, with the face of the batched decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..blocks import Block, SamplingParams
from ..generate import Draft, iter_blocks


@dataclass(frozen=True, slots=True)
class Request:
    """One generation: arguments of `iter_blocks`."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    block_size: int
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()


def iter_rows(
    draft: Draft | None, target: Any, requests: Sequence[Request], *, rows: int = 8, record: bool = True, table_size: int = 0
) -> Iterator[tuple[int, Block]]:
    """Yields (index of the request, its next Block) until all are finished."""
    for index, request in enumerate(requests):
        blocks = iter_blocks(
            draft if request.block_size > 1 else None,
            target,
            torch.tensor([request.prompt_ids]),
            max_new_tokens=request.max_new_tokens,
            stop_token_ids=request.stop_token_ids,
            block_size=request.block_size,
            params=request.params,
            details=record,
            table_size=table_size,
        )
        yield from ((index, block) for block in blocks)
