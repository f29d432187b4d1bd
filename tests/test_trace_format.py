"""docs/trace-format.md names every field that is written, and none that is not."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from dflash_core.blocks import Block, JudgedToken, SamplingParams
from dflash_core.trace import MAX_BLOCK_SIZE, VERSION
from dflash_core.whatif import WhatIf
from dflash_ui import opened, recorded
from tests.test_runs import done_run, toy_runs

DOCUMENT = (Path(__file__).parent.parent / "docs" / "trace-format.md").read_text(encoding="utf-8")


def documented(heading: str) -> set[str]:
    """The fields in the first table under a heading."""
    part = re.split(r"^#+ ", DOCUMENT.partition(f"# {heading}\n")[2], flags=re.MULTILINE)[0]
    rows = [line for line in part.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def names(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_every_field_is_documented_and_every_documented_field_is_written() -> None:
    run = done_run(toy_runs(), rule="speculative")
    header, *lines = [json.loads(line) for line in run.trace().split("\n")[:-1]]
    assert documented("Header") == set(header)
    assert documented("params") == names(SamplingParams) == set(header["params"])
    assert documented("about") == set(recorded._CHECKS)
    assert documented("about") - {"recorded", "title"} == set(header["about"])  # those two of the runs that are shipped
    assert {name for line in lines for name in line} == {"block", "text"}
    assert documented("Block") == names(Block) == set(lines[0]["block"])
    assert documented("judged") == names(JudgedToken) == {name for line in lines for j in line["block"]["judged"] for name in j}
    assert documented("text") == {name for line in lines for chip in line["text"] for name in chip} | {"special"}
    assert documented("What-if") == names(WhatIf)


def test_the_limits_are_those_of_the_code() -> None:
    assert f"**Version {VERSION}.**" in DOCUMENT and f"1 – {MAX_BLOCK_SIZE:,}" in DOCUMENT
    limits = (opened.MAX_FILE, opened.MAX_PAGE_BYTES, opened.MAX_BYTES)
    assert all(f"{limit // opened.MB} MB" in DOCUMENT for limit in limits)
    assert f"at most {opened.MAX_PER_PAGE} opened files" in DOCUMENT
    assert f"at most {recorded.MAX_TEXT:,} characters" in DOCUMENT
    assert f"{recorded.MAX_NAME} characters for names" in DOCUMENT and f"{recorded.MAX_PROMPT:,} for a prompt" in DOCUMENT
