"""Drafts that differ in one thing each, trained alike: `python benchmarks/draft_variants.py --data DIRECTORY --out DIRECTORY`.

Each variant is one command line of `dflash_core.training.train`, on the same data, with the same seed: the same conversations
and anchors as far as its options let them be. Then each decodes the 48 held-out prompts, and its pass is timed. A variant that
is finished is not done again, so `--part` shares them among processes, and a last call without it times and prints the table.

τ over the base is of the same prompts (and at T = 0 of the same text): its interval is a bootstrap over prompts. "Speed" is
derived, not decoded: τ over the milliseconds of a draft pass and a verification pass, against the base's. The latter is the same
for all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from before_after import a_draft, a_pass, timed
from tqdm import tqdm

from dflash_core.intervals import cluster_interval
from dflash_core.metrics import tokens_and_blocks
from dflash_core.pairs import load_pair
from dflash_core.training import evaluate, train
from dflash_core.training.arguments import add_part, output_directory, whole

BASE = "base"
COMMON = (
    *("--layers", "3", "--taps", "1", "14", "27", "--conversations", "4", "--words", "4096", "--learning-rate", "2e-3"),
    *("--mix", "0.25", "0.75", "0.25", "--decay", "3", "--full-head", "0.01", "--averaging", "0.99", "--held-out-one-in", "10"),
)
VARIANTS = {
    BASE: (),
    "base, another seed": ("--seed", "1"),
    "2 layers": ("--layers", "2"),
    "4 layers": ("--layers", "4"),
    "5 layers": ("--layers", "5"),
    "taps 14, 27": ("--taps", "14", "27"),
    "taps 1, 8, 21, 27": ("--taps", "1", "8", "21", "27"),
    "taps 1, 8, 14, 21, 27": ("--taps", "1", "8", "14", "21", "27"),
    "blocks of 2 to 16 alike": ("--block-sizes", *map(str, range(2, 17))),
    "blocks of 8 and 16": ("--block-sizes", "8", "16"),
    "tokens alone": ("--mix", "1", "0", "0"),
    "distillation alone": ("--mix", "0", "1", "0"),
    "more overlap": ("--mix", "0.25", "0.75", "1"),
    "data of T = 0 and 0.5": ("--temperatures", "0", "0.5"),
    "data of T = 0.8 and 1": ("--temperatures", "0.8", "1"),
}
BLOCK_SIZE = 4  # the fastest on two cores
TEMPERATURES = (0.0, 1.0)
TOKENS = 32  # a run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="shards made by synthesise, with taps 1 8 14 21 27")
    parser.add_argument("--out", type=output_directory, required=True, help="directory of the drafts; it may hold some already")
    parser.add_argument("--steps", type=whole(1), default=400)
    parser.add_argument("--rounds", type=whole(1), default=40, help="of the timing")
    add_part(parser, "variant (and print no table)", default=None)
    options = parser.parse_args()
    part, of = options.part or (0, 1)
    for name in list(VARIANTS)[part::of]:
        train_and_measure(name, options)
    if not options.part:
        print(table(options))


def directory(options: argparse.Namespace, name: str) -> Path:
    out: Path = options.out / name.replace(" ", "-")
    return out


def train_and_measure(name: str, options: argparse.Namespace) -> None:
    out = directory(options, name)
    if (out / "decoded.json").exists():
        return
    steps = ("--steps", str(options.steps), "--evaluate-every", str(options.steps))
    train.main(["--data", str(options.data), "--out", str(out), *steps, *COMMON, *VARIANTS[name]])
    pair = load_pair("embedded", draft=str(out / "draft"))
    prompts = json.loads(evaluate.PROMPTS.read_text(encoding="utf-8"))
    decoded = {}
    with tqdm(unit="run") as bar:
        for temperature in TEMPERATURES:
            runs = evaluate.measure(pair, prompts, temperature, "speculative", BLOCK_SIZE, TOKENS, False, bar)
            decoded[f"{temperature:g}"] = [tokens_and_blocks(blocks) for _, blocks in runs]
    evaluate.write(out / "decoded.json", json.dumps(decoded))


@torch.inference_mode()
def pass_times(options: argparse.Namespace) -> tuple[dict[str, float], float]:
    """Median milliseconds of each variant's draft pass, and of a verification pass; the variants take turns."""
    target = load_pair("embedded").target  # one for all: fifteen would not fit into memory
    arms = {}
    for name in VARIANTS:
        pair = dataclasses.replace(load_pair("embedded", draft=str(directory(options, name) / "draft")), target=target)
        arms[name] = a_draft(pair, BLOCK_SIZE), a_pass(pair, BLOCK_SIZE)
    drafts: dict[str, list[float]] = {name: [] for name in arms}
    verifications = []
    for _ in range(options.rounds):
        for name, (draft, verification) in arms.items():
            drafts[name].append(timed(draft))
            verifications.append(timed(verification))
    return {name: statistics.median(times) for name, times in drafts.items()}, statistics.median(verifications)


def table(options: argparse.Namespace) -> str:
    times, verification = pass_times(options)
    figures = {name: figures_of(directory(options, name)) for name in VARIANTS}
    base = figures[BASE]
    lines = [
        f"{options.steps} steps, {torch.get_num_threads()} threads when timed, B = {BLOCK_SIZE}, {TOKENS} tokens a run, "
        f"{len(base['decoded']['0'])} prompts; a verification pass takes {verification:.1f} ms\n",
        "| variant | agreement at 1 | at 2 | overlap at 1 | τ, T = 0 | over the base | τ, T = 1 | over the base "
        "| draft pass, ms | speed, T = 0 |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, found in figures.items():
        cells = [f"{found['agreement'][0]:.3f}", f"{found['agreement'][1]:.3f}", f"{found['overlap'][0]:.3f}"]
        speed = (times[BASE] + verification) / (times[name] + verification)
        for key, counts in found["decoded"].items():
            tokens, blocks = np.sum(counts, axis=0)
            over, low, high = over_base(counts, base["decoded"][key])
            cells += [f"{tokens / blocks:.2f}", f"{over:.3f}" + ("" if low is None else f" ({low:.3f} – {high:.3f})")]
            speed *= over if key == "0" else 1
        lines.append(f"| {name} | {' | '.join(cells)} | {times[name]:.1f} | {speed:.2f} |")
    return "\n".join(lines)


def figures_of(out: Path) -> dict[str, Any]:
    """Held-out agreement and overlap by position, and tokens and blocks of each prompt by temperature."""
    held_out = json.loads((out / "log.jsonl").read_text().splitlines()[-1])["held_out"]
    return {**held_out, "decoded": json.loads((out / "decoded.json").read_text())}


def over_base(counts: Sequence[Sequence[int]], base: Sequence[Sequence[int]]) -> tuple[float, float | None, float | None]:
    """τ / τ of the base, each pooled over the prompts, and its 95 % interval."""
    rows = np.concatenate([counts, base], axis=1).astype(float)
    return cluster_interval(rows, lambda sums: (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3]))


if __name__ == "__main__":
    main()
