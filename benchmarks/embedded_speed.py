"""Tokens per second and τ of the embedded pair over temperature and block size: `python benchmarks/embedded_speed.py`.

For each prompt and temperature all block sizes run one after the other, so that a drift of the machine's speed reaches each
of them alike. Speed-ups are medians over prompts of the ratio to plain decoding (B = 1) in the same round, with quartiles.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers

from dflash_core.generate import dflash_generate
from dflash_core.metrics import RunStats, run_stats
from dflash_core.pairs import load_pair
from dflash_ui.text import presets


def speed_of(run: RunStats) -> float:
    """Tokens per second; every run here has at least one block."""
    assert run.tokens_per_second is not None
    return run.tokens_per_second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument(
        "--block-sizes", type=int, nargs="+", default=[1, 4, 8, 16], help="the first one should be 1: the baseline"
    )
    parser.add_argument("--rule", default="match")
    options = parser.parse_args()

    pair = load_pair("embedded")
    results: dict[tuple[float, int], list[RunStats]] = {}
    dflash_generate(pair.draft, pair.target, pair.encode("Hello"), max_new_tokens=8, block_size=8)  # warm-up
    for preset in presets().values():
        ids = pair.encode(preset["prompt"], chat=preset["chat"])
        for temperature in options.temperatures:
            for block_size in options.block_sizes:
                generation = dflash_generate(
                    pair.draft,
                    pair.target,
                    ids,
                    max_new_tokens=options.tokens,
                    stop_token_ids=pair.stop_token_ids,
                    temperature=temperature,
                    block_size=block_size,
                    rule=options.rule,
                    seed=1,
                )
                results.setdefault((temperature, block_size), []).append(run_stats(generation.blocks, block_size))
                print(".", end="", flush=True)

    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}"
    print(f"\n\nrule {options.rule}, {pair.dtype} on {pair.device}, {torch.get_num_threads()} threads, {versions};")
    print(f"{len(presets())} prompts, {options.tokens} tokens at most\n")
    print("|   T |  B |    τ | n blocks | tokens/s | over plain (quartiles) | draft ms | verify ms | other ms |")
    print("|----:|---:|-----:|---------:|---------:|-----------------------:|---------:|----------:|---------:|")
    for (temperature, block_size), runs in results.items():
        plain = results[temperature, options.block_sizes[0]]
        ratios = [speed_of(run) / speed_of(baseline) for run, baseline in zip(runs, plain, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        blocks = sum(run.n_blocks for run in runs)
        tau = sum((run.tau or 0) * run.n_blocks for run in runs) / blocks
        speed = statistics.median(speed_of(run) for run in runs)
        costs = [1000 * sum(getattr(run, f"seconds_{part}") for run in runs) / blocks for part in ("draft", "verify", "other")]
        spread = f"{middle:6.2f} ({low:.2f} – {high:.2f})"
        parts = f"{costs[0]:8.1f} | {costs[1]:9.1f} | {costs[2]:8.2f}"
        print(f"| {temperature:3.1f} | {block_size:2} | {tau:4.2f} | {blocks:8} | {speed:8.1f} | {spread:>22} | {parts} |")


if __name__ == "__main__":
    main()
