"""One run and what the page may ask about it: its blocks, their views, its figures, its trace. No gradio import."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import torch

from dflash_core.blocks import Block, Generation, SamplingParams
from dflash_core.generate import accept_uniforms
from dflash_core.metrics import RunningMetrics, RunStats
from dflash_core.pairs import Pair
from dflash_core.trace import Trace, dump_trace
from dflash_core.verify import RULES
from dflash_core.whatif import WhatIf

from . import render
from .notices import notices, repetition
from .recorded import checked_about, checked_chips
from .requests import RunRequest


class Run:
    """One run and everything the page may ask about it later."""

    def __init__(self, request: RunRequest) -> None:
        self.id = uuid4().hex
        self.request = request
        self.stop = threading.Event()
        self.status = "waiting"
        self.message = ""
        self.head: dict[str, Any] | None = None
        self.prompt_ids: list[int] = []
        self.blocks: list[Block] = []
        self.views: list[dict[str, Any]] = []
        self.plain: dict[str, Any] | None = None
        self.about: dict[str, Any] = {}
        self.words: dict[str, str] = {}  # texts of single tokens, by id
        self.whatif: WhatIf | None = None  # of a trace that brought one
        self._metrics = RunningMetrics(request.block_size)
        self._text: render.TokenText | None = None

    def begin(self, pair: Pair, prompt_ids: list[int]) -> None:
        """The prompt is encoded and the pair loaded: from here on there are blocks."""
        self.prompt_ids = prompt_ids
        self._text = render.TokenText(pair.tokenizer, prompt_ids)
        self.about = {
            "pair": pair.label,
            "pair_key": pair.key,
            "device": pair.device,
            "dtype": pair.dtype,
            "trained_block_size": pair.draft.block_size,
            "max_new_tokens": self.request.max_new_tokens,
            "prompt": self.request.prompt,
            "chat": self.request.chat,
            "date": time.strftime("%Y-%m-%d"),
            "versions": {"torch": torch.__version__, "transformers": version("transformers")},
            "prompt_chips": render.prompt_chips(pair.tokenizer, prompt_ids),
        }
        self.head = make_head(self.about, self.request.params, self.request.block_size, len(prompt_ids))

    def add(self, block: Block) -> None:
        assert self._text is not None
        self._append(block, self._text.block_chips(block), self._text.words(block))

    def _append(self, block: Block, chips: list[render.Chip], words: dict[str, str]) -> None:
        self.blocks.append(block)
        self._metrics.add(block)
        self.words |= words
        uniforms = accept_uniforms(self.request.params, block)
        so_far = self._metrics
        self.views.append(
            render.view(block, chips, so_far.tau, words=words, uniforms=uniforms, tokens=so_far.n_tokens, clock=so_far.seconds)
        )

    def set(self, status: str, message: str = "") -> None:
        self.status, self.message = status, message

    @property
    def n_tokens(self) -> int:
        return self._metrics.n_tokens

    def stats(self) -> RunStats:
        return self._metrics.stats()

    @property
    def token_ids(self) -> list[int]:
        return [token for block in self.blocks for token in block.emitted]

    def payload(self, start: int | None = None, *, head: bool = False, progress: dict[str, Any] | None = None) -> dict[str, Any]:
        """The run as the stage takes it, with the views from block `start` on (none if it is None)."""
        stats = None
        if self.blocks:
            values = self.stats()
            said = notices(values, self.about["trained_block_size"], self.request)
            stats = asdict(values) | {"notices": said, "repetition": repetition(values)}
        return {
            "v": 1,
            "run": self.id,
            "status": self.status,
            "message": self.message,
            "progress": progress,
            "head": self.head if head else None,
            "n": len(self.views),
            "w": [] if start is None else self.views[start:],
            "stats": stats,
            "plain": self.plain,
        }

    @classmethod
    def recorded(cls, trace: Trace, run_id: str, *, file: str = "") -> Run:
        """A run from a trace: its views are made again, no model is needed. file: the name of the file, if it has one to show.

        Raises TraceError, which names the line, for what `parse_trace` does not look at: texts, and what is said about the run.
        """
        generation, about = trace.generation, checked_about(trace.about)
        run = cls(
            RunRequest(
                about["prompt"],
                about["pair_key"],
                generation.params,
                generation.block_size,
                about["max_new_tokens"],
                about["chat"],
            )
        )
        run.id, run.about, run.prompt_ids = run_id, about, list(generation.prompt_ids)
        run.head = make_head(about, generation.params, generation.block_size, len(generation.prompt_ids))
        if file:
            run.head["recorded"] = about.get("recorded") or about["date"]
        words = about.pop("words", {})
        for block, chips in zip(generation.blocks, trace.texts, strict=True):
            run._append(block, checked_chips(block, chips), {} if block.index else words)
        run.whatif = trace.whatif
        run.set("recorded", file or about.get("title", ""))
        return run

    def trace(self) -> str:
        """The run so far as JSONL."""
        request = self.request
        views = tuple(self.views)  # the run may be going on: a block's view comes last
        generation = Generation(tuple(self.prompt_ids), request.params, request.block_size, tuple(self.blocks[: len(views)]))
        texts = tuple(view["chips"] for view in views)
        return dump_trace(Trace(generation, self.about | {"words": self.words}, texts, self.whatif))


def make_head(about: dict[str, Any], params: SamplingParams, block_size: int, prompt_tokens: int) -> dict[str, Any]:
    """The description of a run that the stage shows above its text."""
    rule = RULES[params.rule]
    return {
        **{name: about[name] for name in ("pair", "device", "dtype", "trained_block_size", "max_new_tokens")},
        "rule": rule.key,
        "rule_label": rule.label,
        "lossless": rule.lossless,
        "temperature": params.temperature,
        "draft_temperature": params.draft_temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "seed": params.seed,
        "block_size": block_size,
        "prompt": about["prompt_chips"],
        "prompt_tokens": prompt_tokens,
        "recorded": about.get("recorded"),
    }
