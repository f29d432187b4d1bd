"""Plain decoding of many conversations at once: rows of one batch, each at its own position, refilled as they finish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..decoder import Decoder
from ..kv_cache import KeyValueCache
from ..sampling import GREEDY_BELOW, draw
from .data import Conversation


@dataclass(frozen=True, slots=True)
class Request:
    """One or more responses, a temperature each, to one prompt."""

    prompt_ids: Sequence[int]
    temperatures: Sequence[float]
    max_new_tokens: int


@dataclass(slots=True)
class _Row:
    request: Request
    temperature: float
    ids: list[int]  # of the prompt and the response

    def takes(self, token: int, stop_token_ids: Sequence[int]) -> bool:
        """Adds a token; whether that ends the response."""
        self.ids.append(token)
        return token in stop_token_ids or len(self.ids) >= len(self.request.prompt_ids) + self.request.max_new_tokens


@torch.inference_mode()
def decode_rows(
    decoder: Decoder,
    requests: Iterable[Request],
    *,
    rows: int,
    stop_token_ids: Sequence[int],
    generator: torch.Generator,
    taps: Sequence[int],
) -> Iterator[Conversation]:
    """Yields the conversations as they finish, with their states if there are taps.

    A response ends with a stop token (included) or at its cap. Its last token was never an input: its states are zero.
    """
    requests = list(requests)
    if not requests:
        return
    device, size = decoder.embedding.device, decoder.embedding.shape[1]
    capacity = max(len(r.prompt_ids) + r.max_new_tokens for r in requests)
    rows = min(rows, sum(len(r.temperatures) for r in requests))
    cache = decoder.new_cache(rows, capacity)
    states = torch.zeros(rows, capacity if taps else 0, len(taps) + 1, size, dtype=torch.bfloat16, device=device)
    next_ids = torch.zeros(rows, dtype=torch.long, device=device)
    active: list[_Row | None] = [None] * rows
    waiting = _prefilled(decoder, requests, taps)

    def finished(r: int, row: _Row) -> Conversation:
        active[r] = None
        if not taps:
            return Conversation(
                torch.tensor(row.ids), len(row.request.prompt_ids), row.temperature, torch.zeros(len(row.ids), 0, 0)
            )
        states[r, len(row.ids) - 1] = 0
        kept = states[r, : len(row.ids)].cpu().clone()
        return Conversation(torch.tensor(row.ids), len(row.request.prompt_ids), row.temperature, kept)

    while True:
        # 1 fill the free rows; the first token of a response comes from its prompt's prefill
        for r in range(rows):
            while active[r] is None and (found := next(waiting, None)):
                row, one, logits, prompt_states = found
                length = one.lengths[0]
                for mine, theirs in zip(cache.buffers, one.buffers, strict=True):
                    mine[:, r, :, :length] = theirs[:, 0, :, :length]
                cache.lengths[r] = length
                if taps:
                    states[r, :length] = prompt_states
                active[r] = row
                next_ids[r] = _sample(logits, torch.tensor([row.temperature], device=device), generator)[0]
                if row.takes(int(next_ids[r]), stop_token_ids):
                    yield finished(r, row)

        # 2 when nothing is left to fill them with, go on with the others alone
        keep = [r for r in range(rows) if active[r]]
        if not keep:
            return
        if 2 * len(keep) <= rows:
            cache, states, next_ids = cache.rows(keep), states[keep], next_ids[keep]
            active, rows = [active[r] for r in keep], len(keep)

        # 3 one step of all rows; the empty ones stay at the start
        cache.lengths = [length if row else 0 for length, row in zip(cache.lengths, active, strict=True)]
        before = torch.tensor(cache.lengths, device=device)
        hidden, tapped = decoder.forward(next_ids[:, None], cache, taps=taps)
        if taps:
            states[torch.arange(rows, device=device), before] = _states(tapped, hidden)[:, 0]
        temperatures = torch.tensor([row.temperature if row else 0.0 for row in active], device=device)
        next_ids = _sample(decoder.head(hidden[:, 0]), temperatures, generator)
        for r, (now, token) in enumerate(zip(list(active), next_ids.tolist(), strict=True)):
            if now and now.takes(token, stop_token_ids):
                yield finished(r, now)


def _prefilled(
    decoder: Decoder, requests: Sequence[Request], taps: Sequence[int]
) -> Iterator[tuple[_Row, KeyValueCache, Tensor, Tensor]]:
    """Each response to be, with its prompt's cache, next-token logits (1, V) and states: one prefill for all of a prompt."""
    for request in requests:
        one = decoder.new_cache(1, len(request.prompt_ids))
        ids = torch.tensor([request.prompt_ids], device=decoder.embedding.device)
        hidden, tapped = decoder.forward(ids, one, taps=taps)
        logits, states = decoder.head(hidden[:, -1]), _states(tapped, hidden)[0]
        for temperature in request.temperatures:
            yield _Row(request, temperature, list(request.prompt_ids)), one, logits, states


def _states(tapped: Sequence[Tensor], hidden: Tensor) -> Tensor:
    """What is kept of each position: (R, n, k + 1, D)."""
    return torch.stack([*tapped, hidden], dim=2).to(torch.bfloat16)


def _sample(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """One token for each row (R, V) at its temperature (R,)."""
    greedy = logits.argmax(-1)
    warm = temperatures >= GREEDY_BELOW
    if warm.any():
        probs = (logits[warm].float() / temperatures[warm, None]).softmax(-1)
        uniforms = torch.rand(len(probs), generator=generator, device=logits.device)
        greedy[warm] = draw(probs, uniforms)
    return greedy
