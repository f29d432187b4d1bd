"""What a trace says beside its numbers, checked before anything uses it: how it was made, and the texts of its tokens.

A file may come from anywhere. Of a chip only its text and the tokens it covers are taken from the file; its state and its
numbers are made again from the block, so a file cannot show one thing and count another. Pure: no gradio import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dflash_core.blocks import Block, is_whole, require
from dflash_core.trace import MAX_BLOCK_SIZE, MAX_TOKEN_ID, TraceError

from .render import Chip, tokens_shown

MAX_TEXT = 1_000  # characters of one chip; the longest tokens of known vocabularies have a few hundred
MAX_PROMPT = 200_000  # characters, templates included
MAX_NAME = 200  # characters of a name, a date, a title
MAX_TOKENS = 1_000_000


def checked_about(about: dict[str, Any]) -> dict[str, Any]:
    """What is known of the run, of the right types and sizes; what this program has no use for is left out.

    Raises TraceError, which names line 1, where it stands.
    """
    missing = [name for name in REQUIRED if name not in about]
    if missing:
        raise TraceError(f'line 1: "about" lacks {", ".join(missing)}: this program wrote no such file')
    checked = {}
    for name, value in about.items():
        if name in _CHECKS:
            try:
                checked[name] = _CHECKS[name](value)
            except ValueError as error:
                raise TraceError(f'line 1: "about", {name}: {error}') from error
    return checked


def checked_chips(block: Block, entry: Any) -> list[Chip]:
    """The chips of a block, from what a trace holds of them. Raises TraceError, which names the block's line."""
    try:
        require(isinstance(entry, list), "must be a list of chips")
        return _chips(block, entry)
    except ValueError as error:
        raise TraceError(f'line {block.index + 2}: "text": {error}') from error


def _chips(block: Block, entry: list[Any]) -> list[Chip]:
    tokens, chips = tokens_shown(block), list[Chip]()
    at = 0  # the first token that has no chip yet
    for found in entry:
        require(isinstance(found, dict), "a chip must be an object")
        ids, special = found.get("ids"), found.get("special", False)
        require(isinstance(ids, list) and special in (True, False), "a chip's ids must be a list, its special true or false")
        shown = {"t": _text(found.get("t"), MAX_TEXT)} | ({"special": True} if special else {})
        # One without ids holds what was left open of a character, and stands before the token that came instead.
        group = tokens[at : at + max(1, len(ids))]
        require(
            bool(group) and ids in ([], [chip["ids"][0] for chip in group]) and len({chip["s"] for chip in group}) == 1,
            "the chips' tokens must be those of the block, in the order of display",
        )
        first = group[0]
        part = {name: first[name] for name in ("s", "pos", "k")}
        if len(ids) > 1:
            chips.append(part | {"t": shown["t"], "ids": ids})
        elif not ids:
            chips.append(part | {"ids": []} | shown)
        else:
            replaced = {"r": chips[-1]["t"]} if first["s"] == "resampled" and chips and chips[-1]["s"] == "rejected" else {}
            chips.append(first | replaced | shown)
        at += len(ids)
    require(at == len(tokens), f"the block has {len(tokens)} tokens to show, its chips {at}")
    return chips


def _text(value: Any, longest: int) -> str:
    require(isinstance(value, str), "must be text")
    require(len(value) <= longest, f"has {len(value):,} characters; at most {longest:,} are taken")
    require(not any("\ud800" <= c <= "\udfff" for c in value), "holds half a character, which is no text")
    return str(value)


def _name(value: Any) -> str:
    return _text(value, MAX_NAME)


def _prompt(value: Any) -> str:
    return _text(value, MAX_PROMPT)


def _flag(value: Any) -> bool:
    require(isinstance(value, bool), "must be true or false")
    return bool(value)


def _count(largest: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        require(is_whole(value) and 1 <= value <= largest, f"must be a whole number from 1 to {largest:,}")
        return int(value)

    return check


def _versions(value: Any) -> dict[str, str]:
    require(isinstance(value, dict) and len(value) <= 50, "must be an object with a few versions")
    return {_name(key): _name(version) for key, version in value.items()}


def _words(value: Any) -> dict[str, str]:
    require(isinstance(value, dict), "must be an object of token ids and their texts")
    ids = [key for key in value if not (key.isascii() and key.isdigit() and len(key) < 11 and int(key) <= MAX_TOKEN_ID)]
    require(not ids, "its names must be token ids")
    return {key: _text(word, MAX_TEXT) for key, word in value.items()}


def _prompt_chips(value: Any) -> list[Chip]:
    require(isinstance(value, list), "must be a list of chips")
    chips = []
    for found in value:
        require(isinstance(found, dict), "a chip must be an object")
        position, special = found.get("pos"), found.get("special", False)
        require(is_whole(position) and 0 <= position <= MAX_TOKENS, "a chip's pos must be its place in the prompt")
        require(special in (True, False), "a chip's special must be true or false")
        chip = {"s": "prompt", "ids": [], "pos": position} | ({"special": True} if special else {})
        chips.append(chip | {"t": _text(found.get("t"), MAX_PROMPT)})
    require(sum(len(chip["t"]) for chip in chips) <= MAX_PROMPT, f"has more than {MAX_PROMPT:,} characters")
    return chips


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "pair": _name,
    "pair_key": _name,
    "device": _name,
    "dtype": _name,
    "trained_block_size": _count(MAX_BLOCK_SIZE),
    "max_new_tokens": _count(MAX_TOKENS),
    "prompt": _prompt,
    "chat": _flag,
    "date": _name,
    "versions": _versions,
    "prompt_chips": _prompt_chips,
    "recorded": _name,
    "title": _name,
    "words": _words,
}
OPTIONAL = ("versions", "recorded", "title", "words")
REQUIRED: tuple[str, ...] = tuple(name for name in _CHECKS if name not in OPTIONAL)
