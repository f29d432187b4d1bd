"""A made-up run for tests of the page: random but consistent blocks, and the payloads a server would send about them."""

from __future__ import annotations

import random
import re
from typing import Any

GHOSTS = ("rejected", "unjudged", "cut")
WORDS = re.findall(
    r" ?\w+|\n+|[^\w\s]|\t",
    "Speculative decoding guesses several tokens ahead, and checks them in one pass.\n\nThree things decide:\n"
    "\t1. the temperature, because a hot target is hard to guess;\n2. the block size; 3. the rule. A greedy draft is"
    " right more often on lists and code than in an open story. ",
)
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "${alert(1)}",
    "{{value}}",
    "</script><script>alert(1)</script>",
    "C:\\new\\table `tick`",
    " שלום",
    "\u202e",
    "abc",
    "👩‍🏫",
    "\u200b",
    "<b>&amp;",
]


class ScriptedRun:
    """A made-up run: blocks with their chips, and the payloads a server would send about them."""

    def __init__(self, run: str, n_blocks: int = 12, *, block_size: int = 8, texts: list[str] | None = None, **head: Any) -> None:
        self.run, self.block_size = run, block_size
        self.rng = random.Random(run)
        self.head = {
            "pair": "target + draft",
            "device": "cpu",
            "dtype": "float32",
            "rule": "match",
            "rule_label": "match",
            "lossless": True,
            "temperature": 0.7,
            "block_size": block_size,
            "trained_block_size": 8,
            "max_new_tokens": 128,
            "seed": 0,
            "top_p": 1.0,
            "top_k": 0,
            "draft_temperature": None,
            "prompt": [self.chip("<|im_start|>", "prompt", 0, special=True), self.chip("Why?", "prompt", 1)],
            "prompt_tokens": 2,
            "recorded": None,
        } | head
        self.texts = iter(texts) if texts is not None else (WORDS[i % len(WORDS)] for i in range(10**6))
        self.views = [self.view(0, 2, [self.chip(next(self.texts), "plain", 2)], n_drafted=0)]
        position = 3
        for i in range(1, n_blocks + 1):
            chips = self.block(position)
            if not chips:
                break
            self.views.append(self.view(i, position, chips, n_drafted=block_size - 1))
            position += sum(chip["s"] not in GHOSTS for chip in chips)

    def chip(self, text: str, state: str, position: int, k: int | None = None, **more: Any) -> dict[str, Any]:
        return {"t": text, "s": state, "ids": [position + 100], "pos": position, "k": k, **more}

    def block(self, position: int) -> list[dict[str, Any]]:
        drafted = self.block_size - 1
        kept = next((k for k in range(drafted) if self.rng.random() > 0.6), drafted)
        texts = [text for text, _ in zip(self.texts, range(kept + 1), strict=False)]
        state = "accepted" if drafted else "plain"
        chips = [self.chip(t, state, position + k, k + 1, p=0.5, q=0.25, a=0.125, hp=1.5, hq=2.5) for k, t in enumerate(texts)]
        if len(texts) <= kept or not drafted:
            return chips
        wrong = self.chip(" wrong", "rejected", position + kept, kept + 1, p=0.01, q=0.5, a=0.01)
        after = [self.chip("\nlost", "unjudged", position + k, k + 1, q=0.1) for k in range(kept + 1, drafted)]
        chips[-1] |= {"s": "resampled", "r": " wrong"} if kept < drafted else {"s": "bonus"}
        return [*chips[:-1], wrong, chips[-1], *after] if kept < drafted else chips

    def view(self, i: int, start: int, chips: list[dict[str, Any]], *, n_drafted: int) -> dict[str, Any]:
        tau = sum(chip["s"] not in GHOSTS for chip in chips)
        ids = {"anchor": 1, "drafted": [2] * n_drafted, "kept": max(0, tau - 1), "emitted": [3] * tau}
        kind = "resampled" if tau <= n_drafted else "bonus"
        inside = {"judged": [], "words": {}, "p_next": None, "next": kind, **ids}
        clock = {"tokens": start + tau - 2, "clock": 0.062 * i, "sec": [0.01, 0.05, 0.002]}
        more = {**inside, "mean": 2.0 if n_drafted else None, "cut": False, "finish": None, **clock}
        return {"i": i, "start": start, "n_drafted": n_drafted, "tau": tau, "chips": chips, **more}

    @property
    def text(self) -> str:
        chips = [chip for view in self.views for chip in view["chips"]]
        return "".join(chip["t"] for chip in chips if chip["s"] not in GHOSTS and not chip.get("special"))

    def stats(self, n: int) -> dict[str, Any]:
        taus = [view["tau"] for view in self.views[:n] if view["n_drafted"]]
        positions = [
            {"i": i, "accepted": 8, "judged": 30 // i, "rate": 0.25, "low": 0.2, "high": 0.4, "survival": 0.5 / i}
            for i in range(1, self.block_size)
        ]
        lengths = [taus.count(k) for k in range(1, self.block_size + 1)]
        return {
            "n_blocks": len(taus),
            "n_cut": 0,
            "n_tokens": sum(taus),
            "tau": 2.345,
            "tau_low": 2.1,
            "tau_high": 2.6,
            "accepted": 60,
            "judged": 90,
            "drafted": 7 * len(taus),
            "alpha": 0.667,
            "alpha_low": 0.56,
            "alpha_high": 0.76,
            "target_passes": n,
            "passes_saved": sum(taus) - n,
            "seconds": 3.5,
            "tokens_per_second": 41.23,
            "seconds_draft": 0.5,
            "seconds_verify": 2.75,
            "seconds_other": 0.25,
            "lengths": lengths,
            "lengths_expected": [float(count) for count in lengths],
            "positions": positions,
            "notices": [],
            "repetition": False,
        }

    def payload(self, start: int, end: int, **more: Any) -> dict[str, Any]:
        head = self.head if start == 0 else None
        base = {"v": 1, "run": self.run, "status": "running", "message": "", "progress": None, "head": head, "n": end}
        return base | {"w": self.views[start:end], "stats": self.stats(end), "plain": None} | more
