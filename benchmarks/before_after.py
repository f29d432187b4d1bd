"""Each optimisation of the CPU path alone, before → after: `python benchmarks/before_after.py`.

The two arms of a line take turns within a round; a line gives the median milliseconds of each, and the median over rounds of
before / after within a round, with quartiles. Whole passes are of the embedded pair behind a context of 200 tokens.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from torch import Tensor

from dflash_core import fast_linear
from dflash_core.kv_cache import KeyValueCache
from dflash_core.pairs import Pair, load_pair
from dflash_core.sampling import draw, probabilities
from dflash_ui.text import presets

CONTEXT = 200

Arm = Callable[[], object]
Line = tuple[str, Arm, Arm]


def lines() -> Iterator[Line]:
    """What is compared: a name, the arm before, the arm after."""
    packed = load_pair("embedded")
    library = load_pair("embedded", fast=False)
    with mock.patch.object(fast_linear, "can_pack", return_value=False):
        unpacked = load_pair("embedded")
    for n in (1, 4, 8):
        yield f"target, {n} tokens: transformers → own decoder, plain weights", a_pass(library, n), a_pass(unpacked, n)
    for n in (1, 4, 8):
        yield f"target, {n} tokens: plain weights → oneDNN's order", a_pass(unpacked, n), a_pass(packed, n)
    every, some = range(packed.target.num_layers), packed.draft.target_layer_ids
    yield "target, 4 tokens: all layers' states collected → the tapped ones", a_pass(packed, 4, every), a_pass(packed, 4, some)
    for n in (4, 8):
        yield f"draft, B = {n}: plain weights → oneDNN's order", a_draft(unpacked, n), a_draft(packed, n)
    words = packed.draft._words
    for n in (4, 8):
        yield f"draft, B = {n}: whole head → {len(words[0]):,} words", a_draft(packed, n, words=None), a_draft(packed, n)
    for length in (CONTEXT, 2000):
        again, once = a_draft(packed, 4, length, n_new=length), a_draft(packed, 4, length)
        yield f"draft, B = 4, context {length:,}: projected anew for each block → once a token", again, once
    for length in (CONTEXT, 2000):
        yield f"keys and values of 4 tokens, 30 layers, context {length:,}: concatenated → in place", *appending(length)
    logits = real_logits(packed, 8)
    yield "top-p 0.9 of 8 positions: whole sort → the likely ones first", lambda: sorted_nucleus(logits), lambda: nucleus(logits)
    probs, uniforms = logits.softmax(-1), torch.full((1, 8), 0.5, dtype=torch.float64)
    yield (
        "draws at 8 positions: all tokens cumulated → one stretch",
        lambda: whole_draw(probs, uniforms),
        lambda: draw(probs, uniforms),
    )


def a_pass(pair: Pair, n: int, taps: Any = None) -> Arm:
    """A verification pass over n tokens."""
    target: Any = pair.target
    taps = taps or pair.draft.target_layer_ids
    ids = torch.randint(20, 40_000, (1, CONTEXT + n), generator=torch.Generator().manual_seed(0))
    cache = target.new_cache()
    target.forward(ids[:, :CONTEXT], cache, taps=taps, last_only=True)

    def run() -> None:
        target.forward(ids[:, CONTEXT:], cache, taps=taps, last_only=False)
        target.roll_back(cache, CONTEXT)

    return run


def a_draft(pair: Pair, block_size: int, context: int = CONTEXT, n_new: int = 2, words: Any = ...) -> Arm:
    """A draft pass with n_new tokens of the context new since the last one."""
    draft: Any = pair.draft
    target = pair.target
    features = torch.randn(
        1, context, len(draft.target_layer_ids) * draft.config.hidden_size, generator=torch.Generator().manual_seed(0)
    )
    anchor, cache = torch.tensor([[20]]), draft.new_cache()
    draft.propose(cache, features, anchor, block_size, target.embed, target.head)
    words = draft._words if words is ... else words

    def run() -> None:
        cache.lengths[0] = context - n_new
        with mock.patch.object(draft, "_words", words):
            draft.propose(cache, features[:, :n_new], anchor, block_size, target.embed, target.head)

    return run


def appending(length: int) -> tuple[Arm, Arm]:
    new = torch.randn(1, 4, 3, 64)
    cache = KeyValueCache.empty(30, 1, 3, length + 4, 64, like=new)
    past = [(buffer[0, :, :, :length], buffer[1, :, :, :length]) for buffer in cache.buffers]

    def concatenated() -> None:
        for keys, values in past:
            torch.cat([keys, new.transpose(1, 2)], dim=2), torch.cat([values, new.transpose(1, 2)], dim=2)

    def in_place() -> None:
        for layer in range(30):
            cache.write(layer, new, new, slice(length, length + 4), rows=1, end=length + 4)

    return concatenated, in_place


def real_logits(pair: Pair, n: int) -> Tensor:
    """The target's (1, n, V) after the last n tokens of a preset, where it knows what it is talking about."""
    ids = pair.encode(next(iter(presets().values()))["prompt"])
    logits, _ = pair.target.forward(ids, pair.target.new_cache(), taps=(), last_only=False)
    return logits[:, -n:].clone()


def nucleus(logits: Tensor) -> Tensor:
    return probabilities(logits, temperature=1.0, top_p=0.9)


def sorted_nucleus(logits: Tensor) -> Tensor:
    probs = logits.softmax(-1)
    ordered, order = probs.sort(dim=-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered >= 0.9] = 0.0
    return torch.zeros_like(probs).scatter_(-1, order, ordered / ordered.sum(-1, keepdim=True))


def whole_draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    cumulated = probs.double().cumsum(-1)
    return torch.searchsorted(cumulated, uniforms[..., None] * cumulated[..., -1:], right=True)


def timed(arm: Arm) -> float:
    begun = time.perf_counter()
    arm()
    return 1000 * (time.perf_counter() - begun)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}"
    print(f"float32, {torch.get_num_threads()} threads, {versions}; {options.rounds} rounds\n")
    print("| optimisation | before, ms | after, ms | before / after (quartiles) |\n|:--|--:|--:|--:|")
    for name, before, after in lines():
        before(), after()
        times = [(timed(before), timed(after)) for _ in range(options.rounds)]
        low, middle, high = statistics.quantiles([b / a for b, a in times], n=4)
        medians = [statistics.median(arm) for arm in zip(*times, strict=True)]
        print(f"| {name} | {medians[0]:.2f} | {medians[1]:.2f} | {middle:.2f} ({low:.2f} – {high:.2f}) |", flush=True)


if __name__ == "__main__":
    main()
