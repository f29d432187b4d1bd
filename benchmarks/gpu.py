"""What CUDA graphs give, on random weights of two published shapes: `python benchmarks/gpu.py`; under 8 minutes on a large GPU.

Needs no network. Of each shape: whether replayed passes give what the plain ones and the library's give; tokens/s against plain
decoding, `generate` of transformers and the package dflash 0.1.0 (left out where it is not installed), the arms taking turns;
what a pass costs replayed and launched kernel by kernel; and the cost of a block behind contexts of growing length.

A random draft is hardly ever right, so τ is about 1 and DFlash can only lose against plain decoding. What counts is what a block
costs: over a plain step that is the τ from which on DFlash wins.
`--device cpu --tiny` runs the same on tiny shapes, the pass itself repeated in place of a graph: a check of this script.
One long file, since it runs seldom, elsewhere and against the clock.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
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
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from dflash_core.cuda_graphs import GraphedDraft, GraphedTarget, Replays
from dflash_core.generate import dflash_generate
from dflash_core.metrics import run_stats

try:
    from dflash.model import DFlashDraftModel as ReferenceDraft
    from dflash.model import dflash_generate as reference_generate
except ImportError:
    ReferenceDraft = reference_generate = None

NO_ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
SMOLLM2 = LlamaConfig(
    vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True, initializer_range=0.0417,
    rope_parameters={"rope_theta": 100_000.0, "rope_type": "default"}, **NO_ENDS,
)  # fmt: skip
QWEN3_4B = Qwen3Config(
    vocab_size=151_936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=40_960, rms_norm_eps=1e-6, tie_word_embeddings=True,
    rope_parameters={"rope_theta": 1_000_000.0, "rope_type": "default"}, **NO_ENDS,
)  # fmt: skip
TINY: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048, "initializer_range": 0.4, **NO_ENDS,
}  # fmt: skip
SHAPES = {"SmolLM2-135M": SMOLLM2, "Qwen3-4B": QWEN3_4B}
TINY_SHAPES = {"tiny Llama": LlamaConfig(**TINY), "tiny Qwen3": Qwen3Config(**TINY)}


def draft_config(target: Any) -> Qwen3Config:
    """A draft in the published form: 5 layers as wide as the target's, blocks of 16."""
    heads = target.num_attention_heads
    return Qwen3Config(
        vocab_size=target.vocab_size, hidden_size=target.hidden_size, intermediate_size=target.intermediate_size,
        num_hidden_layers=5, num_attention_heads=heads, num_key_value_heads=target.num_key_value_heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads, num_target_layers=target.num_hidden_layers,
        max_position_embeddings=target.max_position_embeddings, initializer_range=target.initializer_range, block_size=16,
        dflash_config={"mask_token_id": 5, "target_layer_ids": taps_of(target.num_hidden_layers)},
        rope_parameters=target.rope_parameters,
    )  # fmt: skip


def taps_of(n_layers: int) -> list[int]:
    return sorted({round(1 + i * (n_layers - 4) / 4) for i in range(5)})


class Bench:
    """A random pair, the library's model with the same weights, and how they are timed."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device, weights: dict[str, Tensor] | None = None) -> None:
        self.device = device
        torch.manual_seed(0)
        with torch.device(device):
            self.library: Any = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
            self.draft: Any = GraphedDraft._from_config(draft_config(config), dtype=dtype).eval()
        if weights:
            self.library.load_state_dict(weights)
        self.target = GraphedTarget(copy.deepcopy(self.library))
        if device.type != "cuda":
            self.target.replays, self.draft.replays = Replays(_again), Replays(_again)

    def prompt(self, n: int) -> Tensor:
        ids = torch.randint(10, self.target.vocab_size, (1, n), generator=torch.Generator().manual_seed(n))
        return ids.to(self.device)

    def ours(self, ids: Tensor, n_tokens: int, block_size: int, graphs: bool, **options: Any) -> Any:
        for replays in (self.target.replays, self.draft.replays):
            replays.enabled = graphs and not replays.reason
        return dflash_generate(
            self.draft, self.target, ids, max_new_tokens=n_tokens, block_size=block_size, **{"seed": 1, **options}
        )

    def generate(self, ids: Tensor, n_tokens: int) -> Tensor:
        options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
        return self.library.generate(ids, max_new_tokens=n_tokens, **options)[0, ids.shape[1] :]

    def seconds(self, function: Callable[[], object]) -> float:
        self._wait()
        begun = time.perf_counter()
        function()
        self._wait()
        return time.perf_counter() - begun

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _again(compute: Callable[[], tuple[Tensor, ...]], device: torch.device) -> Any:
    """In place of a graph, off CUDA: the pass itself."""
    outputs = compute()
    return lambda: [old.copy_(new) for old, new in zip(outputs, compute(), strict=True)], outputs


def correctness(config: Any, device: torch.device, n_tokens: int) -> dict[str, Any]:
    """Greedy and sampled texts, replayed against plain and the library's, in float32; logits, in bfloat16 too."""
    bench = Bench(config, torch.float32, device)
    ids, found = bench.prompt(60), {}
    for block_size in (1, 8, 16):
        for temperature in (0.0, 1.0):
            texts = []
            for graphs in (False, True, True):  # the second time every pass but the first has been recorded
                texts.append(bench.ours(ids, n_tokens, block_size, graphs, temperature=temperature).token_ids)
            found[f"float32, B = {block_size}, T = {temperature:g}: equal texts"] = same(texts[0], *texts[1:])
    greedy = bench.ours(ids, n_tokens, 16, True).token_ids
    found["float32, B = 16 replayed against transformers generate: equal texts"] = same(
        tuple(bench.generate(ids, n_tokens).tolist()), greedy
    )
    exact = passes(bench)
    found["float32, largest logit difference, replayed − plain"] = f"{(exact['replayed'] - exact['plain']).abs().max():.1e}"
    found["float32, largest logit difference, replayed − library"] = f"{(exact['replayed'] - exact['library']).abs().max():.1e}"
    reason = bench.target.replays.reason or bench.draft.replays.reason
    weights = {name: value.bfloat16() for name, value in bench.library.state_dict().items()}
    del bench
    tidy(device)
    rough = Bench(config, torch.bfloat16, device, weights)
    for name, logits in passes(rough).items():
        found[f"bfloat16, mean logit error, {name}"] = f"{(logits.float() - exact['library']).abs().mean():.1e}"
    reason = reason or rough.target.replays.reason
    found["recording"] = reason or "no fault"
    return found


@torch.inference_mode()
def passes(bench: Bench) -> dict[str, Tensor]:
    """Logits (1, 16, V) of one pass behind 700 tokens, in three ways."""
    ids, taps, logits = bench.prompt(716), (1, 2), {}
    bench.target.replays.enabled = True
    for name in ("replayed", "plain"):  # the cache is lent to the first one, while that is kept
        cache = bench.target.new_cache()
        bench.target.forward(ids[:, :700], cache, taps=taps, last_only=True)
        for _ in range(3):
            logits[name] = bench.target.forward(ids[:, 700:], cache, taps=taps, last_only=False)[0]
            bench.target.roll_back(cache, 700)
        bench.target.replays.enabled = False
        del cache
    return logits | {"library": bench.library(ids).logits[:, 700:]}


def same(first: tuple[int, ...], *others: tuple[int, ...]) -> str:
    for other in others:
        if other != first:
            return f"no, from token {next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), 'end')} on"
    return f"yes, {len(first)} tokens"


def speed(bench: Bench, n_tokens: int, until: float, most: int) -> tuple[list[str], dict[str, Any]]:
    """tokens/s of whole calls, the arms taking turns, and the milliseconds of a pass."""
    ids = bench.prompt(128)
    arms: dict[str, Callable[[], Any]] = {}
    for size in (1, 8, 16):
        for graphs in (True, False):
            name = f"ours, B = {size}, {'graphs' if graphs else 'plain'}"
            arms[name] = lambda size=size, graphs=graphs: bench.ours(ids, n_tokens, size, graphs)
    arms["transformers generate"] = lambda: bench.generate(ids, n_tokens)
    if ReferenceDraft is not None:
        with torch.device(bench.device):
            reference = ReferenceDraft._from_config(bench.draft.config, dtype=bench.draft.dtype).eval()
        reference.load_state_dict(bench.draft.state_dict())
        for size in (8, 16):
            arms[f"dflash 0.1.0, B = {size}"] = lambda size=size: reference_generate(
                reference, bench.library, ids, n_tokens, None, 0.0, block_size=size
            )
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    costs: dict[str, list[tuple[float, float, float]]] = {}
    taus: dict[str, float] = {}
    for i in range(2 + most):  # two rounds of warm-up: the first notes the kinds of passes, the second records them
        if i > 4 and time.monotonic() > until:
            break
        for name, arm in arms.items():
            made: list[Any] = []
            taken = bench.seconds(lambda arm=arm, made=made: made.append(arm()))
            if i < 2:
                continue
            speeds[name].append(n_tokens / taken)
            if name.startswith("ours"):
                # After the prefill and the block that has the prompt as new context.
                blocks = made[0].blocks[2:] or made[0].blocks[-1:]
                parts = ("draft_seconds", "verify_seconds", "other_seconds")
                costs.setdefault(name, []).append(
                    tuple(1000 * statistics.median(getattr(b, part) for b in blocks) for part in parts)
                )
                taus[name] = run_stats(made[0].blocks, made[0].block_size).tau or 1.0
    n_rounds = len(speeds["transformers generate"])
    lines = [
        f"{n_tokens} tokens after a prompt of 128, T = 0, {n_rounds} rounds; ratios: median (quartiles)\n",
        "| arm | tokens/s | τ | over ours, B = 1, graphs | over generate | over dflash 0.1.0, same B |",
        "|:----|---------:|--:|------------------------:|--------------:|--------------------------:|",
    ]
    for name, values in speeds.items():
        reference_name = "dflash 0.1.0, " + name.split(", ")[1] if name.startswith("ours") else name
        bases = ("ours, B = 1, graphs", "transformers generate", reference_name)
        cells = " | ".join(ratio(values, speeds[base]) if base in speeds else "" for base in bases)
        tau = f"{taus[name]:.2f}" if name in taus else ""
        lines.append(f"| {name} | {statistics.median(values):.1f} | {tau} | {cells} |")
    middle = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in costs.items()}
    lines += [
        "\nMilliseconds of a block, medians; launch-bound share: 1 − graphs/plain, of draft and verify together.\n",
        "| B | draft, graphs | plain | verify, graphs | plain | other | launch-bound share | τ from which on DFlash wins |",
        "|--:|--------------:|------:|---------------:|------:|------:|-------------------:|----------------------------:|",
    ]
    step = sum(middle["ours, B = 1, graphs"])
    for size in (1, 8, 16):
        on, off = (middle[f"ours, B = {size}, {kind}"] for kind in ("graphs", "plain"))
        share = 1 - (on[0] + on[1]) / (off[0] + off[1])
        tau = f"{sum(on) / step:.2f}" if size > 1 else ""
        lines.append(
            f"| {size} | {on[0]:.3f} | {off[0]:.3f} | {on[1]:.3f} | {off[1]:.3f} | {on[2]:.3f} | {100 * share:.0f} % | {tau} |"
        )
    return lines, {"tokens_per_second": speeds, "milliseconds": costs, "tau": taus}


@torch.inference_mode()
def by_context(bench: Bench, lengths: list[int], rounds: int) -> tuple[list[str], dict[str, Any]]:
    """Milliseconds of a block of 16, draft and verify, behind a context; replayed and plain taking turns."""
    target, draft, size = bench.target, bench.draft, 16
    found: dict[str, Any] = {}
    lines = ["\nB = 16 behind a context:\n", "| context | graphs, ms | plain, ms | graphs, over the shortest |"]
    lines.append("|--------:|-----------:|----------:|--------------------------:|")
    for length in lengths:
        ids = bench.prompt(length + size)
        times: dict[bool, list[float]] = {True: [], False: []}
        caches = {}
        for graphs in (True, False):
            target.replays.enabled = draft.replays.enabled = graphs and not (target.replays.reason or draft.replays.reason)
            caches[graphs] = target.new_cache(), draft.new_cache()
            _, features = target.forward(ids[:, :length], caches[graphs][0], taps=draft.target_layer_ids, last_only=True)
            draft.propose(caches[graphs][1], features[:, :-2], ids[:, :1], size, target.embed, target.head)
        target.replays.enabled = draft.replays.enabled = not (target.replays.reason or draft.replays.reason)

        def block(cache: Any, draft_cache: Any, ids: Any = ids, features: Any = features, length: int = length) -> None:
            draft.propose(draft_cache, features[:, -2:], ids[:, :1], size, target.embed, target.head)
            draft_cache.lengths[0] -= 2
            target.forward(ids[:, length:], cache, taps=draft.target_layer_ids, last_only=False)
            target.roll_back(cache, length)

        for i in range(rounds + 3):
            for graphs, pair in caches.items():
                taken = bench.seconds(lambda pair=pair: block(*pair))
                if i >= 3:
                    times[graphs].append(1000 * taken)
        del caches
        found[str(length)] = {"graphs": times[True], "plain": times[False]}
        on, off = statistics.median(times[True]), statistics.median(times[False])
        first = statistics.median(found[str(lengths[0])]["graphs"])
        lines.append(f"| {length:,} | {on:.2f} | {off:.2f} | {on / first:.2f} |")
    return lines, found


def ratio(values: list[float], base: list[float]) -> str:
    ratios = [value / other for value, other in zip(values, base, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:.2f} ({low:.2f} – {high:.2f})"


def tidy(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, few tokens: to try the script itself")
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, *TINY_SHAPES], metavar="NAME", help="default: all")
    parser.add_argument("--minutes", type=float, default=6.5, help="time to fill with rounds (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--contexts", type=int, nargs="+", default=[200, 500, 1000, 2000, 4000])
    parser.add_argument("--rounds", type=int, default=15, help="at most")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="raw figures (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here. To try the script itself: --device cpu --tiny")
    device = torch.device(options.device)
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", message=".*past_key_values.*")  # of the reference package, deprecated
    torch.set_float32_matmul_precision("highest")
    is_cuda = device.type == "cuda"
    dtype = torch.bfloat16 if is_cuda else torch.float32
    machine = torch.cuda.get_device_name(device) if is_cuda else "CPU, nothing is recorded: a check of the script, no measurement"
    print(f"{machine}; torch {torch.__version__}, transformers {transformers.__version__}; random weights, {dtype}")
    results: dict[str, Any] = {"machine": machine, "torch": torch.__version__, "transformers": transformers.__version__}
    shapes = TINY_SHAPES if options.tiny else SHAPES
    shapes = {name: shapes[name] for name in options.shapes or shapes}
    begun = time.monotonic()
    for i, (name, config) in enumerate(shapes.items()):
        share = 60 * options.minutes / len(shapes)
        checks = correctness(config, device, options.tokens)
        print(f"\n## {name}\n\n| check | |\n|:------|:--|\n" + "\n".join(f"| {key} | {value} |" for key, value in checks.items()))
        tidy(device)
        bench = Bench(config, dtype, device)
        lines, speeds = speed(bench, options.tokens, begun + share * (i + 0.7), options.rounds)
        more, contexts = by_context(bench, options.contexts, options.rounds)
        print("\n" + "\n".join(lines + more), flush=True)
        results[name] = {"checks": checks, **speeds, "context": contexts}
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")  # after each shape, should the time run out
        del bench
        tidy(device)
    print(f"\n{time.monotonic() - begun:.0f} seconds; raw figures in {options.out.name}")


if __name__ == "__main__":
    main()
