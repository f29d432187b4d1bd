"""The README shows and names only what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dflash_core import RULES
from dflash_core.pairs import PAIRS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("target", re.findall(r"\]\((?!https?:)([^)]+)\)", README))
def test_every_relative_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_the_file_tree_is_the_tree() -> None:
    tree = README.partition("## File tree")[2].partition("## Credits")[0]
    for package in ("dflash_core", "dflash_ui"):
        part = tree.partition(f"{package}/ ")[2]
        named = set(re.findall(r"^ {6}(\w+\.py)", part.partition("\n    assets")[0], re.MULTILINE))
        there = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
        assert there <= named, f"README does not name {sorted(there - named)}"


def test_every_rule_and_pair_is_explained() -> None:
    for key in (*RULES, *PAIRS):
        assert f"`{key}`" in README
