"""Two runs side by side: their figures, survival curves, and where their texts part. Pure: no gradio import."""

from __future__ import annotations

import difflib
import json
from typing import Any

import plotly.graph_objects as go

from dflash_core.metrics import RunStats
from dflash_core.verify import RULES

from . import charts
from .render import TEXT_STATES, Chip, visible
from .run import Run
from .text import text
from .theme import neutrals, states

MAX_COMPARED = 1_500  # tokens of each text after they part; difflib's time grows with their product
SHOWN = 3  # tokens of each text named where they part

Token = tuple[int, str]


def compare(a: Run, b: Run) -> dict[str, Any]:
    """What assets/js/compare.js draws: plain JSON values, all texts plain."""
    one, two = a.stats(), b.stats()
    figures = {look: json.loads(survival_figure(one, two, dark=look == "dark").to_json()) for look in ("light", "dark")}
    return {
        "settings": _rows("compare_settings", _settings(a), _settings(b)),
        "figures": _rows("compare_figures", _figures(one), _figures(two)),
        "figure": figures if any(len(stats.positions) for stats in (one, two)) else None,
        "note": _note(one, two),
        "texts": _texts(a, b),
    }


def _rows(section: str, a: dict[str, str], b: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": text(section, key), "a": a[key], "b": b[key], "same": a[key] == b[key]} for key in a]


def _settings(run: Run) -> dict[str, str]:
    params, about = run.request.params, run.about
    return {
        "prompt": " ".join(about["prompt"].split())[:80],
        "pair": about["pair"],
        "rule": RULES[params.rule].label,
        "temperature": f"{params.temperature:g}",
        "draft_temperature": f"{params.effective_draft_temperature:g}",
        "top": f"{params.top_p:g} / {params.top_k:g}",
        "block_size": str(run.request.block_size),
        "seed": str(params.seed),
        "device": f"{about['dtype']} · {about['device']}",
    }


def _figures(stats: RunStats) -> dict[str, str]:
    def with_interval(value: float | None, low: float | None, high: float | None, n: int) -> str:
        if value is None:
            return "–"
        interval = "" if low is None or high is None else f" ({low:.2f} – {high:.2f})"
        return f"{value:.2f}{interval}, n = {n:,}"

    return {
        "tau": with_interval(stats.tau, stats.tau_low, stats.tau_high, stats.n_blocks),
        "alpha": with_interval(stats.alpha, stats.alpha_low, stats.alpha_high, stats.judged),
        "accepted": f"{stats.accepted:,} / {stats.judged:,}",
        "speed": "–" if stats.tokens_per_second is None else f"{stats.tokens_per_second:.1f}",
        "tokens": f"{stats.n_tokens:,} in {stats.target_passes:,}",
        "saved": f"{stats.passes_saved:,}",
        "seconds": " / ".join(f"{seconds:.2f}" for seconds in (stats.seconds_draft, stats.seconds_verify, stats.seconds_other)),
    }


def _note(a: RunStats, b: RunStats) -> str:
    """How far apart the intervals of τ are. Two intervals that overlap do not show that nothing differs."""
    bounds = (a.tau_low, a.tau_high, b.tau_low, b.tau_high)
    if None in bounds:
        return text("compare", "no_interval")
    low_a, high_a, low_b, high_b = bounds
    apart = high_a < low_b or high_b < low_a  # type: ignore[operator]
    return text("compare", "apart" if apart else "overlap")


def survival_figure(a: RunStats, b: RunStats, *, dark: bool = False) -> go.Figure:
    """P(A ≥ i) of both runs: the share of blocks that kept i or more draft tokens."""
    look, tokens = neutrals(dark), states()
    styles = [
        ("A", a, tokens["accepted"].look.chart_fill(dark), "solid", "circle"),
        ("B", b, tokens["resampled"].look.chart_fill(dark), "dash", "square"),
    ]
    traces = []
    for name, stats, colour, dash, symbol in styles:
        rows = [row for row in stats.positions if row.survival is not None]
        traces.append(
            go.Scatter(
                name=name,
                mode="lines+markers",
                x=[row.i for row in rows],
                y=[row.survival for row in rows],
                customdata=[row.judged for row in rows],
                line={"color": colour, "width": 2.5, "dash": dash},
                marker={"size": 9, "symbol": symbol, "line": {"width": 1, "color": look.paper}},
                hovertemplate=f"{name}: %{{y:.1%}} of the blocks kept %{{x}} or more draft tokens"
                "<br>%{customdata} judged at this position<extra></extra>",
            )
        )
    title, x, y = (text("compare", key) for key in ("chart", "chart_x", "chart_y"))
    figure = go.Figure(traces, charts.layout(title, x, y, dark))
    figure.update_xaxes(dtick=1)
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%")
    return figure


def tokens_of(run: Run) -> list[Token]:
    """The output's tokens with their texts. A character of several tokens stands with the last of them."""
    chips: list[Chip] = [chip for view in run.views[:] for chip in view["chips"] if chip["s"] in TEXT_STATES]
    tokens: list[Token] = []
    for chip in chips:
        tokens += [(token, "") for token in chip["ids"][:-1]] + [(token, chip["t"]) for token in chip["ids"][-1:]]
    return tokens


def _texts(a: Run, b: Run) -> dict[str, Any]:
    """{"says", "a", "b", "rest"}: each text as segments [kind, tokens], kind "same" or "own"."""
    one, two = tokens_of(a), tokens_of(b)
    # Ids mean the same only within one vocabulary; between two, texts are what can be compared.
    key = 0 if a.about["pair"] == b.about["pair"] else 1
    left, right = [token[key] for token in one], [token[key] for token in two]
    shared = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
    end = shared + MAX_COMPARED
    segments: dict[str, list[list[Any]]] = {"a": [], "b": []}

    def put(side: str, kind: str, tokens: list[Token]) -> None:
        if tokens:
            segments[side].append([kind, [shown for _, shown in tokens]])

    put("a", "same", one[:shared])
    put("b", "same", two[:shared])
    for tag, i, j, k, m in difflib.SequenceMatcher(None, left[shared:end], right[shared:end], autojunk=False).get_opcodes():
        kind = "same" if tag == "equal" else "own"
        put("a", kind, one[shared + i : shared + j])
        put("b", kind, two[shared + k : shared + m])
    put("a", "left", one[end:])
    put("b", "left", two[end:])
    return {"says": _says(one, two, shared), "rest": _rest(one, two, end), **segments}


def _says(one: list[Token], two: list[Token], shared: int) -> str:
    if shared == len(one) == len(two):
        return text("compare", "identical").format(n=shared)
    if shared in (len(one), len(two)):
        shorter, longer = ("A", "B") if len(one) < len(two) else ("B", "A")
        return text("compare", "prefix").format(shorter=shorter, longer=longer, n=shared)
    a, b = ("".join(visible(shown) for _, shown in tokens[shared : shared + SHOWN]) for tokens in (one, two))
    return text("compare", "part" if shared else "from_start").format(n=shared, a=a, b=b)


def _rest(one: list[Token], two: list[Token], end: int) -> str:
    return text("compare", "left").format(n=MAX_COMPARED) if max(len(one), len(two)) > end else ""
