"""What a sweep is to measure: the grid, its cells and its runs. Plain values, checked."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from itertools import product
from typing import Any

from ..blocks import SamplingParams, is_whole, require
from ..sampling import GREEDY_BELOW

MAX_CELLS = 10_000
MAX_RUNS = 1_000_000
MAX_BLOCK_SIZE = 256
SEED_STRIDE = 1_000_003  # between the seeds of two prompts
SEEDS = 2**31  # as many as the page takes


class SweepError(ValueError):
    """A sweep that cannot be begun, continued or read; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a sweep.

    name: unique within the sweep. kind: what it is grouped by, such as "stories"; its own name where there are no kinds.
    text: the user's turn of a chat, or raw text to be continued where `chat` is False.
    messages: (role, content) of a longer conversation, which then stands in place of `text`.
    """

    name: str
    text: str
    kind: str
    chat: bool = True
    messages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid. Block size 1 is plain decoding, the baseline of the speeds.

    draft_temperature: None follows the temperature.
    """

    temperature: float
    block_size: int
    rule: str
    draft_temperature: float | None = None

    @property
    def is_plain(self) -> bool:
        return self.block_size == 1

    @property
    def is_greedy(self) -> bool:
        """Nothing is drawn: every rule and every seed gives the same run."""
        draft = self.temperature if self.draft_temperature is None else self.draft_temperature
        return max(self.temperature, 0.0 if self.is_plain else draft) < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class RunKey:
    """Names a run within its sweep: the cell it was decoded for, the number of its prompt, its seed."""

    cell: Cell
    prompt: int
    seed: int


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep in full: temperatures × block sizes × rules × draft temperatures, each on every prompt with every seed.

    temperatures: of target and draft. draft_temperatures: None follows the temperature.
    block_sizes: each 2 or more. Plain decoding is run beside them, for the speeds.
    seeds: of the first prompt's runs; those of the others follow from them (`params`).
    max_new_tokens: cap on a run.
    rows: how many runs are decoded together as rows of one batch. Only runs decoded one by one are timed.
    timed_prompts: with rows above 1, the prompts at the head of the list that are decoded one by one all the same.
    contexts: also score the runs of one temperature at all the others (`whatif`), for the same-contexts curves.
    Raises ValueError, saying what would be right, for what cannot be swept.
    """

    prompts: tuple[Prompt, ...]
    temperatures: tuple[float, ...]
    block_sizes: tuple[int, ...]
    rules: tuple[str, ...] = ("match",)
    draft_temperatures: tuple[float | None, ...] = (None,)
    seeds: tuple[int, ...] = (0,)
    max_new_tokens: int = 128
    top_p: float = 1.0
    top_k: int = 0
    rows: int = 1
    timed_prompts: int = 2
    contexts: bool = True

    def __post_init__(self) -> None:
        for name in ("prompts", "temperatures", "block_sizes", "rules", "draft_temperatures", "seeds"):
            values = getattr(self, name)
            require(len(values) > 0, f"{name.replace('_', ' ')} is empty: give at least one")
        n_cells = len(self.temperatures) * len(self.block_sizes) * len(self.rules) * len(self.draft_temperatures)
        factors = (
            f"{len(self.temperatures)} temperatures × {len(self.block_sizes)} block sizes × {len(self.rules)} rules × "
            f"{len(self.draft_temperatures)} draft temperatures"
        )
        require(n_cells <= MAX_CELLS, f"the grid has {n_cells:,} cells ({factors}); at most {MAX_CELLS:,} are taken")
        n_runs = n_cells * len(self.prompts) * len(self.seeds)
        require(
            n_runs <= MAX_RUNS,
            f"the sweep has {n_runs:,} runs ({n_cells:,} cells × {len(self.prompts):,} prompts × {len(self.seeds):,} seeds); "
            f"at most {MAX_RUNS:,} are taken",
        )
        for name in ("temperatures", "block_sizes", "rules", "draft_temperatures", "seeds"):
            values = getattr(self, name)
            twice = sorted({repr(value) for value in values if list(values).count(value) > 1})
            require(not twice, f"{name.replace('_', ' ')} has {', '.join(twice)} more than once")
        names: set[str] = set()
        for prompt in self.prompts:
            require(prompt.name not in names, f"two prompts are named {prompt.name!r}: names must differ")
            names.add(prompt.name)
        for size in self.block_sizes:
            require(
                is_whole(size) and 2 <= size <= MAX_BLOCK_SIZE,
                f"a block size must be a whole number from 2 to {MAX_BLOCK_SIZE}, not {size!r}; "
                "plain decoding (1) is measured in any case",
            )
        for name, least in (("max_new_tokens", 2), ("rows", 1), ("timed_prompts", 0)):
            value = getattr(self, name)
            require(is_whole(value) and value >= least, f"{name} must be a whole number of {least} or more, not {value!r}")
        # The values that SamplingParams judges: one of each is enough.
        for temperature, draft, rule, seed in (
            *((t, None, self.rules[0], 0) for t in self.temperatures),
            *((0.0, d, self.rules[0], 0) for d in self.draft_temperatures),
            *((0.0, None, rule, 0) for rule in self.rules),
            *((0.0, None, self.rules[0], seed) for seed in self.seeds),
        ):
            SamplingParams(temperature, self.top_p, self.top_k, draft, rule, seed)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, plain decoding left out: temperature by temperature, then draft temperature, rule, block size."""
        return tuple(
            Cell(t, size, rule, d)
            for t, d, rule, size in product(self.temperatures, self.draft_temperatures, self.rules, self.block_sizes)
        )

    def decoded_as(self, cell: Cell) -> Cell:
        """The cell whose runs are this one's too: where nothing is drawn, all rules share those of the first."""
        return Cell(cell.temperature, cell.block_size, self.rules[0]) if cell.is_greedy else cell

    def plain_cell(self, temperature: float) -> Cell:
        """Plain decoding at a temperature."""
        return Cell(temperature, 1, self.rules[0])

    def seeds_of(self, cell: Cell) -> tuple[int, ...]:
        """The seeds that a cell is run with: only the first where nothing is drawn."""
        return self.seeds[:1] if cell.is_greedy else self.seeds

    def is_timed(self, prompt: int) -> bool:
        """Whether the runs of this prompt are decoded one by one, and so timed."""
        return self.rows == 1 or prompt < self.timed_prompts

    @property
    def groups(self) -> tuple[tuple[RunKey, ...], ...]:
        """All runs: those of one prompt, seed and temperature are a group, which one process decodes one after another.

        A timed group has its plain run among them, in an order drawn for each group: what slows the machine down for a while
        slows plain decoding and DFlash alike.
        """
        cells = dict.fromkeys(self.decoded_as(cell) for cell in self.cells)
        groups = []
        for prompt, seed, temperature in product(range(len(self.prompts)), self.seeds, self.temperatures):
            members = [cell for cell in cells if cell.temperature == temperature and seed in self.seeds_of(cell)]
            plain = self.plain_cell(temperature)
            if self.is_timed(prompt) and seed in self.seeds_of(plain):
                members.append(plain)
            random.Random(f"{prompt} {seed} {temperature:g}").shuffle(members)
            if members:
                groups.append(tuple(RunKey(cell, prompt, seed) for cell in members))
        return tuple(groups)

    @property
    def keys(self) -> tuple[RunKey, ...]:
        """All runs in the order of the plan."""
        return tuple(key for group in self.groups for key in group)

    @property
    def context_temperature(self) -> float | None:
        """The temperature whose runs (of the first rule and draft temperature) are scored at all the others; None if off."""
        return sorted(self.temperatures)[len(self.temperatures) // 2] if self.contexts else None

    def has_contexts(self, cell: Cell) -> bool:
        """Whether the runs of this cell are scored at the other temperatures too."""
        if cell.is_plain or self.context_temperature is None:
            return False
        chosen = Cell(self.context_temperature, cell.block_size, self.rules[0], self.draft_temperatures[0])
        return cell == self.decoded_as(chosen)

    def params(self, key: RunKey) -> SamplingParams:
        """How the run samples.

        Randomness is keyed by seed and position, so prompts that shared a seed would share their luck, and no interval over
        prompts would be right: each prompt has seeds of its own. Cells share them, which makes their differences sharper.
        """
        cell = key.cell
        seed = (key.seed + key.prompt * SEED_STRIDE) % SEEDS
        return SamplingParams(cell.temperature, self.top_p, self.top_k, cell.draft_temperature, cell.rule, seed)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> SweepPlan:
        """Raises ValueError for anything that `to_dict` did not make."""
        names = {field.name for field in dataclasses.fields(cls)}
        require(isinstance(values, dict) and set(values) == names, f"a plan must be an object with {', '.join(sorted(names))}")
        try:
            prompts = tuple(Prompt(**{**p, "messages": tuple((m[0], m[1]) for m in p["messages"])}) for p in values["prompts"])
            lists = {name: tuple(value) for name, value in values.items() if isinstance(value, (list, tuple))}
        except (TypeError, KeyError, IndexError) as error:
            raise ValueError(f"the plan's prompts are malformed: {error}") from error
        return cls(**{**values, **lists, "prompts": prompts})
