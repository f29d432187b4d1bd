"""Cost of a block against context length and vocabulary: `python benchmarks/scale.py`.

Context: the embedded pair's draft and verification pass behind a context of random tokens, the lengths taking turns. Vocabulary:
what comes after the two passes (probabilities, the draws and the rule), on random logits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from dflash_core.pairs import load_pair
from dflash_core.sampling import Randomness, probabilities
from dflash_core.verify import RULES


def medians(arms: dict[Any, Callable[[int], object]], rounds: int) -> dict[Any, float]:
    """Median milliseconds of each arm, the arms taking turns. An arm gets the number of its round."""
    times: dict[Any, list[float]] = {name: [] for name in arms}
    for i in range(rounds + 1):
        for name, arm in arms.items():
            begun = time.perf_counter()
            arm(i)
            times[name].append(1000 * (time.perf_counter() - begun))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


@torch.inference_mode()
def by_context(lengths: list[int], block_size: int, rounds: int) -> None:
    pair: Any = load_pair("embedded")
    target, draft = pair.target, pair.draft
    verify: dict[Any, Callable[[int], object]] = {}
    propose: dict[Any, Callable[[int], object]] = {}
    sizes = {}
    for length in lengths:
        ids = torch.randint(20, 40_000, (1, length + block_size), generator=torch.Generator().manual_seed(0))
        cache, draft_cache = target.new_cache(), draft.new_cache()
        _, features = target.forward(ids[:, :length], cache, taps=draft.target_layer_ids, last_only=True)
        draft.propose(draft_cache, features[:, :-2], ids[:, :1], block_size, target.embed, target.head)

        def one_pass(_: int, cache: Any = cache, ids: Any = ids, length: int = length) -> None:
            target.forward(ids[:, length:], cache, taps=draft.target_layer_ids, last_only=False)
            target.roll_back(cache, length)

        def one_draft(_: int, cache: Any = draft_cache, ids: Any = ids, features: Any = features) -> None:
            draft.propose(cache, features[:, -2:], ids[:, :1], block_size, target.embed, target.head)
            cache.lengths[0] -= 2

        verify[length], propose[length] = one_pass, one_draft
        sizes[length] = sum(buffer[..., :length, :].numel() * buffer.element_size() for buffer in cache.buffers) // length
    verified, proposed = medians(verify, rounds), medians(propose, rounds)
    print(f"B = {block_size}, {torch.get_num_threads()} threads; keys and values: {sizes[lengths[0]]:,} bytes a token\n")
    print("| context | verify ms | draft ms | both, over the shortest |")
    print("|--------:|----------:|---------:|------------------------:|")
    for length in lengths:
        both = (verified[length] + proposed[length]) / (verified[lengths[0]] + proposed[lengths[0]])
        print(f"| {length:,} | {verified[length]:.1f} | {proposed[length]:.1f} | {both:.2f} |")


@torch.inference_mode()
def by_vocabulary(sizes: list[int], block_size: int, rounds: int, temperature: float) -> None:
    arms: dict[Any, Callable[[int], object]] = {}
    for size in sizes:
        generator = torch.Generator().manual_seed(0)
        target_logits = 3 * torch.randn(1, block_size, size, generator=generator)
        draft_logits = target_logits[:, :-1] + torch.randn(1, block_size - 1, size, generator=generator)
        for key, rule in RULES.items():
            randomness = Randomness(0, torch.device("cpu"))

            def judged(
                i: int, rule: Any = rule, p: Any = target_logits, q: Any = draft_logits, randomness: Any = randomness
            ) -> None:
                draws = randomness.draws(2 * i, block_size - 1, fresh=rule.joint)  # two tokens a block
                p, q = probabilities(p, temperature=temperature), probabilities(q, temperature=temperature)
                rule.judge(p, q, rule.propose(q, draws), draws)

            arms[key, size] = judged
    found = medians(arms, rounds)
    print("\n| rule | " + " | ".join(f"V = {size:,}, ms" for size in sizes) + " | ratio |")
    print("|:-----|" + "---:|" * (len(sizes) + 1))
    for key in RULES:
        cells = [found[key, size] for size in sizes]
        print(f"| {key} | " + " | ".join(f"{cell:.2f}" for cell in cells) + f" | {cells[-1] / cells[0]:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 200, 1000, 2000, 4000, 8000])
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[49_152, 151_936])
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    by_context(options.contexts, options.block_size, options.rounds)
    by_vocabulary(options.vocabularies, options.block_size, options.rounds, options.temperature)


if __name__ == "__main__":
    main()
