"""The Compare tab: two runs that the page knows, side by side. Which ones is chosen in assets/js/compare.js."""

from __future__ import annotations

from typing import Any

import gradio as gr

from . import charts, theme
from .comparison import compare
from .runs import Runs
from .stage import encode, scripted
from .text import text


def compare_tab(runs: Runs) -> None:
    """Builds the tab inside the current gr.Tab."""

    def compare_runs(asked: Any) -> str:
        """The comparison of the runs {"a", "b"}, or {"error"}, as a string made by `encode`. Anyone can ask."""
        found = [runs.get(asked.get(side)) for side in ("a", "b")] if isinstance(asked, dict) else []
        known = [run for run in found if run is not None and run.blocks]
        if len(known) != 2:
            return encode({"error": text("compare", "gone")})
        return encode(compare(*known))

    gr.Markdown(text("compare", "lead"), elem_id="compare-lead")
    boot = {"theme": theme.css_properties(), "config": charts.config()}
    scripted("compare.js", boot, "", server_functions=[compare_runs], elem_id="compare")
