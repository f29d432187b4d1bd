"""A sweep as a visitor asks for it, checked: the plan, and the command that repeats it. Pure; no gradio."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened  # a wrong value can be of any size
from typing import Any

from dflash_core.blocks import is_number, require
from dflash_core.pairs import PAIRS, Pair
from dflash_core.sweep.plan import Prompt, SweepPlan
from dflash_core.sweep.prompts import parse_prompts, preset_prompts
from dflash_core.verify import RULES

from .requests import MAX_BLOCK_SIZE, MAX_PROMPT, MAX_TEMPERATURE
from .text import text

# What one visitor may ask of a page; the command line takes more.
MAX_CELLS = 400
MAX_PROMPTS = 200
MAX_SEEDS = 8
MAX_TOKENS = 512  # a run
MAX_ALL_TOKENS = 200_000
MAX_ROWS = 32


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """One sweep as asked for. Raises ValueError, saying what would be right, for anything that a page does not sweep.

    file: name of the file that the prompts came from; None for presets.
    """

    pair: str
    plan: SweepPlan
    file: str | None

    @classmethod
    def parse(
        cls,
        pair: object,
        temperatures: object,
        block_sizes: object,
        rules: object,
        presets: object,
        file: object,
        seeds: object,
        tokens: object,
        draft_temperatures: object,
        rows: object,
        chat: object,
        *,
        pairs: Sequence[str],
    ) -> SweepRequest:
        """Values as they arrive from the controls; `pairs` are those on offer.

        file: path of an uploaded file, whose prompts stand in place of the presets. seeds: how many. chat: False
        continues all prompts as raw text. draft_temperatures: none where the draft follows the temperature.
        """
        require(isinstance(pair, str) and pair in pairs, f"the model pair must be one of {', '.join(pairs)}")
        require(isinstance(chat, bool), f"chat must be true or false, not {shortened(chat)}")
        drafts: list[float | None] = [
            _number("a draft temperature", value, 0, MAX_TEMPERATURE)
            for value in (_several("draft temperatures", draft_temperatures) if draft_temperatures else [])
        ] or [None]
        heats = sorted(_number("a temperature", value, 0, MAX_TEMPERATURE) for value in _several("temperatures", temperatures))
        sizes = sorted(_whole("a block size", value, 2, MAX_BLOCK_SIZE) for value in _several("block sizes", block_sizes))
        named = [str(rule) for rule in _several("rules", rules)]
        unknown = [rule for rule in named if rule not in RULES]
        require(not unknown, f"a rule must be one of {', '.join(RULES)}, not {shortened(unknown)}")
        n_seeds, n_tokens = _whole("seeds", seeds, 1, MAX_SEEDS), _whole("tokens a run", tokens, 2, MAX_TOKENS)
        n_cells = len(heats) * len(sizes) * len(named) * len(drafts)
        require(n_cells <= MAX_CELLS, text("sweep", "too_many_cells").format(n=n_cells, most=MAX_CELLS))
        prompts = _prompts(presets, file, chat is True)
        whole = n_cells * len(prompts) * n_seeds * n_tokens
        require(whole <= MAX_ALL_TOKENS, text("sweep", "too_many_tokens").format(n=whole, most=MAX_ALL_TOKENS))
        plan = SweepPlan(
            prompts,
            tuple(heats),
            tuple(sizes),
            tuple(rule for rule in RULES if rule in named),
            tuple(drafts),
            tuple(range(n_seeds)),
            n_tokens,
            rows=_whole("rows", rows, 1, MAX_ROWS),
        )
        return cls(str(pair), plan, Path(file).name if isinstance(file, str) else None)

    def command(self, pair: Pair) -> str:
        """The command line that sweeps the same. A file of prompts is named as it was uploaded."""
        plan = self.plan
        words = ["python", "-m", "dflash_core.sweep", "--out", "sweep"]
        if self.pair in PAIRS:
            words += ["--pair", self.pair]
        else:
            sources = [Path(source).name if Path(source).is_dir() else source for source in pair.sources]
            words += [word for option in zip(("--target", "--draft"), sources, strict=False) for word in option]
        if self.file is None:
            words += ["--presets", *(prompt.name for prompt in plan.prompts)]
        else:
            words += ["--prompts", self.file]
        words += [] if any(prompt.chat for prompt in plan.prompts) else ["--raw"]
        words += ["--temperatures", *(f"{t:g}" for t in plan.temperatures)]
        if plan.draft_temperatures != (None,):
            words += ["--draft-temperatures", *(f"{d:g}" for d in plan.draft_temperatures)]
        words += ["--block-sizes", *map(str, plan.block_sizes), "--rules", *plan.rules, "--seeds", *map(str, plan.seeds)]
        words += ["--tokens", str(plan.max_new_tokens)]
        if plan.rows > 1:
            words += ["--rows", str(plan.rows), "--timed-prompts", str(plan.timed_prompts)]
        return shlex.join([*words, "--dtype", pair.dtype])


def _prompts(presets: object, file: object, chat: bool) -> tuple[Prompt, ...]:
    if isinstance(file, str):
        prompts = _file_prompts(Path(file), chat)
    else:
        names = [str(name) for name in presets] if isinstance(presets, list) else []
        require(bool(names), text("sweep", "no_prompts"))
        prompts = preset_prompts(names, chat=None if chat else False)
    require(len(prompts) <= MAX_PROMPTS, text("sweep", "too_many_prompts").format(n=len(prompts), most=MAX_PROMPTS))
    for prompt in prompts:
        length = len(prompt.text) + sum(len(said) for _, said in prompt.messages)
        require(length <= MAX_PROMPT, f"the prompt “{prompt.name}” has {length:,} characters; at most {MAX_PROMPT:,} are taken")
    return prompts


def _file_prompts(path: Path, chat: bool) -> tuple[Prompt, ...]:
    try:
        return parse_prompts(path.read_bytes().decode("utf-8"), jsonl=path.suffix.lower() in (".jsonl", ".ndjson"), chat=chat)
    except UnicodeDecodeError as error:
        raise ValueError(f"the file {path.name} is no text file in UTF-8 (byte {error.start:,})") from error
    except OSError as error:
        raise ValueError(f"the file {path.name} cannot be read any more: upload it again") from error
    except ValueError as error:
        raise ValueError(f"the file {path.name}: {error}") from error


def _several(name: str, values: object) -> list[Any]:
    require(isinstance(values, list) and len(values) > 0, f"{name}: choose at least one")
    assert isinstance(values, list)
    require(len(values) <= MAX_CELLS, text("sweep", "too_many_cells").format(n=len(values), most=MAX_CELLS))
    return values


def _number(name: str, value: object, low: float, high: float) -> float:
    """A number, which may have been typed into a menu."""
    try:
        number = float(value.replace(",", ".")) if isinstance(value, str) else value
    except ValueError:
        number = None
    require(
        is_number(number) and low <= number <= high, f"{name} must be a number from {low:g} to {high:g}, not {shortened(value)}"
    )
    return float(number)  # type: ignore[arg-type]


def _whole(name: str, value: object, low: int, high: int) -> int:
    try:
        number = _number(name, value, low, high)
    except ValueError:
        number = low + 0.5
    require(number == int(number), f"{name} must be a whole number from {low:,} to {high:,}, not {shortened(value)}")
    return int(number)
