"""The command line: `python -m dflash_core.sweep --out DIRECTORY`, alone or under `torchrun` or `accelerate launch`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
from tqdm import tqdm

from ..pairs import PAIRS, Pair, load_pair
from ..verify import RULES
from ..weights import WeightsUnavailable
from .about import describe
from .outputs import write_results
from .plan import Prompt, SweepError, SweepPlan
from .prompts import preset_names, preset_prompts, read_prompts
from .runs import encode_prompts, sweep_runs
from .store import SweepDirectory

REPORT = "dflash_ui.sweep_report"  # run as a module of its own where it is there: the engine draws nothing

DESCRIPTION = """Measures acceptance and speed over temperature × block size × rule on your prompts.

Stopped or killed, the same command goes on where it was; what is lost are the runs that had not finished. Under
`torchrun --nproc-per-node N -m dflash_core.sweep …` (or `accelerate launch`) N processes share the runs, one device each.
The directory then holds cells.csv, positions.csv, runs.jsonl, summary.json, sweep.json and report.html.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_arguments(arguments)
    rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    try:
        prompts = chosen_prompts(options)
        plan = make_plan(options, prompts)
        command = "python -m dflash_core.sweep " + shlex.join(arguments)
        sweep(options, plan, command, rank, size)
    except (ValueError, WeightsUnavailable) as error:  # SweepError and PairError among them
        raise SystemExit(f"sweep: {error}") from error


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "dflash_core.sweep", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="directory of the results; it may hold a part of them already")
    add("--pair", default="embedded", choices=list(PAIRS), help="model pair (default: embedded)")
    add("--target", help="directory or hub id of another target")
    add("--draft", help="directory or hub id of another draft")
    add(
        "--prompts",
        type=Path,
        help="a text file with a prompt a line, or .jsonl with prompt or messages, and maybe name and kind",
    )
    add("--presets", nargs="+", metavar="NAME", help=f"the page's presets by name, or all: {'; '.join(preset_names())}")
    add("--raw", action="store_true", help="continue the prompts as they are, without the chat template")
    add("--temperatures", type=float, nargs="+", default=[0.0, 0.3, 0.7, 1.0], metavar="T")
    add("--draft-temperatures", type=float, nargs="+", metavar="T", help="of the draft; it follows the target's if not given")
    add("--block-sizes", type=int, nargs="+", default=[4, 8, 16], metavar="B", help="plain decoding (1) is always measured")
    add("--rules", nargs="+", choices=list(RULES), default=["match", "speculative"])
    add("--seeds", type=int, nargs="+", default=[0], metavar="S")
    add("--tokens", type=int, default=128, help="cap on a run (default: 128)")
    add("--top-p", type=float, default=1.0)
    add("--top-k", type=int, default=0)
    add("--rows", type=int, default=1, help="runs decoded together as rows of a batch; only those decoded one by one are timed")
    add("--timed-prompts", type=int, default=2, help="with --rows: the first so many prompts are decoded one by one and timed")
    add("--no-contexts", action="store_true", help="leave the same-contexts curves out")
    add("--no-report", action="store_true", help="leave report.html out")
    add("--device", default="auto", help="cpu, cuda, …; with several processes each takes its own GPU")
    add("--dtype", default="auto", help="float32, bfloat16, float16 or auto")
    return parser.parse_args(arguments)


def chosen_prompts(options: argparse.Namespace) -> tuple[Prompt, ...]:
    """Of the file and the presets that were asked for; all presets if neither was."""
    names = options.presets or ([] if options.prompts else ["all"])
    prompts = read_prompts(options.prompts, chat=not options.raw) if options.prompts else ()
    if names:
        prompts += preset_prompts(preset_names() if names == ["all"] else names, chat=False if options.raw else None)
    return prompts


def make_plan(options: argparse.Namespace, prompts: tuple[Prompt, ...]) -> SweepPlan:
    return SweepPlan(
        prompts,
        tuple(options.temperatures),
        tuple(options.block_sizes),
        tuple(options.rules),
        tuple(options.draft_temperatures or [None]),
        tuple(options.seeds),
        options.tokens,
        options.top_p,
        options.top_k,
        options.rows,
        options.timed_prompts,
        not options.no_contexts,
    )


def sweep(options: argparse.Namespace, plan: SweepPlan, command: str, rank: int, size: int) -> None:
    """Decodes this process's share of what is missing; the first process writes the results."""
    check_writable(options.out)
    if size > 1:
        # gloo on any device: the processes only wait for each other.
        torch.distributed.init_process_group("gloo", timeout=timedelta(days=30))
    try:
        pair = load_pair(
            options.pair, target=options.target, draft=options.draft, device=own_device(options.device, size), dtype=options.dtype
        )
        if rank == 0:
            SweepDirectory.create(options.out, plan, encode_prompts(pair, plan), describe(pair, command))
        if size > 1:
            torch.distributed.barrier()
        directory = SweepDirectory.open(options.out)
        stopped = decode(pair, directory, (rank, size))
        if size > 1:
            torch.distributed.barrier()
        if rank == 0:
            finish(directory, report=not options.no_report)
            if stopped:
                raise SystemExit("sweep: stopped; the same command goes on from here")
    finally:
        if size > 1:
            torch.distributed.destroy_process_group()


def check_writable(path: Path) -> None:
    """Raises SweepError before anything is loaded."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise SweepError(f"{path} cannot be written: {error.strerror or error}; choose another --out") from error


def own_device(device: str, size: int) -> str:
    """Of several processes each takes its own GPU, if there are GPUs and nothing else was asked for."""
    if size == 1 or device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    number, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if number >= there:
        raise SweepError(f"there are more processes than GPUs on this machine ({there}): start one for each, or add --device cpu")
    return f"cuda:{number}"


def decode(pair: Pair, directory: SweepDirectory, part: tuple[int, int]) -> bool:
    """Decodes what is missing of this part and puts it into the directory. Whether Ctrl-C stopped it."""
    done = {run.key for run in directory.runs()}
    steps = sweep_runs(pair, directory.plan, directory.prompt_ids, done=done, part=part)
    with tqdm(disable=part[0] > 0, unit="run", bar_format="{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} runs, {desc}") as bar:
        try:
            for step in steps:
                if step.run is None:
                    continue
                directory.append(step.run, part=part)
                bar.total, bar.n = step.n_runs, step.n_done
                left = "" if step.seconds_left is None else f"{bar.format_interval(step.seconds_left)} left"
                bar.set_description_str(left)
        except KeyboardInterrupt:
            steps.close()
            return True
    return False


def finish(directory: SweepDirectory, *, report: bool) -> None:
    """Puts the runs in order, writes the figures, and has the report made."""
    directory.merge()
    results = write_results(directory)
    for recommendation in results.recommendations:
        print(recommendation.text)
    if report and importlib.util.find_spec(REPORT.partition(".")[0]) and importlib.util.find_spec(REPORT):
        made = subprocess.run([sys.executable, "-m", REPORT, str(directory.path)], check=False)
        if made.returncode:
            print(
                f"The report could not be made (reason above). python -m {REPORT} {directory.path} tries again.", file=sys.stderr
            )
    print(f"{directory.path}: {', '.join(sorted(path.name for path in directory.path.iterdir()))}")
