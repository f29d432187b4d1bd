"""What a perfect draft of DFlash's kind could reach on the embedded target: `python benchmarks/perfect_draft.py`.

A block's tokens are drafted in one pass, so position k is guessed without knowing what positions 1 … k − 1
became: by qₖ = E[p(· | context, x₁ … xₖ₋₁)], the target's own distribution averaged over its own continuations, which is the
best guess by cross-entropy (not always that of the largest overlap: a colder one can have more). The average is over `--paths`
continuations x ~ p of each context, the one that is judged left out. Then τ = 1 + Σₖ survival, where survival at k is the mean
over the paths of Πⱼ≤ₖ min(1, qⱼ(xⱼ)/pⱼ(xⱼ)) under `speculative`, of Πⱼ≤ₖ qⱼ(xⱼ) under `match`, and the share of paths with xⱼ =
argmax qⱼ for all j ≤ k under `greedy-match`. Contexts end at random anchors in responses to the 48 held-out prompts, drawn at
the same temperature; what comes after a stop token counts as lost. Intervals: studentised bootstrap over prompts.

Beside it stands the embedded draft, at the same contexts and paths under `speculative`: with its q for qₖ. Its survival at 1 is
its overlap Σ min(p, q). In decoding it gains less, because there an anchor often stands where a guess has just failed.

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
from dflash_core.pairs import Pair, load_pair
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
    perfect = " | ".join(f"τ, {rule}" for rule in RULES)
    print(f"| T | {perfect} | survival at 1, 2, 3 under speculative | the embedded draft: τ, speculative | survival at 1, 2, 3 |")
    print("|--:|" + "--:|" * len(RULES) + ":--|--:|:--|")
    for temperature in options.temperatures:
        requests = [Request(prompt, [temperature], options.tokens) for prompt in prompts]
        stops = pair.stop_token_ids
        texts = decode_rows(decoder, requests, rows=len(requests), stop_token_ids=stops, generator=generator, taps=())
        found = []  # for each prompt (rules and the embedded draft, B − 1)
        for text in tqdm(list(texts), unit="prompt", leave=False):
            room = len(text.token_ids) - text.prompt_length
            anchors = text.prompt_length + torch.randint(room, (options.anchors,), generator=generator)
            contexts = [text.token_ids[: int(anchor) + 1] for anchor in anchors if int(text.token_ids[anchor]) not in stops]
            if contexts:
                survivals = []
                for context in contexts:
                    draft_probs = draft_probabilities(pair, context, temperature, options.block_size)
                    survivals.append(survival(decoder, context, draft_probs, temperature, stops, options, generator))
                found.append(torch.stack(survivals).mean(0).numpy())
        values = np.stack(found)
        taus = [shown(1 + values[:, i].sum(-1)) for i in range(len(RULES) + 1)]
        early = [", ".join(shown(values[:, i, k]) for k in range(min(3, options.block_size - 1))) for i in (0, -1)]
        print(f"| {temperature:g} | {' | '.join(taus[:-1])} | {early[0]} | {taus[-1]} | {early[1]} |", flush=True)


def shown(values: Any) -> str:
    """Mean and interval of one value a prompt."""
    mean, low, high = cluster_interval(np.stack([values, np.ones_like(values)], axis=1), ratio)
    return f"{mean:.2f}" + ("" if low is None else f" ({max(low, 0):.2f} – {high:.2f})")


def draft_probabilities(pair: Pair, context: Tensor, temperature: float, block_size: int) -> Tensor:
    """(B − 1, V): the pair's draft at the block whose anchor is the last token of this context (L,)."""
    target: Any = pair.target
    draft: Any = pair.draft
    before, anchor = context[None, :-1], context[None, -1:]
    _, features = target.forward(before, target.new_cache(), taps=draft.target_layer_ids, last_only=True)
    logits = draft.propose(draft.new_cache(), features, anchor, block_size, target.embed, target.head)
    return probabilities(logits[0], temperature=temperature).double()


def survival(
    decoder: Decoder,
    context: Tensor,
    draft_probs: Tensor,
    temperature: float,
    stops: tuple[int, ...],
    options: argparse.Namespace,
    draws: torch.Generator,
) -> Tensor:
    """How often a block gets past each position after this context (L,), as (rules + 1, B − 1): a perfect draft's under each of
    RULES, and last that of a draft with these `draft_probs` (B − 1, V) under `speculative`."""
    one = decoder.new_cache(1, len(context) + options.block_size)
    hidden, _ = decoder.forward(context[None], one)
    cache = one.rows([0] * options.paths)
    logits = decoder.head(hidden[:, -1]).expand(options.paths, -1)
    survived = torch.ones(len(RULES) + 1, options.paths, dtype=torch.float64)
    means = []
    for drafts_q in draft_probs:
        p = probabilities(logits, temperature=temperature).double()
        q = (p.sum(0) - p) / (options.paths - 1)
        x = draw(p, torch.rand(options.paths, generator=draws, dtype=torch.float64))
        p_x, q_x = (some.gather(-1, x[:, None])[:, 0] for some in (p, q))
        is_best = (x == q.argmax(-1)).double()
        survived *= torch.stack([(q_x / p_x).clamp(max=1), q_x, is_best, (drafts_q[x] / p_x).clamp(max=1)])
        means.append(survived.mean(1))
        survived = survived * ~torch.isin(x, torch.tensor(stops))
        hidden, _ = decoder.forward(x[:, None], cache)
        logits = decoder.head(hidden[:, 0])
    return torch.stack(means, dim=1)


if __name__ == "__main__":
    main()
