"""Remarks on a run that a reader of its figures must know. Their texts are in assets/text.json."""

from __future__ import annotations

from dflash_core.metrics import RunStats
from dflash_core.sampling import GREEDY_BELOW

from .requests import RunRequest
from .text import text

LOW_TAU = 1.1
LOW_TAU_BLOCKS = 20
REPEATED_SHARE = 0.3
CAUSES = ("taps", "mask", "thinking", "vocabulary", "block_size")


def repetition(stats: RunStats) -> bool:
    """So much of the text repeats itself that τ says little about ordinary text."""
    return stats.repeated_share >= REPEATED_SHARE


def notices(stats: RunStats, trained_block_size: int, request: RunRequest) -> list[str]:
    """The remarks that hold for these figures, as plain text. Further lines of one are a list."""
    said = []
    if request.block_size > 1 and stats.tau is not None and stats.n_blocks >= LOW_TAU_BLOCKS and stats.tau < LOW_TAU:
        temperature = request.params.temperature
        causes = [*CAUSES, *(["temperature"] if temperature > GREEDY_BELOW else [])]
        values = {
            "tau": stats.tau,
            "n": stats.n_blocks,
            "chat": text("notices", "chat_on" if request.chat else "chat_off"),
            "trained": trained_block_size,
            "block_size": request.block_size,
            "temperature": temperature,
        }
        keys = ["low_acceptance", *(f"low_{cause}" for cause in causes)]
        said.append("\n".join(text("notices", key).format(**values) for key in keys))
    if repetition(stats):
        said.append(text("notices", "repetition").format(share=stats.repeated_share))
    if request.block_size > trained_block_size:
        said.append(text("notices", "block_size").format(block_size=request.block_size, trained=trained_block_size))
    if request.params.draft_temperature is not None and request.params.draft_temperature != request.params.temperature:
        said.append(text("notices", "draft_temperature"))
    return said
