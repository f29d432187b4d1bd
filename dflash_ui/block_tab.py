"""The Block tab: one draft-verify cycle of the run on show. It asks nothing of the server: assets/js/block.js has the run."""

from __future__ import annotations

import gradio as gr

from . import theme
from .stage import scripted, state_words
from .text import text


def block_tab() -> None:
    """Builds the tab inside the current gr.Tab."""
    gr.Markdown(text("block", "lead"), elem_id="block-lead")
    scripted("block.js", {"theme": theme.css_properties(), "states": state_words()}, "", elem_id="block")
