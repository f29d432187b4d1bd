"""A finished run as one line of JSON, and back. Reading validates: a line that says what no run can say is refused.

A line is an object with the cell (temperature, block_size, rule, draft_temperature), prompt (its name), seed, rows, blocks and
contexts (null, or judged and accepted of `Contexts`). A block is an object with

    drafted      ids                               n          tokens emitted
    n_accepted   of them, the rule's verdict       finish     null, "stop" or "length"
    next         the target's own token after      judged     rows of p(x), q(x), acceptance probability, entropy of p, of q
    p_next       p of it                           seconds    of draft, verification and the rest

and the rest of a `Block` follows from these, the blocks before it and the prompt.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from ..blocks import Block, JudgedToken, is_number, is_whole, require
from .plan import Cell, RunKey, SweepPlan
from .runs import CellRun, Contexts

_JUDGED = ("target_prob", "draft_prob", "accept_prob", "target_entropy", "draft_entropy")


def dump_run(run: CellRun, plan: SweepPlan) -> str:
    """The run as a line, its end included."""
    values = {
        **dataclasses.asdict(run.key.cell),
        "prompt": plan.prompts[run.key.prompt].name,
        "seed": run.key.seed,
        "rows": run.rows,
        "blocks": [_block_values(block) for block in run.blocks],
        "contexts": dataclasses.asdict(run.contexts) if run.contexts else None,
    }
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def parse_run(line: str, plan: SweepPlan, prompt_ids: Sequence[Sequence[int]], keys: frozenset[RunKey]) -> CellRun:
    """Reads what `dump_run` wrote. Raises ValueError for anything else, also for a run that the plan does not have."""
    try:
        values = json.loads(line)
        cell = Cell(*(values[field.name] for field in dataclasses.fields(Cell)))
        names = [prompt.name for prompt in plan.prompts]
        key = RunKey(cell, names.index(values["prompt"]), values["seed"])
        require(key in keys, "the plan has no such run")
        require(is_whole(values["rows"]) and values["rows"] >= 1, "rows must be a whole number of 1 or more")
        blocks: list[Block] = []
        ids = prompt_ids[key.prompt]
        for value in values["blocks"]:
            require(not blocks or blocks[-1].finish_reason is None, "a block after the run has finished")
            start = blocks[-1].start + len(blocks[-1].emitted) if blocks else len(ids) - 1
            anchor = blocks[-1].emitted[-1] if blocks else ids[-1]
            blocks.append(_block(value, len(blocks), start, anchor, cell.block_size))
        require(bool(blocks) and blocks[-1].finish_reason is not None, "the run has not finished")
        return CellRun(key, tuple(blocks), values["rows"], _contexts(values["contexts"], plan, cell))
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a run as this program writes it ({type(error).__name__}: {error})") from error


def _block_values(block: Block) -> dict[str, Any]:
    return {
        "drafted": block.drafted,
        "n_accepted": block.n_accepted,
        "next": block.next_token,
        "n": len(block.emitted),
        "finish": block.finish_reason,
        "judged": [[_rounded(getattr(token, name)) for name in _JUDGED] for token in block.judged],
        "p_next": None if block.next_target_prob is None else _rounded(block.next_target_prob),
        "seconds": [round(value, 6) for value in (block.draft_seconds, block.verify_seconds, block.other_seconds)],
    }


def _block(value: dict[str, Any], index: int, start: int, anchor: int, block_size: int) -> Block:
    drafted = tuple(value["drafted"])
    n_accepted, next_token, n = value["n_accepted"], value["next"], value["n"]
    require(all(is_whole(v) and v >= 0 for v in (*drafted, n_accepted, next_token, n)), "ids and counts must be whole numbers")
    require(len(drafted) == (block_size - 1 if index else 0), f"a block of {block_size} with {len(drafted)} drafted tokens")
    require(
        n_accepted <= len(drafted) and 1 <= n <= n_accepted + 1, "more tokens accepted than drafted, or emitted than accepted"
    )
    require(value["finish"] in (None, "stop", "length"), 'finish must be null, "stop" or "length"')
    require(n == n_accepted + 1 or value["finish"] is not None, "a cut block must say why in finish")
    numbers = [*value["seconds"], *(v for row in value["judged"] for v in row)]
    require(len(value["seconds"]) == 3 and all(is_number(v) and v >= 0 for v in numbers), "numbers must be 0 or more")
    judged = tuple(JudgedToken(**dict(zip(_JUDGED, row, strict=True))) for row in value["judged"])
    require(len(judged) in (0, min(n_accepted + 1, len(drafted))), "judged has the wrong length")
    require(value["p_next"] is None or is_number(value["p_next"]), "p_next must be a number")
    return Block(
        index,
        start,
        anchor,
        drafted,
        n_accepted,
        next_token,
        "resampled" if n_accepted < len(drafted) else "bonus",
        (*drafted[:n_accepted], next_token)[:n],
        value["finish"],
        judged,
        value["p_next"],
        *value["seconds"],
    )


def _contexts(value: Any, plan: SweepPlan, cell: Cell) -> Contexts | None:
    if value is None:
        return None
    judged = tuple(value["judged"])
    accepted = {rule: tuple(tuple(row) for row in rows) for rule, rows in value["accepted"].items()}
    right = len(judged) == cell.block_size - 1 and set(accepted) == set(plan.rules)
    right = right and all(len(rows) == len(plan.temperatures) for rows in accepted.values())
    rows = [judged, *(row for rows in accepted.values() for row in rows)]
    right = right and all(len(row) == len(judged) and all(is_number(v) and v >= 0 for v in row) for row in rows)
    require(right, "contexts do not fit the plan")
    return Contexts(judged, accepted)


def _rounded(value: float) -> float:
    """Six significant digits: about what float32 has."""
    return float(f"{value:.6g}")
