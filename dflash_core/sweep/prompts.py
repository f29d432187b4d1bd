"""The prompts of a sweep: from a file or by the names of the page's presets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .plan import Prompt, SweepError

PRESETS = Path(__file__).parents[2] / "assets" / "text.json"
ROLES = ("system", "user", "assistant")
MAX_NAME = 60  # characters of a prompt that name it


def read_prompts(path: Path, *, chat: bool = True) -> tuple[Prompt, ...]:
    """Prompts of a file, JSONL if its name ends so; see `parse_prompts`. Raises SweepError for a file that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SweepError(f"the prompt file {path} cannot be read: {error}; it must be a text file in UTF-8") from error
    return parse_prompts(text, jsonl=path.suffix.lower() in (".jsonl", ".ndjson"), chat=chat)


def parse_prompts(text: str, *, jsonl: bool, chat: bool = True) -> tuple[Prompt, ...]:
    """Prompts of a text: one a line, or JSONL with `prompt` or `messages`, and maybe `name` and `kind`.

    chat: each is a user's turn; otherwise raw text to be continued. Empty lines are passed over.
    Raises SweepError, naming the line, for what is no prompt, and for no prompt at all.
    """
    prompts: list[Prompt] = []
    names: set[str] = set()
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        given = _entry(line, number) if jsonl else {"prompt": line.strip()}
        messages = _messages(given["messages"], number) if "messages" in given else ()
        if messages and not chat:
            raise SweepError(f"line {number}: messages are a chat, they cannot be continued as raw text")
        said = messages[-1][1] if messages else given["prompt"]
        name = given.get("name") or " ".join(said.split())[:MAX_NAME]
        if name in names:
            name = f"{name} ({number})"
        names.add(name)
        prompts.append(Prompt(name, "" if messages else said, given.get("kind") or name, chat, messages))
    if not prompts:
        raise SweepError("there is no prompt: give one a line" + (', as {"prompt": "…"}' if jsonl else ""))
    return tuple(prompts)


def preset_names() -> tuple[str, ...]:
    """Of the page's presets."""
    return tuple(_presets())


def preset_prompts(names: Sequence[str], *, chat: bool | None = None) -> tuple[Prompt, ...]:
    """The page's presets with these names. chat: None leaves it to the preset. Raises SweepError for an unknown name."""
    unknown = [name for name in names if name not in _presets()]
    if unknown:
        raise SweepError(f"there is no preset {unknown[0]!r}; the presets are: {'; '.join(_presets())}")
    return tuple(
        Prompt(name, _presets()[name]["prompt"], name, _presets()[name]["chat"] if chat is None else chat) for name in names
    )


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return dict(json.loads(PRESETS.read_text(encoding="utf-8"))["presets"])


def _entry(line: str, number: int) -> dict[str, Any]:
    """A line of JSONL, with exactly one of `prompt` and `messages`."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SweepError(f'line {number} is not JSON: each line must be an object such as {{"prompt": "…"}}') from error
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
        raise SweepError(f'line {number} must be an object with either "prompt" or "messages"')
    for name in ("prompt", "name", "kind"):
        if name in entry and not (isinstance(entry[name], str) and entry[name].strip()):
            raise SweepError(f'line {number}: "{name}" must be a text that is not empty')
    try:
        json.dumps(entry, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair; no tokenizer takes it
        raise SweepError(
            f"line {number} holds half of a surrogate pair (\\ud800 to \\udfff alone), which is no character"
        ) from error
    return entry


def _messages(value: Any, number: int) -> tuple[tuple[str, str], ...]:
    right = isinstance(value, list) and all(
        isinstance(m, dict) and m.get("role") in ROLES and isinstance(m.get("content"), str) and m["content"].strip()
        for m in value
    )
    if not (right and value and value[-1]["role"] == "user"):
        raise SweepError(
            f'line {number}: "messages" must be a list of {{"role": {" | ".join(ROLES)}, "content": "…"}} that ends with the user'
        )
    return tuple((m["role"], m["content"]) for m in value)
