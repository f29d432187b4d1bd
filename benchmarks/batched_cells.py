"""Tokens per second of many generations as rows of one batch against one by one: `python benchmarks/batched_cells.py`.

The embedded pair, the page's presets as prompts, rows refilled as they finish, judged tokens recorded in both arms. In rows, a
prompt that comes again at once is prefilled once; one by one each run prefills its own. Both arms make the same requests, one
arm after the other in every round, so that a drift of the machine's speed reaches each alike; ratios are medians over rounds of
the ratio within one round, with their range. CPU time is that of all threads: on a machine that is not idle it says more than
the clock, while waiting threads spin little (OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from dflash_core.blocks import SamplingParams
from dflash_core.generate import iter_blocks
from dflash_core.pairs import load_pair
from dflash_core.rows import Request, iter_rows
from dflash_ui.text import presets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=("embedded", "toy"), default="embedded")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=4, help="runs of each prompt, one after the other as in a sweep")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rule", default="speculative")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[1, 4, 8])
    options = parser.parse_args()

    pair = load_pair(options.pair)
    prompts = [tuple(pair.encode(p["prompt"], chat=p["chat"] and pair.key != "toy")[0].tolist()) for p in presets().values()]
    cells = list(itertools.product(options.temperatures, options.block_sizes))

    def requests(temperature: float, block_size: int) -> list[Request]:
        return [
            Request(
                prompt, SamplingParams(temperature, rule=options.rule, seed=seed), block_size, options.tokens, pair.stop_token_ids
            )
            for prompt in prompts[: options.prompts]
            for seed in range(options.seeds)
        ]

    def one_by_one(wanted: list[Request]) -> int:
        return sum(
            len(block.emitted)
            for each in wanted
            for block in iter_blocks(
                pair.draft, pair.target, torch.tensor([each.prompt_ids]), max_new_tokens=each.max_new_tokens,
                stop_token_ids=each.stop_token_ids, block_size=each.block_size, params=each.params,
            )
        )  # fmt: skip

    def in_rows(wanted: list[Request]) -> int:
        return sum(len(block.emitted) for _, block in iter_rows(pair.draft, pair.target, wanted, rows=options.rows))

    arms: dict[str, Callable[[list[Request]], int]] = {"one by one": one_by_one, f"{options.rows} rows": in_rows}
    for arm in arms.values():
        arm(requests(1.0, 4)[:2])  # warm-up
    versions = f"torch {torch.__version__}, {platform.machine()}"
    print(f"{pair.label}, {pair.dtype} on {pair.device}, {torch.get_num_threads()} threads, {versions};")
    size = f"{options.prompts} prompts × {options.seeds} seeds, {options.tokens} tokens at most"
    print(f"{size}, {options.rule}, {options.rounds} rounds\n")
    print("| T | B | one by one, tokens/s | in rows, tokens/s | ratio (range) | ratio of CPU time (range) |")
    print("|--:|--:|---------------------:|------------------:|--------------:|--------------------------:|")
    for temperature, block_size in cells:
        wall: dict[str, list[float]] = {name: [] for name in arms}
        cpu: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(options.rounds):
            for name, arm in arms.items():
                begun, begun_cpu = time.perf_counter(), time.process_time()
                n_tokens = arm(requests(temperature, block_size))
                wall[name].append(n_tokens / (time.perf_counter() - begun))
                cpu[name].append(n_tokens / (time.process_time() - begun_cpu))
        before, after = arms
        print(
            f"| {temperature:g} | {block_size} | {statistics.median(wall[before]):.1f} | {statistics.median(wall[after]):.1f} "
            f"| {_ratio(wall[after], wall[before])} | {_ratio(cpu[after], cpu[before])} |",
            flush=True,
        )


def _ratio(values: list[float], baseline: list[float]) -> str:
    ratios = [value / base for value, base in zip(values, baseline, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"


if __name__ == "__main__":
    main()
