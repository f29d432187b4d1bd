"""Remarks beside the figures: each comes when it should, and says what its reader can do."""

from __future__ import annotations

import dataclasses
from typing import Any

from dflash_core.blocks import Block
from dflash_core.metrics import RunStats, run_stats
from dflash_ui.notices import notices, repetition
from dflash_ui.requests import RunRequest

CAUSES = ("Taps", "Mask token", "Thinking mode", "Vocabulary", "Trained block size")


def asked(**changes: Any) -> RunRequest:
    values = {
        "prompt": "the cat", "temperature": 0.0, "block_size": 8, "max_new_tokens": 64, "seed": 0, "rule": "match",
        "pair": "toy", "top_p": 1.0, "top_k": 0, "draft_temperature": None, "chat": True,
    }  # fmt: skip
    return RunRequest.parse(*(values | changes).values(), pairs=("toy",))


def stats_of(n_blocks: int, kept: int, *, word: int | None = None) -> RunStats:
    """Of blocks that each keep so many of 7 drafts; all tokens differ, or all are `word`."""
    blocks = [Block(0, 1, 1, (), 0, 2, "bonus", (2,), None)]
    for i in range(1, n_blocks + 1):
        tokens = tuple(word or 100 * i + k for k in range(kept + 1))
        drafted = (*tokens[:-1], *range(5, 5 + 7 - kept))
        blocks.append(Block(i, i, 1, drafted, kept, tokens[-1], "resampled", tokens, None))
    return run_stats(blocks, 8)


def test_low_acceptance_brings_the_checklist() -> None:
    (said,) = notices(stats_of(20, 0), 16, asked())
    first, *causes = said.split("\n")
    assert "1.00 over 20 blocks" in first
    assert [cause.split(":")[0] for cause in causes] == list(CAUSES)
    assert "16; this run asked for 8" in causes[-1] and "on in this run" in causes[2]
    *_, last = notices(stats_of(20, 0), 8, asked(temperature=1.5, chat=False))[0].split("\n")
    assert last.startswith("Temperature") and "1.5" in last
    # Too few blocks to say so, enough acceptance, or nothing drafted.
    assert notices(stats_of(19, 0), 8, asked()) == []
    assert notices(stats_of(20, 1), 8, asked()) == []
    assert notices(dataclasses.replace(stats_of(20, 0)), 8, asked(block_size=1)) == []


def test_repetition_is_flagged() -> None:
    loop = stats_of(30, 3, word=9)
    assert repetition(loop) and "repeat a phrase" in notices(loop, 8, asked())[0]
    assert not repetition(stats_of(30, 3))


def test_a_block_size_beyond_training_is_marked() -> None:
    assert "Block size 8 is beyond the 4" in notices(stats_of(5, 2), 4, asked())[0]
    assert notices(stats_of(5, 2), 8, asked()) == []
