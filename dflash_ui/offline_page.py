"""A run as one web page: the stage and the Block tab, with everything they need in the file. Opens from a disk, asks no network.

The page's own scripts are put in as `data:` modules under an import map, so they are the same files; the run, the scripts'
values and Plotly are packed with gzip. A Content-Security-Policy forbids the file to load anything from elsewhere.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from . import theme
from .render import shortened
from .run import Run
from .text import text

ENTRY = "offline.js"
_IMPORT = re.compile(r'((?:from|import)\s*)"\./([\w-]+\.js)"')
_CSS_IMPORT = re.compile(r'@import "([\w-]+\.css)";')
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' data:; style-src 'unsafe-inline'; connect-src blob: data:; "
    "img-src data: blob:"
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style data-lab-theme>{colours}</style>
<style>{styles}</style>
<style>
body {{ max-width: 1500px; margin: 0 auto; padding: 24px clamp(12px, 3vw, 40px) 60px; background: var(--lab-paper); color: var(--lab-ink); font-family: var(--lab-font); }}
h1 {{ margin: 0; font-size: 24px; }} h2 {{ margin: 44px 0 12px; font-size: 19px; }} p {{ margin: 4px 0 20px; color: var(--lab-soft); }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{lead}</p>
<main><div id="stage"></div><h2>{block}</h2><div id="block"></div></main>
<noscript><p>{noscript}</p></noscript>
<script type="application/gzip" id="data">{data}</script>
<script type="application/gzip" id="plotly">{plotly}</script>
<script type="importmap">{imports}</script>
<script type="module">import "lab/{entry}";</script>
</body>
</html>
"""  # noqa: E501


def page(run: Run, boot: Mapping[str, Any], plotly: Path) -> str:
    """The web page of a run. boot: `stage.boot()`. plotly: the file with plotly.min.js."""
    payload = run.payload(0, head=True)
    payload["w"] = shortened(payload["w"])
    modules = {f"lab/{name}": f"data:text/javascript;base64,{_base64(source.encode())}" for name, source in scripts().items()}
    title = f"DFlash Lab: {run.message}" if run.status == "recorded" and run.message else text("offline", "title")
    return _PAGE.format(
        policy=_POLICY,
        title=html.escape(title),
        lead=html.escape(text("offline", "lead")),
        block=html.escape(text("offline", "block")),
        noscript=html.escape(text("offline", "noscript")),
        colours=theme.css_properties(),
        styles=styles(),
        data=_packed(json.dumps({"payload": payload, "boot": boot}, allow_nan=False, separators=(",", ":"))),
        plotly=_packed_file(plotly),
        imports=json.dumps({"imports": modules}),
        entry=ENTRY,
    )


@cache
def scripts() -> dict[str, str]:
    """File name → source of the entry and of all that it imports, with imports by the names of the import map."""
    found: dict[str, str] = {}
    waiting = [ENTRY]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        source = (theme.ASSETS / "js" / name).read_text(encoding="utf-8")
        waiting += [imported for _, imported in _IMPORT.findall(source)]
        found[name] = _IMPORT.sub(r'\1"lab/\2"', source)
    return found


@cache
def styles() -> str:
    """The stage's style sheet, with those that it imports in their places."""
    folder = theme.ASSETS / "css"
    sheet = (folder / "stage.css").read_text(encoding="utf-8")
    return _CSS_IMPORT.sub(lambda found: (folder / found[1]).read_text(encoding="utf-8"), sheet)


@cache
def _packed_file(path: Path) -> str:
    return _packed(path.read_text(encoding="utf-8"))


def _packed(content: str) -> str:
    return _base64(gzip.compress(content.encode(), mtime=0))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
