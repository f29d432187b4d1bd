"""From logits to probabilities to tokens, and the randomness of a run.

All randomness of the loop comes from `Randomness`: one seed gives independent streams, each indexed by absolute token
position and never consumed in loop order. So the same seed gives the same text on every run, and where the emitted token is
always the target's own draw, the same text for every block size and every draft.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

GREEDY_BELOW = 1e-5
STRETCH = 256  # tokens that a draw cumulates
NUCLEUS = 1024  # tokens among which top-p looks first


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers for N blocks with γ drafted tokens each, one independent stream for each purpose.

    target, residual: (N, γ + 1), draft, accept: (N, γ), uniform in [0, 1).
    race: makes, for a vocabulary of V, standard exponential numbers (N, γ + 1, V), with which the target draws its own tokens,
    and under `coupled` the draft too. They cost as much as a softmax, so only the rules that need them ask for them.
    """

    target: Tensor
    draft: Tensor
    accept: Tensor
    residual: Tensor
    race: Callable[[int], Tensor]


def stacked(draws: Sequence[Draws]) -> Draws:
    """The numbers of several blocks, one after the other, as those of all of them."""
    if len(draws) == 1:
        return draws[0]
    target, draft, accept, residual = (
        torch.cat([getattr(each, name) for each in draws]) for name in ("target", "draft", "accept", "residual")
    )
    race = functools.cache(lambda vocab_size: torch.cat([each.race(vocab_size) for each in draws]))
    return Draws(target, draft, accept, residual, race)


class Randomness:
    """The random numbers of a run, keyed by (seed, absolute position, stream).

    The generator is Philox 4×64 (Salmon et al. 2011), which turns a counter into four independent 64-bit words: the seed is
    its key, the position its counter, and each stream one of the words.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._races: dict[tuple[int, int, int], np.ndarray[Any, Any]] = {}

    def draws(self, start: int, n_drafted: int, *, fresh: bool = False, greedy: bool = False) -> Draws:
        """The numbers for one block with its anchor at `start` and γ = `n_drafted`; N = 1.

        fresh: key them by `start` too, so that a position drafted again in a later block gets new numbers.
        greedy: all distributions are one-hot, so no race needs noise: it is 1 for every token.
        """
        positions = n_drafted + 1
        block = start + 1 if fresh else 0
        words = self._philox(0, [start + 1, 0, block, 0]).random_raw(4 * positions)
        # As many of the upper bits as the device's floats hold exactly: fewer would round the tail of a large vocabulary away.
        wide = wide_dtype(self._device)
        bits = 53 if wide == torch.float64 else 24
        uniforms = (words.reshape(positions, 4) >> np.uint64(64 - bits)).astype(np.float64) * 2.0**-bits
        target, draft, accept, residual = torch.from_numpy(uniforms).to(wide).to(self._device).T[:, None]

        @functools.cache  # draft and target ask for the same numbers
        def race(vocab_size: int) -> Tensor:
            if greedy:
                return torch.ones(1, positions, 1, device=self._device)
            # Rows of positions that the last block had drafted already are kept: making them is most of the cost.
            keys = [(start + 1 + i, block, vocab_size) for i in range(positions)]
            self._races = {key: self._races[key] if key in self._races else self._race(*key) for key in keys}
            return torch.from_numpy(np.stack(list(self._races.values()))).to(self._device)[None]

        return Draws(target, draft[:, :-1], accept[:, :-1], residual, race)

    def _race(self, position: int, block: int, vocab_size: int) -> np.ndarray[Any, Any]:
        # The position is the counter's second word here: the first one counts through the vocabulary. Made in float64, whose
        # small values are fine enough for rare tokens, and kept in float32, which keeps their relative precision.
        generator = np.random.Generator(self._philox(1, [0, position, block, 0]))
        return generator.standard_exponential(vocab_size).astype(np.float32)

    def _philox(self, stream: int, counter: list[int]) -> np.random.Philox:
        return np.random.Philox(key=np.array([self._seed, stream], dtype=np.uint64), counter=counter)


def wide_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on mps, which has nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def widest(values: Tensor) -> Tensor:
    """The values in the widest float type of their device."""
    return values.to(wide_dtype(values.device))


def probabilities(logits: Tensor, *, temperature: float, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """The distribution that tokens are drawn from: softmax(logits / temperature), then top-k, then top-p.

    logits: (…, V), any float type, may contain −inf. Returns (…, V) in float32, each row summing to 1.
    Below a temperature of 1e-5 each row is one-hot at its argmax (the first, if there are several).
    top_k keeps the k largest; top_p keeps the smallest set of largest probabilities that reaches top_p.
    """
    if temperature < GREEDY_BELOW:
        return torch.zeros(logits.shape, dtype=torch.float32, device=logits.device).scatter_(
            -1, logits.argmax(-1, keepdim=True), 1.0
        )
    scores = logits.float()
    # The largest score is moved to 0 before the division: a tiny temperature must not overflow.
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    if 0 < top_k < scores.shape[-1]:
        kept, indices = scores.topk(top_k, dim=-1)
        probs = torch.zeros_like(scores).scatter_(-1, indices, kept.softmax(-1))
    else:
        probs = scores.softmax(-1)
    if top_p < 1.0:
        # The set is small nearly always: then the most likely tokens will do, and the vocabulary need not be sorted.
        ordered, order = probs.topk(min(NUCLEUS, probs.shape[-1]), dim=-1)
        if bool((ordered.sum(-1) < top_p).any()):
            ordered, order = probs.sort(dim=-1, descending=True)
        ordered[ordered.cumsum(-1) - ordered >= top_p] = 0.0
        probs = torch.zeros_like(probs).scatter_(-1, order, ordered / ordered.sum(-1, keepdim=True))
    return probs


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF draws: the first token whose cumulated weight exceeds uniform × total.

    probs: (…, V) weights of 0 or more, each row with a positive sum. uniforms: (…) in [0, 1). Returns ids (…).
    Never returns a token of weight 0.
    """
    # In two steps, so that only one stretch of the vocabulary is cumulated: first which stretch, then which token of it. In wide
    # floats, since float32 would round the tail of a large vocabulary away.
    padding = -probs.shape[-1] % STRETCH
    stretches = torch.nn.functional.pad(probs, (0, padding)).unflatten(-1, (-1, STRETCH))
    upto = stretches.sum(-1, dtype=wide_dtype(probs.device)).cumsum(-1)
    stretch = torch.searchsorted(upto, _below(widest(uniforms)[..., None] * upto[..., -1:], upto[..., -1:]), right=True)
    before = torch.where(stretch > 0, upto.gather(-1, (stretch - 1).clamp_min(0)), 0.0)
    chosen = stretches.gather(-2, stretch[..., None].expand(*stretch.shape, STRETCH))[..., 0, :]
    cumulated = widest(chosen).cumsum(-1)
    threshold = _below(widest(uniforms)[..., None] * upto[..., -1:] - before, cumulated[..., -1:])
    return (stretch * STRETCH + torch.searchsorted(cumulated, threshold, right=True))[..., 0]


def _below(threshold: Tensor, total: Tensor) -> Tensor:
    """The threshold, or the largest number below the total: rounding must not lead behind the last token that has weight."""
    return torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))


def sample(logits: Tensor, temperature: float = 0.0, *, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """One draw for every row: `argmax` below a temperature of 1e-5, else from softmax(logits / temperature) in float32.

    logits: (…, V). Returns ids of shape (…). Uses torch's global random state.
    """
    if temperature < GREEDY_BELOW:
        return logits.argmax(-1)
    probs = probabilities(logits, temperature=temperature, top_p=top_p, top_k=top_k)
    return draw(probs, torch.rand(probs.shape[:-1], device=probs.device, dtype=wide_dtype(probs.device)))


def entropy(probs: Tensor) -> Tensor:
    """Shannon entropy in nats of each row of probs (…, V)."""
    return torch.special.entr(probs).sum(-1)
