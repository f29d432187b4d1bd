"""Runs opened from trace files. They are kept in memory for the pages that opened them, up to a limit; no gradio import."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from uuid import uuid4

from dflash_core.trace import TraceError, parse_trace

from .run import Run

MB = 1_000_000
# The longest run that the page makes, 4,096 tokens with B = 32 and hardly any accepted, measures 12 MB; a usual one of 2,000
# tokens 3 MB. A run takes about six times its file in memory.
MAX_FILE = 24 * MB
MAX_PER_PAGE = 8
MAX_NAME = 120  # characters of a file's name
MAX_PAGE_BYTES = 36 * MB
MAX_BYTES = 96 * MB  # of all pages


def read_run(text: str, file: str, run_id: str) -> Run:
    """The run in a trace file. Raises TraceError, saying what is wrong and in which line."""
    if not text.strip():
        raise TraceError("the file is empty")
    run = Run.recorded(parse_trace(text), run_id, file=file)
    if not run.blocks:
        raise TraceError("the trace has no blocks: the run was stopped before its first token")
    return run


@dataclass(frozen=True, slots=True)
class _Entry:
    run: Run
    page: str
    size: int


class OpenedRuns:
    """The runs opened from files, oldest first. Whoever opens too much loses the oldest of it."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # one file at a time: reading takes a core, and memory

    def open(self, text: str, file: str, page: str) -> tuple[Run, list[str]]:
        """Reads a trace. page: who asks, a name that the page made up. Returns the run, and the ids of that page's dropped ones.

        Raises TraceError for a file that is too large or no good trace.
        """
        size = len(text.encode("utf-8", "replace"))
        if size > MAX_FILE:
            raise TraceError(f"the file has {size / MB:.1f} MB; traces up to {MAX_FILE / MB:.0f} MB are read")
        with self._reading:
            run = read_run(text, file, uuid4().hex)
        with self._lock:
            self._entries[run.id] = _Entry(run, page, size)
            own = [entry for entry in self._entries.values() if entry.page == page]
            dropped = []
            while len(own) > MAX_PER_PAGE or sum(entry.size for entry in own) > MAX_PAGE_BYTES:
                dropped.append(own.pop(0).run.id)
            for run_id in dropped:
                del self._entries[run_id]
            while sum(entry.size for entry in self._entries.values()) > MAX_BYTES:
                self._entries.popitem(last=False)
        return run, dropped

    def get(self, run_id: str) -> Run | None:
        entry = self._entries.get(run_id)
        return entry.run if entry else None
