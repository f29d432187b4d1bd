"""τ against temperature for several rules, measured and at the same contexts: `python benchmarks/temperature_rules.py`.

Measured: one run for each prompt, rule and temperature. Same contexts: one run for each prompt at `--base`, whose recorded
blocks are scored again at every temperature (whatif.py). The difference between the two is what temperature does to the text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dflash_core.blocks import Block, Generation
from dflash_core.generate import dflash_generate
from dflash_core.metrics import run_stats
from dflash_core.pairs import load_pair
from dflash_core.whatif import WhatIf, expected_tau, rescore
from dflash_ui.text import presets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.4, 0.7, 1.0, 1.5])
    parser.add_argument("--base", type=float, default=0.7)
    parser.add_argument("--rules", nargs="+", default=["match", "greedy-match", "speculative", "coupled"])
    options = parser.parse_args()

    pair = load_pair("embedded")
    prompts = [pair.encode(preset["prompt"], chat=preset["chat"]) for preset in presets().values()]

    def run(index: int, rule: str, temperature: float) -> Generation:
        print(".", end="", flush=True)
        return dflash_generate(
            pair.draft,
            pair.target,
            prompts[index],
            max_new_tokens=options.tokens,
            stop_token_ids=pair.stop_token_ids,
            temperature=temperature,
            block_size=options.block_size,
            rule=rule,
            seed=index,
            on_block=lambda block: None,
        )

    base = [run(i, "match", options.base) for i in range(len(prompts))]
    whatif = pooled([rescore(pair.draft, pair.target, g, options.temperatures, rules=options.rules) for g in base])
    print(f"\n\n{len(prompts)} prompts, {options.tokens} tokens, B = {options.block_size}, {pair.dtype} on {pair.device};")
    print(f"same contexts: those of match at T = {options.base}, {len(whatif.positions)} judged tokens\n")
    print("| rule | T | τ measured (95 %) | n blocks | τ same contexts (95 %) |")
    print("|:-----|--:|------------------:|---------:|-----------------------:|")
    for rule in options.rules:
        for expected in expected_tau(whatif, rule):
            blocks: list[Block] = []
            for i in range(len(prompts)):
                blocks += run(i, rule, expected.temperature).blocks
            stats = run_stats(blocks, options.block_size)
            measured = f"{stats.tau:.2f} ({stats.tau_low:.2f} – {stats.tau_high:.2f})"
            same = f"{expected.tau:.2f} ({expected.low:.2f} – {expected.high:.2f})"
            print(f"\r| {rule} | {expected.temperature:.1f} | {measured} | {stats.n_blocks} | {same} |", flush=True)


def pooled(parts: Sequence[WhatIf]) -> WhatIf:
    """Several runs' positions as if of one run; block numbers are kept apart."""
    step = 1 + max(block for part in parts for block, _ in part.positions)
    first = parts[0]
    return WhatIf(
        temperatures=first.temperatures,
        positions=tuple((block + n * step, i) for n, part in enumerate(parts) for block, i in part.positions),
        acceptance={rule: tuple(row for part in parts for row in part.acceptance[rule]) for rule in first.acceptance},
        target_entropy=tuple(row for part in parts for row in part.target_entropy),
        draft_entropy=tuple(row for part in parts for row in part.draft_entropy),
        target_prob=tuple(row for part in parts for row in part.target_prob),
        draft_prob=tuple(row for part in parts for row in part.draft_prob),
    )


if __name__ == "__main__":
    main()
