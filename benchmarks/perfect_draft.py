"""What a perfect draft of DFlash's kind could reach on the embedded target: `python benchmarks/perfect_draft.py`.

No draft takes part. A block's tokens are drafted in one pass, so position k is guessed without knowing what positions 1 … k − 1
became: by qₖ = E[p(· | context, x₁ … xₖ₋₁)], the target's own distribution averaged over its own continuations, which is the
best guess by cross-entropy (not always that of the largest overlap: a colder one can have more). The average is over `--paths`
continuations x ~ p of each context, the one that is judged left out. Then τ = 1 + Σₖ survival, where survival at k is the mean
over the paths of Πⱼ≤ₖ min(1, qⱼ(xⱼ)/pⱼ(xⱼ)) under `speculative`, of Πⱼ≤ₖ qⱼ(xⱼ) under `match`, and the share of paths with xⱼ =
argmax qⱼ for all j ≤ k under `greedy-match`. Contexts end at random anchors in responses to the 48 held-out prompts, drawn at
the same temperature; what comes after a stop token counts as lost. Intervals: studentised bootstrap over prompts.

At temperature 0 there is no such limit: the text is determined, and a draft as able as the target could guess all of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from dflash_core.decoder import Decoder
from dflash_core.intervals import cluster_interval, ratio
from dflash_core.pairs import load_pair
from dflash_core.sampling import draw, probabilities
from dflash_core.training.arguments import number, whole
from dflash_core.training.decode_rows import Request, decode_rows
from dflash_core.training.evaluate import PROMPTS

RULES = ("speculative", "match", "greedy-match")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperatures", type=number(0.01), nargs="+", default=[0.3, 0.7, 1.0, 1.5])
    parser.add_argument("--block-size", type=whole(2), default=8)
    parser.add_argument("--anchors", type=whole(1), default=2, help="in each response")
    parser.add_argument("--paths", type=whole(2), default=128, help="continuations of each context")
    parser.add_argument("--tokens", type=whole(2), default=48, help="of a response")
    options = parser.parse_args()
    pair = load_pair("embedded")
    target: Any = pair.target
    decoder: Decoder = target.decoder
    prompts = [pair.encode(text)[0].tolist() for some in json.loads(PROMPTS.read_text()).values() for text in some]
    generator = torch.Generator().manual_seed(0)
    print(f"B = {options.block_size}, {len(prompts)} prompts, {options.anchors} contexts each, {options.paths} paths\n")
    print("| T | " + " | ".join(f"τ, {rule}" for rule in RULES) + " | survival at 1, 2, 3 under speculative |")
    print("|--:|" + "--:|" * len(RULES) + ":--|")
    for temperature in options.temperatures:
        requests = [Request(prompt, [temperature], options.tokens) for prompt in prompts]
        stops = pair.stop_token_ids
        texts = decode_rows(decoder, requests, rows=len(requests), stop_token_ids=stops, generator=generator, taps=())
        found = []  # (prompts, rules, B − 1)
        for text in tqdm(list(texts), unit="prompt", leave=False):
            room = len(text.token_ids) - text.prompt_length
            anchors = text.prompt_length + torch.randint(room, (options.anchors,), generator=generator)
            contexts = [text.token_ids[: int(anchor) + 1] for anchor in anchors if int(text.token_ids[anchor]) not in stops]
            if contexts:
                survivals = [survival(decoder, context, temperature, stops, options, generator) for context in contexts]
                found.append(torch.stack(survivals).mean(0).numpy())
        cells = []
        for i in range(len(RULES)):
            sums = np.array([[1 + one[i].sum(), 1] for one in found], dtype=float)
            tau, low, high = cluster_interval(sums, ratio)
            cells.append(f"{tau:.2f}" + ("" if low is None else f" ({low:.2f} – {high:.2f})"))
        early = ", ".join(f"{value:.2f}" for value in np.mean(found, axis=0)[0, :3])
        print(f"| {temperature:g} | {' | '.join(cells)} | {early} |", flush=True)


def survival(
    decoder: Decoder,
    context: Tensor,
    temperature: float,
    stops: tuple[int, ...],
    options: argparse.Namespace,
    draws: torch.Generator,
) -> Tensor:
    """(rules, B − 1): how often a perfect draft's block gets past each position after this context (L,)."""
    one = decoder.new_cache(1, len(context) + options.block_size)
    hidden, _ = decoder.forward(context[None], one)
    cache = one.rows([0] * options.paths)
    logits = decoder.head(hidden[:, -1]).expand(options.paths, -1)
    survived = torch.ones(len(RULES), options.paths, dtype=torch.float64)
    means = []
    for _ in range(options.block_size - 1):
        p = probabilities(logits, temperature=temperature).double()
        q = (p.sum(0) - p) / (options.paths - 1)
        x = draw(p, torch.rand(options.paths, generator=draws, dtype=torch.float64))
        p_x, q_x = (some.gather(-1, x[:, None])[:, 0] for some in (p, q))
        survived *= torch.stack([(q_x / p_x).clamp(max=1), q_x, (x == q.argmax(-1)).double()])
        means.append(survived.mean(1))
        survived = survived * ~torch.isin(x, torch.tensor(stops))
        hidden, _ = decoder.forward(x[:, None], cache)
        logits = decoder.head(hidden[:, 0])
    return torch.stack(means, dim=1)


if __name__ == "__main__":
    main()
