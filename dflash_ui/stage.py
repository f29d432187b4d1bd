"""The stage: one gr.HTML in which the scripts of assets/js draw a run from the payload strings they are sent.

The template is constant and the value is a JSON string, so Gradio never evaluates or renders anything of a payload;
the scripts put its texts on the page as text nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gradio as gr
import plotly

from dflash_ui import charts, theme

PLOTLY_JS = Path(plotly.__file__).resolve().parent / "package_data" / "plotly.min.js"

# `base` is where the browser reached the app, so this also works below a root path and behind a proxy that changes
# scheme or port. What arrives before the modules are loaded is not lost: start() reads the value, and mends the gap.
_ON_LOAD = """
const root = window.gradio_config?.root;
const base = new URL(root ? new URL(root, location.href).pathname : ".", location.href).href.replace(/\\/?$/, "/");
const url = (path) => new URL("gradio_api/file=" + path, base).href;
const files = __FILES__;
import(url(files.script))
  .then(({ start }) => start({
    element, props, watch, server,
    boot: __BOOT__,
    urls: { base, css: url(files.css), plotly: url(files.plotly) },
  }))
  .catch((error) => console.error("The page could not start", files.script, error));
"""


def encode(payload: Mapping[str, Any]) -> str:
    """The payload as the string the stage takes.

    `<` is written as an escape: the same JSON, but Gradio does not take text like "<script>" for a mistake of ours.

    Raises:
        ValueError: for NaN or infinity, which JSON doesn't have; undefined numbers are None.
    """
    return json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def stage(
    initial_value: str,
    server_functions: Sequence[Callable[..., Any]],
    known_runs: Mapping[str, Any] | None = None,
    *,
    elem_id: str = "stage",
    **options: Any,
) -> gr.HTML:
    """The stage component. Call it inside gr.Blocks; its value is a string made by `encode`.

    Args:
        initial_value: the payload on show when the page opens, or "".
        server_functions: `get_run` and `get_trace`, by these names; with known_runs also those of traces.py.
        known_runs: `traces.known_runs`, for the menu of runs; None for a stage without one.
        elem_id: id of the component in the page.
        options: passed on to gr.HTML (scale, min_width, visible, …).

    Raises:
        ValueError: if a server function is missing.
    """
    missing = {"get_run", "get_trace"} - {function.__name__ for function in server_functions}
    if missing:
        raise ValueError(f"the stage asks the server for runs: server_functions lacks {', '.join(sorted(missing))}")
    needed = boot() | ({"runs": known_runs} if known_runs else {})
    return scripted("stage.js", needed, initial_value, server_functions=list(server_functions), elem_id=elem_id, **options)


def scripted(script: str, boot: Mapping[str, Any], initial_value: str, **options: Any) -> gr.HTML:
    """A gr.HTML whose content is drawn by `start` of a module in assets/js.

    Args:
        script: the module's file name. Its `start` gets element, props, watch, server, boot, and urls of base, css and plotly.
        boot: JSON values that the module needs once.
        initial_value: its value, always a string made by `encode`, or "".
        options: passed on to gr.HTML.
    """
    gr.set_static_paths([theme.ASSETS / "js", theme.ASSETS / "css", PLOTLY_JS])
    return gr.HTML(initial_value, html_template="", js_on_load=_bootstrap(script, boot), apply_default_css=False, **options)


def boot() -> dict[str, Any]:
    """What the scripts need to know of the page: words of the token states, empty charts, and the theme's colours as CSS."""
    return {"states": state_words(), "templates": charts.templates(), "theme": theme.css_properties()}


def state_words() -> dict[str, dict[str, str]]:
    """What the token states are called, and their marks."""
    names = ("label", "aloud", "mark", "explain")
    return {key: {name: getattr(state, name) for name in names} for key, state in theme.states().items()}


def _bootstrap(script: str, boot: Mapping[str, Any]) -> str:
    served = {"script": theme.ASSETS / "js" / script, "css": theme.ASSETS / "css" / "stage.css", "plotly": PLOTLY_JS}
    files = {key: quote(path.as_posix(), safe="/:") for key, path in served.items()}
    return _ON_LOAD.replace("__FILES__", encode(files)).replace("__BOOT__", encode(boot))
