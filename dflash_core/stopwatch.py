"""Where the time of a block goes."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch


class Stopwatch:
    """Laps of a block. On CUDA they are events on the stream, read after the block's one synchronisation."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._marks: list[tuple[str, Any]] = []
        self.lap("")

    def lap(self, name: str) -> None:
        """The time since the last lap belongs to `name`: "draft", "verify" or "other"."""
        if self._cuda:
            mark: Any = torch.cuda.Event(enable_timing=True)
            mark.record(torch.cuda.current_stream(self._device))
        else:
            if self._device.type == "mps":
                torch.mps.synchronize()  # its work is asynchronous too, and it has no events that could be read later
            mark = time.perf_counter()
        self._marks.append((name, mark))

    def seconds(self) -> dict[str, float]:
        """Seconds of each part, under the names that Block has for them."""
        if self._cuda:
            self._marks[-1][1].synchronize()
        laps = dict.fromkeys(("draft_seconds", "verify_seconds", "other_seconds"), 0.0)
        for (_, before), (name, after) in pairwise(self._marks):
            laps[f"{name}_seconds"] += before.elapsed_time(after) / 1000 if self._cuda else after - before
        return laps
