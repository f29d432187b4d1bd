"""The page: assembles the tabs. One module a tab."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from dflash_core.trace import TraceError

from . import theme
from .block_tab import block_tab
from .compare_tab import compare_tab
from .lossless_tab import LosslessTab
from .models import LoadPair, Shelf, make_decode, make_estimate, make_race, make_sweep
from .opened import OpenedRuns, read_run
from .race import Races
from .race_tab import RaceTab
from .recorded_sweep import recorded_sweep
from .run import Run
from .run_tab import RunTab, offered_pairs
from .runs import Runs
from .sweep_tab import SweepTab
from .sweeps import Sweeps
from .text import text

logger = logging.getLogger(__name__)

QUEUE_SIZE = 64
SCRIPTS_AT_ONCE = 8  # each holds one of the server's 40 threads while it waits for the device; visitors need some too


def build_page(load: LoadPair, *, pair: str, label: str | None = None, only: bool = False) -> tuple[gr.Blocks, Shelf]:
    """The page and the shelf its models stand on.

    load: loads a pair by name. pair: the one on offer first, with its `label` if it is none of the registry.
    only: offer no other. Loads nothing itself.
    """
    shelf = Shelf(load, pair)
    recorded = recorded_runs()
    opened = OpenedRuns()
    runs = Runs(shelf.steps, make_decode(shelf), recorded, opened.get)
    # What lies in Gradio's own folder it serves, to whoever knows the name.
    folder = Path(get_upload_folder()) / "sweeps"
    sweep = recorded_sweep(theme.ASSETS / "sweep", folder)
    sweeps = Sweeps(runs, make_sweep(shelf), make_estimate(shelf), folder, sweep)
    with gr.Blocks(title=text("page", "title"), analytics_enabled=False, fill_width=True) as page:
        gr.Markdown(f"# {text('page', 'title')}\n{text('page', 'lead')}", elem_id="page-head")
        with gr.Tabs(elem_id="tabs"):
            # First, and so always mounted: a stage that is not mounted would miss blocks.
            with gr.Tab(text("tabs", "run"), id="run"):
                tab = RunTab(page, runs, shelf, offered_pairs(pair, label, only=only), recorded, opened)
            with gr.Tab(text("tabs", "block"), id="block"):
                block_tab()
            with gr.Tab(text("tabs", "race"), id="race") as race:
                RaceTab(race, runs, Races(runs, make_race(shelf)), tab)
            with gr.Tab(text("tabs", "compare"), id="compare"):
                compare_tab(runs)
            with gr.Tab(text("tabs", "sweep"), id="sweep"):
                SweepTab(sweeps, runs, tab, offered_pairs(pair, label, only=only), pair, sweep)
            with gr.Tab(text("tabs", "lossless"), id="lossless") as lossless:
                LosslessTab(lossless, runs, recorded)
        gr.api(tab.generate, api_name="generate", concurrency_limit=SCRIPTS_AT_ONCE)  # type: ignore[attr-defined]
    page.queue(max_size=QUEUE_SIZE)
    return page, shelf


def recorded_runs() -> list[Run]:
    """The runs that ship with the page, so that it is alive before any model is loaded."""
    runs = []
    for path in sorted((theme.ASSETS / "traces").glob("*.jsonl")):
        try:
            runs.append(read_run(path.read_text(encoding="utf-8"), "", f"recorded-{path.stem}"))
        except TraceError as error:
            logger.error("%s is not a usable trace: %s", path.name, error)
    return runs


def launch_options() -> dict[str, Any]:
    """What gr.Blocks.launch takes beside host and port: the look, and what a page without a hub or a cloud needs."""
    return {
        "theme": theme.gradio_theme(),
        "css_paths": [theme.ASSETS / "css" / "page.css"],
        "run_history": False,
        "ssr_mode": False,
        "footer_links": ["api"],
        # Gradio asks its own page for an answer within 3 s and gives up otherwise: a busy machine would not start at all.
        "_frontend": False,
        "max_file_size": "5mb",  # of uploads, which this page has none of: traces come as text, see opened.py
    }
