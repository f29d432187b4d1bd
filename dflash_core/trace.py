"""Runs as JSONL files: a header line, a line for each block, maybe a what-if line. Reading validates every number.

The format is described in docs/trace-format.md.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from reprlib import repr as shortened  # a wrong value can be of any size
from typing import Any

from .blocks import Block, Generation, JudgedToken, SamplingParams, is_whole, is_within
from .whatif import WhatIf, judged_positions

FORMAT = "dflash-trace"
VERSION = 1

# What no run comes near, and what keeps sums finite and memory small while a file from elsewhere is read.
MAX_TOKEN_ID = 2**31 - 1
MAX_BLOCK_SIZE = 1024
MAX_SECONDS = 1e7
MAX_ENTROPY = 100.0  # nats
MAX_SHARE = 1.001  # a probability, with room for the rounding of float32 sums


class TraceError(ValueError):
    """A trace that cannot be read; the message names the line."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run.

    about: what a reader needs beside the numbers, such as pair, device, dtype, date and versions; JSON values.
    texts: for each block, how it was shown: a list of JSON objects that this module stores and returns unread.
    whatif: the run's judged positions at other temperatures, if they were scored.
    """

    generation: Generation
    about: dict[str, Any]
    texts: tuple[Any, ...]
    whatif: WhatIf | None = None


def dump_trace(trace: Trace) -> str:
    """The trace as JSONL text."""
    generation = trace.generation
    header = {
        "format": FORMAT,
        "version": VERSION,
        "about": trace.about,
        "params": dataclasses.asdict(generation.params),
        "block_size": generation.block_size,
        "prompt_ids": generation.prompt_ids,
    }
    lines = [header]
    for block, text in zip(generation.blocks, trace.texts, strict=True):
        lines.append({"block": block.to_dict(), "text": text})
    if trace.whatif is not None:
        lines.append({"whatif": trace.whatif.to_dict()})
    return "".join(json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n" for line in lines)


def parse_trace(text: str) -> Trace:
    """Reads what `dump_trace` wrote. Raises TraceError, naming the line, for anything else."""
    # Not splitlines(): texts may hold the other line separators of Unicode.
    lines = text.removesuffix("\n").split("\n")
    header = _object(lines[0], 1)
    _check(header.get("format") == FORMAT, 1, f'not a DFlash Lab trace: "format" must be "{FORMAT}"')
    version = header.get("version")
    _check(
        is_whole(version) and version == VERSION,
        1,
        f"trace version {shortened(version)} cannot be read; this program reads version {VERSION}"
        + (" (a newer DFlash Lab wrote it: update this one)" if is_whole(version) and version > VERSION else ""),
    )
    _check(isinstance(header.get("about"), dict), 1, '"about" must be an object')
    prompt_ids = _ids(header.get("prompt_ids"), 1, "prompt_ids")
    _check(len(prompt_ids) > 0, 1, '"prompt_ids" is empty')
    block_size: Any = header.get("block_size")
    _check(
        is_whole(block_size) and 1 <= block_size <= MAX_BLOCK_SIZE,
        1,
        f'"block_size" must be a whole number from 1 to {MAX_BLOCK_SIZE:,}',
    )
    params = _build(SamplingParams, header.get("params"), 1, "params")
    blocks: list[Block] = []
    texts: list[Any] = []
    whatif: WhatIf | None = None
    for number, line in enumerate(lines[1:], start=2):
        _check(whatif is None, number, "a line after the what-if, which comes last")
        entry = _object(line, number)
        if "whatif" in entry:
            whatif = _whatif(entry["whatif"], number, blocks)
            continue
        block = _block(entry.get("block"), number, block_size)
        _check(block.index == len(blocks), number, f"block index {block.index} where {len(blocks)} was due")
        start = blocks[-1].start + len(blocks[-1].emitted) if blocks else len(prompt_ids) - 1
        anchor = blocks[-1].emitted[-1] if blocks else prompt_ids[-1]
        _check(block.start == start, number, f"block starts at {block.start} where {start} was due")
        _check(block.anchor == anchor, number, f"the anchor is {block.anchor} where {anchor} was due")
        _check(bool(blocks) or not block.drafted, number, "block 0 is the prefill: it has no drafted tokens")
        _check(not blocks or blocks[-1].finish_reason is None, number, "a block after the run has finished")
        blocks.append(block)
        texts.append(entry.get("text"))
    generation = Generation(prompt_ids, params, block_size, tuple(blocks))
    return Trace(generation, header["about"], tuple(texts), whatif)


def _block(value: Any, line: int, block_size: int) -> Block:
    _check(isinstance(value, dict), line, '"block" must be an object')
    values = dict(value)
    drafted, emitted = _ids(values.get("drafted"), line, "drafted"), _ids(values.get("emitted"), line, "emitted")
    judged: Any = values.get("judged")
    _check(isinstance(judged, list), line, '"judged" must be a list')
    tokens = [_judged(entry, line) for entry in judged]
    block = _build(Block, {**values, "drafted": drafted, "emitted": emitted, "judged": tuple(tokens)}, line, "block")
    whole = (block.index, block.start, block.anchor, block.n_accepted, block.next_token)
    seconds = (block.draft_seconds, block.verify_seconds, block.other_seconds)
    _check(
        all(is_whole(v) and v >= 0 for v in whole),
        line,
        "index, start, anchor, n_accepted and next_token must be whole numbers",
    )
    _check(block.next_token <= MAX_TOKEN_ID, line, "next_token is no token id")
    _check(all(is_within(v, 0, MAX_SECONDS) for v in seconds), line, f"seconds must be numbers from 0 to {MAX_SECONDS:,.0f}")
    _check(len(drafted) < block_size, line, f"{len(drafted)} drafted tokens do not fit into block size {block_size}")
    _check(block.n_accepted <= len(drafted), line, "more tokens accepted than drafted")
    kind = "resampled" if block.n_accepted < len(drafted) else "bonus"
    _check(block.next_kind == kind, line, f'next_kind must be "{kind}" here')
    _check(block.finish_reason in (None, "stop", "length"), line, 'finish_reason must be null, "stop" or "length"')
    candidates = (*drafted[: block.n_accepted], block.next_token)
    _check(len(emitted) > 0 and emitted == candidates[: len(emitted)], line, "emitted does not follow from the verdict")
    _check(block.finish_reason is not None or not block.is_cut, line, "a cut block must say why in finish_reason")
    _check(not tokens or len(tokens) == min(block.n_accepted + 1, len(drafted)), line, "judged has the wrong length")
    _check(block.next_target_prob is None or _is_share(block.next_target_prob), line, "next_target_prob must be from 0 to 1")
    return block


def _judged(entry: Any, line: int) -> JudgedToken:
    _check(isinstance(entry, dict) and isinstance(entry.get("table", []), list), line, '"judged" has a malformed entry')
    rows = entry.get("table", [])
    for name, value in entry.items():
        if name in ("target_entropy", "draft_entropy"):
            # Rounding can leave an entropy of 0 just below it.
            _check(is_within(value, -1e-3, MAX_ENTROPY), line, f'"judged": {name} must be a number from 0 to {MAX_ENTROPY:g}')
        elif name != "table":
            _check(_is_share(value), line, '"judged" must hold probabilities from 0 to 1')
    _check(all(_is_table_row(row) for row in rows), line, '"table" must hold rows of a token id and two probabilities')
    sums = [sum(row[column] for row in rows) for column in (1, 2)]
    _check(max(sums) <= MAX_SHARE, line, '"table" must hold probabilities that sum to at most 1')
    return _build(JudgedToken, {**entry, "table": tuple((t, p, q) for t, p, q in rows)}, line, "judged")


def _whatif(value: Any, line: int, blocks: list[Block]) -> WhatIf:
    try:
        whatif = WhatIf.from_dict(value)
    except ValueError as error:
        raise TraceError(f"line {line}: {error}") from error
    _check(whatif.positions == judged_positions(blocks), line, "the what-if's positions must be the judged ones of the blocks")
    return whatif


def _object(text: str, line: int) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=lambda name: _fail(line, f"{name} is not a JSON number"))
    except TraceError:
        raise
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise TraceError(f"line {line}: not valid JSON") from error
    _check(isinstance(value, dict), line, "must be a JSON object")
    return dict(value)


def _ids(value: Any, line: int, name: str) -> tuple[int, ...]:
    _check(
        isinstance(value, list) and all(_is_token(v) for v in value),
        line,
        f'"{name}" must be a list of token ids',
    )
    return tuple(value)


def _build(kind: type, values: Any, line: int, name: str) -> Any:
    _check(isinstance(values, dict), line, f'"{name}" must be an object')
    try:
        return kind(**values)
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f'line {line}: "{name}" is malformed: {error}') from error


def _is_token(value: object) -> bool:
    return is_whole(value) and 0 <= value <= MAX_TOKEN_ID


def _is_share(value: object) -> bool:
    return is_within(value, 0, MAX_SHARE)


def _is_table_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 3 and _is_token(row[0]) and _is_share(row[1]) and _is_share(row[2])


def _check(condition: bool, line: int, message: str) -> None:
    if not condition:
        _fail(line, message)


def _fail(line: int, message: str) -> None:
    raise TraceError(f"line {line}: {message}")
