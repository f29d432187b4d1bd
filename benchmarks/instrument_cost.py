"""What measuring costs: the bare loop, the loop that records, and the page's run without its browser.

`python benchmarks/instrument_cost.py`. The arms take turns on each prompt; ratios are of whole calls within one round. What the
browser itself does is in page_cost.py; it never waits inside the loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dflash_core.generate import dflash_generate
from dflash_core.pairs import load_pair
from dflash_ui.models import Shelf, make_decode
from dflash_ui.requests import RunRequest
from dflash_ui.runs import TABLE_SIZE, Runs
from dflash_ui.text import presets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rule", default="match")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--block-size", type=int, default=8)
    options = parser.parse_args()

    pair = load_pair("embedded")
    shelf = Shelf(lambda name, progress: pair, "embedded")
    shelf.load_now()
    runs = Runs(shelf.steps, make_decode(shelf))

    def loop(prompt: str, *, chat: bool, record: bool) -> int:
        generation = dflash_generate(
            pair.draft, pair.target, pair.encode(prompt, chat=chat), max_new_tokens=options.tokens,
            stop_token_ids=pair.stop_token_ids, temperature=options.temperature, block_size=options.block_size,
            rule=options.rule, seed=1, on_block=(lambda block: None) if record else None, table_size=TABLE_SIZE if record else 0,
        )  # fmt: skip
        return len(generation.token_ids)

    def page(prompt: str, *, chat: bool) -> int:
        request = RunRequest.parse(
            prompt, options.temperature, options.block_size, options.tokens, 1, options.rule, "embedded", 1.0, 0, None, chat,
            pairs=("embedded",),
        )  # fmt: skip
        run = runs.start(request)
        for payload in runs.payloads(run):
            json.dumps(payload)
        return run.n_tokens

    arms: dict[str, Callable[[str, bool], int]] = {
        "bare loop": lambda prompt, chat: loop(prompt, chat=chat, record=False),
        "hook and recording": lambda prompt, chat: loop(prompt, chat=chat, record=True),
        "the page's run": lambda prompt, chat: page(prompt, chat=chat),
    }
    for arm in arms.values():
        arm("Hello", True)  # warm-up
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for preset in presets().values():
        for name, arm in arms.items():
            begun = time.perf_counter()
            n_tokens = arm(preset["prompt"], preset["chat"])
            speeds[name].append(n_tokens / (time.perf_counter() - begun))
    settings = f"{options.rule}, T = {options.temperature:g}, B = {options.block_size}"
    print(f"{settings}, {options.tokens} tokens, {len(presets())} prompts\n")
    print("| arm | tokens/s | over the bare loop (quartiles) |")
    print("|:----|---------:|-------------------------------:|")
    for name, values in speeds.items():
        ratios = [value / bare for value, bare in zip(values, speeds["bare loop"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {name} | {statistics.median(values):.1f} | {middle:.3f} ({low:.3f} – {high:.3f}) |")


if __name__ == "__main__":
    main()
