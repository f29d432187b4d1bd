"""The engine of DFlash Lab: block-diffusion speculative decoding, reported block by block."""

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
