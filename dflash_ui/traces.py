"""What the page asks of the server about traces: open a file, hand a run out. Anyone can ask, so every value is checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from dflash_core.trace import TraceError

from . import exports, offline_page
from .opened import MAX_FILE, MAX_NAME, MAX_PER_PAGE, OpenedRuns
from .run import Run
from .runs import Runs
from .stage import PLOTLY_JS, boot, encode
from .text import text

EXPORTS: dict[str, Callable[[Run], str]] = {
    "csv": exports.table,
    "json": exports.summary,
    "html": lambda run: offline_page.page(run, boot(), PLOTLY_JS),
}

logger = logging.getLogger(__name__)


def trace_functions(runs: Runs, opened: OpenedRuns) -> list[Callable[[Any], str | None]]:
    """The functions, by the names under which assets/js/menu.js and actions.js call them."""

    def open_trace(asked: Any) -> str:
        """{"run", "label", "dropped"} for a trace file that was read, or {"error"}, as a string made by `encode`."""
        values = [asked.get(name) for name in ("text", "file", "page")] if isinstance(asked, dict) else []
        if len(values) != 3 or not all(isinstance(value, str) for value in values):
            return encode({"error": text("traces", "malformed")})
        content, file, page = map(str, values)
        try:
            run, dropped = opened.open(content, file[:MAX_NAME] or "trace", page[:MAX_NAME])
        except TraceError as error:
            return encode({"error": str(error)})
        except Exception:  # a fault of ours: the file is to blame for nothing, but the page goes on
            logger.exception("A trace could not be read")
            return encode({"error": text("traces", "fault")})
        return encode({"run": run.id, "label": run.message, "dropped": dropped})

    def get_export(asked: Any) -> str | None:
        """A run as a file of one of the kinds in `EXPORTS`, or None if it is not kept."""
        kind, run_id = (asked.get("kind"), asked.get("run")) if isinstance(asked, dict) else (None, None)
        run = runs.get(run_id)
        if run is None or not run.blocks or not isinstance(kind, str) or kind not in EXPORTS:
            return None
        return EXPORTS[kind](run)

    return [open_trace, get_export]


def known_runs(recorded: Sequence[Run]) -> dict[str, Any]:
    """What the page's menu of runs knows from the start: the recorded ones, and the limits."""
    known = [{"id": run.id, "label": run.message or run.id} for run in recorded]
    return {"recorded": known, "max_bytes": MAX_FILE, "max_files": MAX_PER_PAGE}
