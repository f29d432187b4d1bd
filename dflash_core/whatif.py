"""What if the temperature had been another? A second, teacher-forced pass over a finished run says, at the same contexts.

Both models run once more over the recorded blocks, in the same shapes, so they give the logits of the run again. For each
temperature of a grid these become p and q, and from them the closed-form acceptance of every rule. Nothing is sampled.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .blocks import Block, Generation, SamplingParams, is_within, require
from .generate import Draft
from .sampling import entropy, probabilities
from .target import as_target
from .verify import RULES, Rule

Table = tuple[tuple[float, ...], ...]  # a row for each position, in it a number for each temperature

_MAX_ENTROPY = 100.0  # nats, far above the log of any vocabulary
_LEVELS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The judged positions of a run at other temperatures. Plain values, of six significant digits.

    temperatures: the grid. It sets p's temperature, and q's too unless the run has a draft temperature of its own, which stays.
    positions: (block index, i) of each judged drafted token in the order of the run; i = 1 … γ is its place in the block.
    acceptance: for each rule its probability of accepting that position, over the draft's and its own draws. That of `block`
        is the ratio test's: it looks at one position alone, and so is a lower bound of what the rule keeps.
    target_entropy, draft_entropy: of p and q, in nats. target_prob, draft_prob: p(x) and q(x) of the drafted token x.
    """

    temperatures: tuple[float, ...]
    positions: tuple[tuple[int, int], ...]
    acceptance: dict[str, Table]
    target_entropy: Table
    draft_entropy: Table
    target_prob: Table
    draft_prob: Table

    def to_dict(self) -> dict[str, object]:
        """For JSON; `from_dict` reads it back."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: object) -> WhatIf:
        """Reads what `to_dict` gave, also after a round trip through JSON. Raises ValueError for anything else."""
        names = [field.name for field in fields(cls)]
        _require(isinstance(values, dict) and set(values) == set(names), f"must be an object with {', '.join(names)}")
        assert isinstance(values, dict)
        temperatures = check_temperatures(values["temperatures"])
        positions = _positions(values["positions"])
        acceptance: Any = values["acceptance"]
        _require(
            isinstance(acceptance, dict) and len(acceptance) > 0 and set(acceptance) <= set(RULES),
            f'"acceptance" must be an object with some of the rules {", ".join(RULES)}',
        )

        def table(value: Any, name: str, high: float) -> Table:
            _require(
                _is_list(value) and len(value) == len(positions),
                f'"{name}" must have a row for each of the {len(positions)} positions',
            )
            _require(
                all(_is_list(row) and len(row) == len(temperatures) and all(is_within(v, 0, high) for v in row) for row in value),
                f'each row of "{name}" must have {len(temperatures)} numbers from 0 to {high:g}, one for each temperature',
            )
            return tuple(tuple(float(v) for v in row) for row in value)

        return cls(
            temperatures,
            positions,
            {key: table(rows, key, 1.0) for key, rows in acceptance.items()},
            *(table(values[name], name, _MAX_ENTROPY) for name in ("target_entropy", "draft_entropy")),
            *(table(values[name], name, 1.0) for name in ("target_prob", "draft_prob")),
        )


class ExpectedTau(NamedTuple):
    """τ at one temperature with its 95 % interval, which is None for a run of one block."""

    temperature: float
    tau: float
    low: float | None
    high: float | None


@torch.inference_mode()
def rescore(
    draft: Draft,
    target: Any,
    generation: Generation,
    temperatures: Iterable[float],
    *,
    rules: Sequence[str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """Scores the judged positions of a run at each temperature, in a second pass over its blocks.

    draft, target: the pair that made the run; the target a transformers model or any `Target`. They keep nothing of it.
    temperatures: the grid, each 0 or more; below 1e-5 is greedy. The run's top_p and top_k apply. The draft's temperature
        follows the grid, unless the run's `draft_temperature` is set: then the draft keeps that one.
    rules: keys of `verify.RULES`; None takes all.
    on_progress: told (blocks done, blocks in all) after each block; what it raises ends the pass.

    The memory beyond the models' own does not grow with the run: it is that of a few (γ, V), the judged rows of one block at
    one temperature, in float32 (`coupled`: float64). Raises ValueError, before the first pass, for a run without judged tokens,
    one that does not fit this pair, and bad temperatures or rules.
    """
    target = as_target(target)
    grid = check_temperatures(temperatures)
    chosen = _rules(rules)
    positions = judged_positions(generation.blocks)
    require(
        len(positions) > 0,
        "this run has no judged token, so there is nothing to score again: take a run with block_size 2 or more and at "
        "least 2 new tokens",
    )
    _check_fit(generation, target.vocab_size, target.max_positions)

    taps = draft.target_layer_ids
    target_cache, draft_cache = target.new_cache(), draft.new_cache()
    prompt = torch.tensor([generation.prompt_ids], device=target.device)
    _, features = target.forward(prompt, target_cache, taps=taps, last_only=True)
    target.roll_back(target_cache, prompt.shape[1])
    columns: list[list[tuple[float, ...]]] = [[] for _ in range(4 + len(chosen))]
    blocks = generation.blocks[1:]
    for done, block in enumerate(blocks, start=1):
        # One block a pass, as in the run: other shapes would round otherwise and give other logits.
        ids = torch.tensor([[block.anchor, *block.drafted]], device=target.device)
        draft_logits = draft.propose(draft_cache, features, ids[:, :1], generation.block_size, target.embed, target.head)
        logits, features = target.forward(ids, target_cache, taps=taps, last_only=False)
        n_committed = len(block.emitted)
        target.roll_back(target_cache, block.start + n_committed)
        features = features[:, :n_committed]
        n_judged = _n_judged(block)
        scores = [
            _scores(logits[0, :n_judged], draft_logits[0, :n_judged], ids[0, 1 : n_judged + 1], t, generation.params, chosen)
            for t in grid
        ]
        for column, rows in zip(columns, torch.stack(scores, dim=-1).tolist(), strict=True):
            column += [tuple(_rounded(value) for value in row) for row in rows]
        if on_progress is not None:
            on_progress(done, len(blocks))

    tables = [tuple(column) for column in columns]
    acceptance = {rule.key: table for rule, table in zip(chosen, tables[4:], strict=True)}
    return WhatIf(grid, positions, acceptance, *tables[:4])


def expected_tau(whatif: WhatIf, rule: str, *, n_bootstrap: int = 1000, seed: int = 0) -> list[ExpectedTau]:
    """τ(T) = 1 + Σᵢ Πⱼ≤ᵢ āⱼ at the contexts of the run, for each temperature.

    āⱼ is the mean acceptance over the positions judged at place j of a block. At a place that was never judged it counts as 0:
    τ(T) is too low if the run never got as far as T would. The contexts are those that the run came upon at its own temperature
    and rule; at T it would have gone elsewhere. For `block` it is the ratio test's τ, a lower bound.
    The interval is the percentile bootstrap's, n_bootstrap draws of whole blocks with replacement; `seed` fixes them.
    Raises ValueError for a rule that was not scored.
    """
    require(
        rule in whatif.acceptance,
        f"the rule {rule!r} was not scored; this what-if has {', '.join(whatif.acceptance)}",
    )
    require(n_bootstrap >= 1, f"n_bootstrap must be at least 1, not {n_bootstrap}")
    block_of = np.cumsum([i == 1 for _, i in whatif.positions]) - 1
    place = np.array([i for _, i in whatif.positions])
    acceptance = np.array(whatif.acceptance[rule])
    n_blocks = int(block_of[-1]) + 1
    resampled = np.random.default_rng(seed).multinomial(n_blocks, np.full(n_blocks, 1 / n_blocks), size=n_bootstrap)
    # How often each block counts: row 0 is the run itself, the others are the bootstrap's.
    weights = np.concatenate([np.ones((1, n_blocks)), resampled])
    survival = np.ones((1 + n_bootstrap, len(whatif.temperatures)))
    taus = survival.copy()
    for i in range(1, int(place.max()) + 1):
        at_place = place == i
        counted = weights[:, block_of[at_place]]
        n_judged = counted.sum(axis=1, keepdims=True)
        survival *= counted @ acceptance[at_place] / np.maximum(n_judged, 1)
        taus += survival
    lows, highs = np.quantile(taus[1:], _LEVELS, axis=0).tolist() if n_blocks > 1 else [itertools.repeat(None)] * 2
    return [ExpectedTau(*row) for row in zip(whatif.temperatures, taus[0].tolist(), lows, highs, strict=False)]


def judged_positions(blocks: Iterable[Block]) -> tuple[tuple[int, int], ...]:
    """(block index, i) of each drafted token that was judged within the output: accepted, or rejected and replaced there."""
    return tuple((block.index, i) for block in blocks for i in range(1, _n_judged(block) + 1))


def check_temperatures(values: Any) -> tuple[float, ...]:
    """The grid as floats. Raises ValueError unless there is at least one, each a finite number of 0 or more."""
    require(isinstance(values, Iterable) and not isinstance(values, str), "temperatures must be a list of numbers")
    grid = tuple(values)
    require(len(grid) > 0, "temperatures is empty: give at least one")
    wrong = [value for value in grid if not is_within(value, 0, sys.float_info.max)]
    require(not wrong, f"each temperature must be a number of 0 or more, not {str(wrong[:1])[1:-1][:40]}")
    return tuple(float(value) for value in grid)


def _scores(
    logits: Tensor, draft_logits: Tensor, drafted: Tensor, temperature: float, params: SamplingParams, rules: list[Rule]
) -> Tensor:
    """Entropies of p and q, p(x), q(x) and each rule's acceptance: (n, V), (n, V) and (n,) → (4 + rules, n)."""
    draft_temperature = temperature if params.draft_temperature is None else params.draft_temperature
    p = probabilities(logits, temperature=temperature, top_p=params.top_p, top_k=params.top_k)
    q = probabilities(draft_logits, temperature=draft_temperature, top_p=params.top_p, top_k=params.top_k)
    p_x, q_x = (probs.gather(-1, drafted[:, None])[:, 0] for probs in (p, q))
    # A sum of float32 shares can pass 1 by rounding.
    accepted = [rule.acceptance(p, q).clamp(max=1.0) for rule in rules]
    return torch.stack([entropy(p), entropy(q), p_x, q_x, *accepted]).clamp_min(0.0)


def _rounded(value: float) -> float:
    """Six significant digits: about what float32 has, in half the length."""
    return float(f"{value:.6g}")


def _n_judged(block: Block) -> int:
    return block.accepted + block.rejected


def _rules(keys: Sequence[str] | None) -> list[Rule]:
    keys = list(RULES) if keys is None else list(keys)
    unknown = [key for key in keys if key not in RULES]
    require(len(keys) > 0 and not unknown, f"rules must be some of {', '.join(RULES)}, not {unknown or keys}")
    return [RULES[key] for key in keys]


def _check_fit(generation: Generation, vocab_size: int, max_positions: int) -> None:
    largest = max(*generation.prompt_ids, *generation.token_ids, *(max(block.drafted, default=0) for block in generation.blocks))
    require(
        largest < vocab_size,
        f"the run has token id {largest}, but the target's vocabulary ends at {vocab_size - 1}: take the pair that made the run",
    )
    end = generation.blocks[-1].start + generation.block_size
    require(
        end <= max_positions,
        f"the run reaches position {end}, beyond the target's context of {max_positions}: take the pair that made the run",
    )


def _positions(value: Any) -> tuple[tuple[int, int], ...]:
    message = '"positions" must be a list of [block index, i], blocks in order and i = 1, 2, … in each'
    _require(_is_list(value) and len(value) > 0, message)
    block, place = 0, 0  # the prefill's block, in which nothing is judged
    for pair in value:
        _require(_is_list(pair) and len(pair) == 2 and all(type(v) is int for v in pair), message)
        goes_on = block > 0 and pair[0] == block and pair[1] == place + 1
        _require(goes_on or (pair[0] > block and pair[1] == 1), message)
        block, place = pair
    return tuple((block, place) for block, place in value)


def _require(condition: bool, message: str) -> None:
    require(condition, f"the what-if is malformed: {message}")


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))
