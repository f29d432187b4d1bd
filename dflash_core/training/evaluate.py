"""Measures a draft on held-out prompts: `python -m dflash_core.training.evaluate --out DIRECTORY`.

Runs the page's loop in float32, many prompts at a time, over temperatures × rules × block sizes, and writes one file for each
such cell; a run that was stopped goes on with the cells that are missing, and a directory takes cells of one draft and one set
of options only. At the end `evaluation.json` and `evaluation.md` hold all cells of the directory: τ with its 95 % interval
(bootstrap over prompts), acceptance by position, repeated text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..blocks import Block, SamplingParams, require
from ..intervals import cluster_interval, ratio
from ..metrics import run_stats, tokens_and_blocks
from ..pairs import EMBEDDED_DRAFT, Pair, PairError, load_pair
from ..rows import Request, iter_rows
from ..sampling import GREEDY_BELOW
from ..verify import RULES
from .arguments import add_part, device, existing_file, model_source, number, output_directory, whole
from .trainer import atomically

PROMPTS = Path(__file__).parents[2] / "assets" / "evaluation_prompts.json"
ROWS = 12  # prompts decoded at once
ANY_RULE = "any"  # at temperature 0 all rules do the same


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    try:
        prompts = read_prompts(options.prompts)
    except ValueError as error:
        raise SystemExit(f"evaluate: {error}") from error
    cells = [
        (temperature, rule, block_size)
        for temperature, rule, block_size in product(options.temperatures, options.rules, options.block_sizes)
        if temperature >= GREEDY_BELOW or rule == options.rules[0]
    ][options.part[0] :: options.part[1]]
    names = [cell_name(*cell) for cell in cells]
    about = what_is_measured(options)
    for path in options.out.glob("cell-*.json"):
        changed = [key for key, value in about.items() if json.loads(path.read_text()).get(key) != value]
        if changed:
            differs = f"{path.name} of another measurement (it differs in {', '.join(changed)})"
            raise SystemExit(f"evaluate: {options.out} holds {differs}: choose another directory")
    todo = [(cell, name) for cell, name in zip(cells, names, strict=True) if not (options.out / name).exists()]
    if todo:
        try:
            pair = load_pair("embedded", target=options.target, draft=options.draft, device=options.device, dtype="float32")
        except PairError as error:
            raise SystemExit(f"evaluate: {error}") from error
        n_prompts = sum(map(len, prompts.values()))
        with tqdm(total=len(todo) * n_prompts, unit="run") as bar:
            for (temperature, rule, block_size), name in todo:
                try:
                    runs = measure(
                        pair, prompts, temperature, rule, block_size, options.tokens, options.raw, bar, options.first_seed
                    )
                except ValueError as error:
                    raise SystemExit(f"evaluate: {error}") from error
                cell = {"temperature": temperature, "rule": shown_rule(temperature, rule), "block_size": block_size}
                text = json.dumps({**cell, **about, **summarise(runs, block_size)})
                write(options.out / name, text)
                tqdm.write(f"{name}: {text[:160]}")
    found = [json.loads(path.read_text()) for path in sorted(options.out.glob("cell-*.json"))]
    found.sort(key=lambda cell: (cell["temperature"], [ANY_RULE, *RULES].index(cell["rule"]), cell["block_size"]))
    write(options.out / "evaluation.json", json.dumps(found, indent=1) + "\n")
    write(options.out / "evaluation.md", markdown(found))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lossless = [key for key, rule in RULES.items() if rule.lossless]
    parser.add_argument("--out", type=output_directory, required=True, help="directory of the results; it may hold some already")
    parser.add_argument(
        "--draft", type=model_source, default=str(EMBEDDED_DRAFT), help="directory or hub id (default: the embedded one)"
    )
    parser.add_argument("--target", type=model_source, help="directory or hub id; the embedded one if not given")
    parser.add_argument(
        "--prompts", type=existing_file, default=PROMPTS, help="JSON: lists of prompts by kind (default: the 48 of assets/)"
    )
    parser.add_argument("--raw", action="store_true", help="continue the prompts as they are, without the chat template")
    parser.add_argument("--temperatures", type=number(0), nargs="+", default=[0.0, 0.3, 0.7, 1.0, 1.5])
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=lossless)
    parser.add_argument("--block-sizes", type=whole(1), nargs="+", default=[4, 8, 16])
    parser.add_argument("--tokens", type=whole(1), default=64, help="cap on a run")
    parser.add_argument("--first-seed", type=whole(0), default=0, help="of the first prompt; the next has the next one")
    parser.add_argument("--device", type=device, default="cpu")
    add_part(parser, "cell")
    return parser.parse_args(arguments)


def what_is_measured(options: argparse.Namespace) -> dict[str, Any]:
    """What all cells of a directory have in common. Files go by what they hold: a draft in training changes in its place."""
    weights = sorted(Path(options.draft).glob("*.safetensors")) or [Path(options.draft)]
    held = [file_hash(path) if path.is_file() else str(path) for path in (*weights, options.prompts)]
    target = options.target or "embedded"
    return {
        "target": target, "draft": held[:-1], "prompts": held[-1],
        "tokens": options.tokens, "raw": options.raw, "first_seed": options.first_seed,
    }  # fmt: skip


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def read_prompts(path: Path) -> dict[str, list[str]]:
    """Prompts by kind. Raises ValueError if that is not what the file holds."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    lists = list(found.values()) if isinstance(found, dict) else []
    good = bool(lists) and all(isinstance(some, list) and some and all(isinstance(text, str) for text in some) for some in lists)
    require(good, f'{path} must be JSON with lists of prompts by kind, such as {{"questions": ["Why is the sky blue?"]}}')
    prompts: dict[str, list[str]] = found
    return prompts


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)

    def put(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    atomically(path, put)


def shown_rule(temperature: float, rule: str) -> str:
    return rule if temperature >= GREEDY_BELOW else ANY_RULE


def cell_name(temperature: float, rule: str, block_size: int) -> str:
    return f"cell-T{temperature:g}-{shown_rule(temperature, rule)}-B{block_size}.json"


def measure(
    pair: Pair,
    prompts: dict[str, list[str]],
    temperature: float,
    rule: str,
    block_size: int,
    tokens: int,
    raw: bool,
    bar: Any,
    first_seed: int = 0,
) -> list[tuple[str, Sequence[Block]]]:
    """One run for each prompt, with the prompt's kind; many at a time. The seed is `first_seed` and the prompt's number."""
    texts = [(kind, prompt) for kind, some in prompts.items() for prompt in some]
    requests = [
        Request(
            tuple(pair.encode(prompt, chat=not raw)[0].tolist()),
            SamplingParams(temperature=temperature, rule=rule, seed=seed),
            block_size,
            tokens,
            tuple(pair.stop_token_ids),
        )
        for seed, (_, prompt) in enumerate(texts, first_seed)
    ]
    runs: list[tuple[str, list[Block]]] = [(kind, []) for kind, _ in texts]
    for index, block in iter_rows(pair.draft, pair.target, requests, rows=ROWS, record=False):
        runs[index][1].append(block)
        if block.finish_reason:
            bar.update()
    return list(runs)


def summarise(runs: Sequence[tuple[str, Sequence[Block]]], block_size: int) -> dict[str, Any]:
    """The figures of a cell: of all its runs together, and τ by kind of prompt."""
    require(bool(runs), "there are no prompts")
    pooled = [block for _, blocks in runs for block in blocks]
    stats = run_stats(pooled, block_size)
    tau, low, high = tau_over_prompts([blocks for _, blocks in runs])
    kinds = dict.fromkeys(kind for kind, _ in runs)
    shares = [run_stats(blocks, block_size).repeated_share for _, blocks in runs]
    return {
        "tau": tau,
        "tau_low": low,
        "tau_high": high,
        "n_prompts": len(runs),
        "n_blocks": stats.n_blocks,
        "tau_by_kind": {kind: tau_over_prompts([b for k, b in runs if k == kind])[0] for kind in kinds},
        "positions": [{"i": p.i, "accepted": p.accepted, "judged": p.judged, "rate": p.rate} for p in stats.positions],
        "repeated_share": sum(shares) / len(shares),
    }


def tau_over_prompts(runs: Iterable[Sequence[Block]]) -> tuple[float | None, float | None, float | None]:
    """Tokens a block, pooled over the runs, and its 95 % interval when whole runs are drawn anew."""
    counts = [tokens_and_blocks(blocks) for blocks in runs if len(blocks) > 1]
    if not counts:
        return None, None, None
    tau, low, high = cluster_interval(np.array(counts, dtype=float), ratio)
    return tau, None if low is None else max(low, 1.0), high


def shown_tau(cell: dict[str, Any] | None) -> str:
    if cell is None or cell["tau"] is None:
        return ""
    return f"{cell['tau']:.2f}" + ("" if cell["tau_low"] is None else f" ({cell['tau_low']:.2f} – {cell['tau_high']:.2f})")


def markdown(cells: Sequence[dict[str, Any]]) -> str:
    """A row for each temperature and rule, a column of τ for each block size."""
    sizes = sorted({cell["block_size"] for cell in cells})
    lines = [
        "| T | rule | " + " | ".join(f"τ, B = {size}" for size in sizes) + " | repeated text |",
        "|--:|:-----|" + "--:|" * (len(sizes) + 1),
    ]
    rows: dict[tuple[float, str], dict[int, dict[str, Any]]] = {}
    for cell in cells:
        rows.setdefault((cell["temperature"], cell["rule"]), {})[cell["block_size"]] = cell
    for (temperature, rule), by_size in rows.items():
        taus = [shown_tau(by_size.get(size)) for size in sizes]
        share = max(cell["repeated_share"] for cell in by_size.values())
        lines.append(f"| {temperature:g} | {rule} | {' | '.join(taus)} | {share:.0%} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
