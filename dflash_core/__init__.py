"""The engine of DFlash Lab: block-diffusion speculative decoding, reported block by block."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blocks import Block, Generation, JudgedToken, SamplingParams
    from .draft_model import DFlashDraftModel
    from .generate import dflash_generate, iter_blocks
    from .sampling import sample
    from .verify import RULES, Rule

__all__ = [
    "RULES",
    "Block",
    "DFlashDraftModel",
    "Generation",
    "JudgedToken",
    "Rule",
    "SamplingParams",
    "dflash_generate",
    "iter_blocks",
    "sample",
]

_MODULES = {
    "blocks": ("Block", "Generation", "JudgedToken", "SamplingParams"),
    "draft_model": ("DFlashDraftModel",),
    "generate": ("dflash_generate", "iter_blocks"),
    "sampling": ("sample",),
    "verify": ("RULES", "Rule"),
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: torch and the library's models take seconds, which the page and the weights do without at first.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
