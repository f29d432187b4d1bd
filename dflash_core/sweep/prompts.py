"""The prompts of a sweep: from a file or by the names of the page's presets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .plan import Prompt


def read_prompts(path: Path, *, chat: bool = True) -> tuple[Prompt, ...]:
    """Prompts of a file; see `parse_prompts`. Raises SweepError for a file that cannot be read."""
    raise NotImplementedError


def parse_prompts(text: str, *, jsonl: bool, chat: bool = True) -> tuple[Prompt, ...]:
    """Prompts of a text: one a line, or JSONL with `prompt` or `messages`, and maybe `name` and `kind`.

    Empty lines are passed over. Raises SweepError, naming the line, for what is no prompt, and for no prompt at all.
    """
    raise NotImplementedError


def preset_names() -> tuple[str, ...]:
    raise NotImplementedError


def preset_prompts(names: Sequence[str], *, chat: bool = True) -> tuple[Prompt, ...]:
    """The page's presets with these names. Raises SweepError for a name that there is not."""
    raise NotImplementedError
