"""Tokens per second of the embedded pair against plain decoding and other implementations: `python benchmarks/compare.py`.

Arms: our loop at several block sizes (1 is plain decoding, on the same fast path), `generate` of transformers, the same with
prompt lookup, and `dflash_generate` of the package dflash 0.1.0 with the same weights. For each prompt all arms run one after
the other, so that a drift of the machine's speed reaches each alike; times are of whole calls, prefill included. Ratios are
medians over prompts of the ratio within one round, with quartiles.

The reference package is installed without its own requirements (requirements-reference.txt) and runs unchanged on the pinned
transformers; only its keyword `past_key_values`, deprecated there, is let pass.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from dflash.model import DFlashDraftModel as ReferenceDraft
from dflash.model import dflash_generate as reference_generate
from torch import Tensor
from transformers import AutoModelForCausalLM

from dflash_core.generate import dflash_generate
from dflash_core.metrics import run_stats
from dflash_core.pairs import EMBEDDED_DRAFT, Pair, load_pair
from dflash_core.weights import ensure_target
from dflash_ui.text import presets

PLAIN = "ours, B = 1 (plain decoding)"
GENERATE = "transformers generate"
REFERENCE = "dflash 0.1.0, B = {}"

Arm = Callable[[Tensor], tuple[int, float | None]]  # prompt → new tokens, τ


def arms_at(temperature: float, options: argparse.Namespace, pair: Pair, library: Any, reference: Any) -> dict[str, Arm]:
    """What is compared at one temperature, by name."""
    stops = list(pair.stop_token_ids)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {"do_sample": False}

    def ours(block_size: int) -> Arm:
        def run(ids: Tensor) -> tuple[int, float | None]:
            generation = dflash_generate(
                pair.draft, pair.target, ids, max_new_tokens=options.tokens, stop_token_ids=stops,
                temperature=temperature, block_size=block_size, rule=options.rule, seed=1,
            )  # fmt: skip
            return len(generation.token_ids), run_stats(generation.blocks, block_size).tau

        return run

    def generate(**more: Any) -> Arm:
        def run(ids: Tensor) -> tuple[int, float | None]:
            torch.manual_seed(1)
            output = library.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=options.tokens, pad_token_id=stops[0],
                eos_token_id=stops, **sampling, **more,
            )  # fmt: skip
            return output.shape[1] - ids.shape[1], None

        return run

    def published(block_size: int) -> Arm:
        def run(ids: Tensor) -> tuple[int, float | None]:
            torch.manual_seed(1)
            output = reference_generate(reference, library, ids, options.tokens, stops, temperature, block_size=block_size)
            return output.shape[1] - ids.shape[1], None

        return run

    return {
        PLAIN: ours(1),
        **{f"ours, B = {size}": ours(size) for size in options.block_sizes},
        GENERATE: generate(),
        "transformers, prompt lookup": generate(prompt_lookup_num_tokens=8),
        **{REFERENCE.format(size): published(size) for size in options.block_sizes},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--rule", default="speculative", help="of our arms; the reference package has that one only")
    options = parser.parse_args()

    warnings.filterwarnings("ignore", message=".*past_key_values.*")
    transformers.logging.set_verbosity_error()
    pair = load_pair("embedded")
    library = AutoModelForCausalLM.from_pretrained(ensure_target(), dtype=torch.float32).eval()
    reference = ReferenceDraft.from_pretrained(EMBEDDED_DRAFT, dtype=torch.float32).eval()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}"
    print(f"float32 on the CPU, {torch.get_num_threads()} threads, {versions};")
    print(f"{len(presets())} prompts, {options.tokens} tokens at most, our rule: {options.rule}\n")
    for temperature in options.temperatures:
        arms = arms_at(temperature, options, pair, library, reference)
        for arm in arms.values():
            arm(pair.encode("Hello"))  # warm-up
        speeds: dict[str, list[float]] = {name: [] for name in arms}
        taus: dict[str, list[float]] = {name: [] for name in arms}
        for preset in presets().values():
            ids = pair.encode(preset["prompt"], chat=preset["chat"])
            for name, arm in arms.items():
                begun = time.perf_counter()
                n_tokens, tau = arm(ids)
                speeds[name].append(n_tokens / (time.perf_counter() - begun))
                taus[name] += [tau] if tau else []
        best = max((statistics.median(ratios(speeds[f"ours, B = {s}"], speeds[PLAIN])), s) for s in options.block_sizes)[1]
        references = REFERENCE.format(best)
        print(f"T = {temperature:g}\n")
        print("| arm | tokens/s | τ | over plain (quartiles) | over generate | over dflash 0.1.0 |")
        print("|:----|---------:|--:|-----------------------:|--------------:|------------------:|")
        for name, values in speeds.items():
            low, middle, high = statistics.quantiles(ratios(values, speeds[PLAIN]), n=4)
            over_generate = statistics.median(ratios(values, speeds[GENERATE]))
            over_reference = statistics.median(ratios(values, speeds[references]))
            tau_text = f"{statistics.mean(taus[name]):.2f}" if taus[name] else ""
            print(
                f"| {name} | {statistics.median(values):.1f} | {tau_text} | {middle:.2f} ({low:.2f} – {high:.2f}) "
                f"| {over_generate:.2f} | {over_reference:.2f} |",
                flush=True,
            )
        print()


def ratios(values: list[float], baseline: list[float]) -> list[float]:
    return [value / base for value, base in zip(values, baseline, strict=True)]


if __name__ == "__main__":
    main()
