"""The page's own words, from assets/text.json."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from .theme import ASSETS


@cache
def _all() -> dict[str, Any]:
    return dict(json.loads((ASSETS / "text.json").read_text(encoding="utf-8")))


def text(section: str, key: str) -> str:
    """One text; KeyError if there is none."""
    return str(_all()[section][key])


def presets() -> dict[str, dict[str, Any]]:
    """Label → {"prompt", "chat"}: prompts chosen for how predictable their answers are."""
    return dict(_all()["presets"])


def recordings() -> dict[str, dict[str, Any]]:
    """File name → title, preset and settings of the runs that ship with the page."""
    return dict(_all()["recordings"])
