"""The three acceptance charts of a run: data in, plotly figure out; and what every chart has in common. Pure; no gradio.

The functions for a run also make the empty figures that the page embeds: `templates()`. The script (assets/js/charts.js) copies a
template, puts data at the places named below, and draws. It computes nothing and knows no title, unit or colour.

lengths     trace 0  bars: x = block index, y = VIEW.tau, marker.pattern.shape = "" or meta.cut_shape,
                     customdata = "" or meta.cut_note[VIEW.finish]
            trace 1  line: x = block index, y = VIEW.mean
            shapes[0].y0 = shapes[0].y1 = annotations[0].y = B, and annotations[0].text = meta.limit_note + B
histogram   trace 0  bars: x = 1 … B, y = STATS.lengths
            trace 1  line: x = 1 … B, y = STATS.lengths_expected
positions   trace 0  points with bars, at least meta.few judged: x = i, y = rate, customdata = [accepted, judged],
                     error_y.array = high - rate, error_y.arrayminus = rate - low
            shapes[0].x0 = shapes[0].x1 = annotations[0].x = trained block size - 0.5, both visible when B is larger
            trace 1  the same below meta.few judged, faded
            trace 2  line: x = i, y = survival

Blocks that drafted nothing (block 0, plain decoding) have no acceptance length and are left out of every chart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from dflash_ui.theme import FONT, neutrals, states

View = Mapping[str, Any]  # VIEW and STATS of the stage payload
Stats = Mapping[str, Any]

FEW = 20
"""Fewer judged tokens than this and a position's rate is drawn faded."""

HEIGHT = 320
CUT_NOTE = {"stop": "<br>cut short by the stop token", "length": "<br>cut short by the token limit"}


def lengths_figure(
    views: Sequence[View] = (), stats: Stats | None = None, *, block_size: int | None = None, dark: bool = False
) -> go.Figure:
    """Acceptance length of each block with its running mean, and the block size as the limit.

    `block_size` defaults to the length of `stats["lengths"]`; with neither, no limit is drawn.
    """
    look, tokens = neutrals(dark), states()
    drafted = [view for view in views if view["n_drafted"]]
    limit = block_size if block_size is not None else len(stats["lengths"]) if stats else None
    figure = go.Figure(
        [
            go.Bar(
                name="one block",
                x=[view["i"] for view in drafted],
                y=[view["tau"] for view in drafted],
                customdata=[CUT_NOTE.get(view["finish"], "") if view["cut"] else "" for view in drafted],
                marker={
                    "color": tokens["accepted"].look.chart_fill(dark),
                    "line": {"width": 0},
                    "pattern": {
                        "shape": [_cut_shape() if view["cut"] else "" for view in drafted],
                        "fillmode": "overlay",
                        "fgcolor": look.paper,
                        "size": 5,
                    },
                },
                hovertemplate="block %{x}: %{y} tokens%{customdata}<extra></extra>",
            ),
            go.Scatter(
                name="running mean τ",
                mode="lines",
                x=[view["i"] for view in drafted],
                y=[view["mean"] for view in drafted],
                line={"color": look.ink, "width": 2.5},
                hovertemplate="τ up to block %{x}: %{y:.2f}<extra></extra>",
            ),
        ],
        layout("Acceptance length of each block", "block", "tokens gained per target pass", dark),
    )
    figure.update_layout(
        bargap=0.25,
        meta={"cut_shape": _cut_shape(), "cut_note": CUT_NOTE, "limit_note": "block size B = "},
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": limit,
                "y1": limit,
                "line": {"color": look.faint, "width": 1.5, "dash": "dot"},
            }
        ],
        annotations=[
            {
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "y": limit,
                "yanchor": "bottom",
                "text": "" if limit is None else f"block size B = {limit}",
                "showarrow": False,
                "font": {"size": 12, "color": look.soft},
            }
        ],
    )
    figure.update_xaxes(tickformat="d")
    return figure


def histogram_figure(stats: Stats | None = None, *, dark: bool = False) -> go.Figure:
    """How often each acceptance length came up, over the counts that the geometric law expects at the measured α."""
    look, tokens = neutrals(dark), states()
    counts = list(stats["lengths"] or ()) if stats else []
    expected = list(stats["lengths_expected"] or ()) if stats else []
    figure = go.Figure(
        [
            go.Bar(
                name="measured",
                x=list(range(1, len(counts) + 1)),
                y=counts,
                marker={"color": tokens["accepted"].look.chart_fill(dark), "line": {"width": 0}},
                hovertemplate="%{y} blocks of length %{x}<extra></extra>",
            ),
            go.Scatter(
                name="geometric law at the measured α: theory",
                mode="lines+markers",
                x=list(range(1, len(expected) + 1)),
                y=expected,
                line={"color": look.ink, "width": 2, "dash": "dash"},
                marker={"size": 6, "symbol": "circle-open", "line": {"width": 1.5}},
                hovertemplate="theory: %{y:.1f} blocks of length %{x}<extra></extra>",
            ),
        ],
        layout("How long are the blocks?", "acceptance length, tokens", "blocks", dark),
    )
    figure.update_layout(bargap=0.25)
    figure.update_xaxes(dtick=1)
    return figure


def positions_figure(stats: Stats | None = None, *, trained_block_size: int | None = None, dark: bool = False) -> go.Figure:
    """Acceptance by position in the block: of the judged (95 % Wilson intervals), and of all blocks (survival).

    Positions that a draft of `trained_block_size` was never trained for are marked.
    """
    look, tokens = neutrals(dark), states()
    rows = [row for row in (stats["positions"] or ()) if row["rate"] is not None] if stats else []
    blue = tokens["accepted"].look.chart_fill(dark)
    survival = [row for row in rows if row["survival"] is not None]
    figure = go.Figure(
        [
            _rates([row for row in rows if row["judged"] >= FEW], "of the judged, 95 %", blue, 1.0),
            _rates([row for row in rows if row["judged"] < FEW], f"under {FEW} judged", blue, 0.4),
            go.Scatter(
                name="of all blocks (survival)",
                mode="lines+markers",
                x=[row["i"] for row in survival],
                y=[row["survival"] for row in survival],
                line={"color": look.ink, "width": 2},
                marker={"size": 6, "symbol": "square"},
                hovertemplate="%{y:.0%} of the blocks kept %{x} or more draft tokens<extra></extra>",
            ),
        ],
        layout("Acceptance by position", "position in the block", "share accepted", dark),
    )
    edge = None if trained_block_size is None else trained_block_size - 0.5
    seen = edge is not None and bool(rows) and max(row["i"] for row in rows) > edge
    line = {"color": look.warning, "width": 1.5, "dash": "dash"}
    figure.update_layout(
        meta={"few": FEW},
        shapes=[{"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": edge, "x1": edge, "line": line, "visible": seen}],
        annotations=[
            {
                "x": edge,
                "xanchor": "left",
                "yref": "paper",
                "y": 1,
                "yanchor": "top",
                "text": "beyond training",
                "showarrow": False,
                "font": {"size": 12, "color": look.warning},
                "visible": seen,
            }
        ],
    )
    figure.update_xaxes(dtick=1)
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%")
    return figure


def config() -> dict[str, Any]:
    """Plotly's `config` for every chart. Its own picture button is left out: those of assets/js/images.js put paper behind."""
    return {
        "displaylogo": False,
        "responsive": False,
        # The last one would send the chart to a company's server; images have buttons of their own.
        "modeBarButtonsToRemove": ["toImage", "select2d", "lasso2d", "autoScale2d", "sendChartToCloud"],
    }


def templates() -> dict[str, Any]:
    """The empty figures as JSON-able values: {chart: {"light": figure, "dark": figure}}, and the Plotly `config`."""
    makers: dict[str, Callable[..., go.Figure]] = {
        "lengths": lengths_figure,
        "histogram": histogram_figure,
        "positions": positions_figure,
    }
    figures: dict[str, Any] = {
        name: {theme: json.loads(make(dark=theme == "dark").to_json()) for theme in ("light", "dark")}
        for name, make in makers.items()
    }
    return figures | {"config": config()}


def escaped(text: str) -> str:
    """Plain text for Plotly, which reads some HTML in every label."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut_shape() -> str:
    return states()["cut"].look.pattern


def _rates(rows: Sequence[Mapping[str, Any]], name: str, colour: str, opacity: float) -> go.Scatter:
    return go.Scatter(
        name=name,
        mode="markers",
        opacity=opacity,
        x=[row["i"] for row in rows],
        y=[row["rate"] for row in rows],
        customdata=[[row["accepted"], row["judged"]] for row in rows],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [row["high"] - row["rate"] for row in rows],
            "arrayminus": [row["rate"] - row["low"] for row in rows],
            "color": colour,
            "thickness": 2,
            "width": 5,
        },
        marker={"color": colour, "size": 10},
        hovertemplate="position %{x}: %{y:.0%}<br>%{customdata[0]} accepted of %{customdata[1]} judged<extra></extra>",
    )


def layout(title: str, x_title: str, y_title: str, dark: bool) -> dict[str, Any]:
    """The look that all charts share."""
    look = neutrals(dark)
    axis = {
        "gridcolor": look.line,
        "linecolor": look.line,
        "zerolinecolor": look.line,
        "tickfont": {"size": 12, "color": look.soft},
        "automargin": True,
    }
    return {
        "template": {},
        "height": HEIGHT,
        "margin": {"l": 52, "r": 16, "t": 48, "b": 96},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": ", ".join(FONT), "size": 13, "color": look.ink},
        "title": {
            "text": title,
            "font": {"size": 15, "weight": 600},
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"l": 14, "t": 14},
        },
        "legend": {
            "orientation": "h",
            "x": 0.02,
            "xref": "container",
            "y": 0.02,
            "yref": "container",
            "yanchor": "bottom",
            "font": {"size": 12, "color": look.soft},
        },
        "hoverlabel": {"bgcolor": look.panel, "bordercolor": look.line, "font": {"color": look.ink}},
        "xaxis": axis | {"title": {"text": x_title, "font": {"size": 12}}, "showgrid": False},
        "yaxis": axis | {"title": {"text": y_title, "font": {"size": 12}}, "rangemode": "tozero"},
    }
