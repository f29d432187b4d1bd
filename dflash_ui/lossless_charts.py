"""The figure of a lossless check, sent complete with each check. Pure; no gradio."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from dflash_core.lossless import LawCheck

from .charts import escaped, layout
from .theme import neutrals, states


def law_figure(check: LawCheck, labels: Sequence[str], *, dark: bool = False) -> go.Figure:
    """What a check drew, split into accepted drafts and what followed a rejection, over p; and q.

    labels: the tokens' names, plain text, in the order of the check; they may come from a model.
    """
    look, tokens = neutrals(dark), states()
    rows = list(range(len(labels)))
    names = [escaped(label) for label in labels]
    kept = [count / check.n for count in check.kept_counts]
    redrawn = [(count - accepted) / check.n for count, accepted in zip(check.counts, check.kept_counts, strict=True)]

    def part(name: str, state: str, shares: Sequence[float], base: Sequence[float]) -> go.Bar:
        return go.Bar(
            name=name,
            orientation="h",
            y=rows,
            x=shares,
            base=base,
            width=0.5,
            customdata=[[name, share] for name, share in zip(names, shares, strict=True)],
            marker={"color": tokens[state].look.chart_fill(dark), "line": {"width": 0}},
            hovertemplate=f"%{{customdata[0]}}: {name} %{{customdata[1]:.4f}}<extra></extra>",
        )

    figure = go.Figure(
        [
            go.Bar(
                name="p (target)",
                orientation="h",
                y=rows,
                x=check.target_probs,
                width=0.86,
                customdata=names,
                marker={"color": look.line, "line": {"width": 1.5, "color": look.ink}},
                hovertemplate="%{customdata}: p = %{x:.4f}<extra></extra>",
            ),
            part("drawn: accepted drafts", "accepted", kept, [0.0] * len(rows)),
            part("drawn: after a rejection", "resampled", redrawn, kept),
            go.Scatter(
                name="q (draft)",
                mode="markers",
                y=rows,
                x=check.draft_probs,
                customdata=names,
                marker={"symbol": "diamond", "size": 9, "color": look.paper, "line": {"width": 2, "color": look.soft}},
                hovertemplate="%{customdata}: q = %{x:.4f}<extra></extra>",
            ),
        ],
        layout(f"What {check.n:,} verifications emitted", "share", "", dark),
    )
    figure.update_layout(barmode="overlay", height=26 * len(rows) + 176, margin={"l": 8, "b": 118})
    figure.update_xaxes(tickformat=".0%", rangemode="tozero", showgrid=True)
    figure.update_yaxes(
        tickvals=rows, ticktext=names, range=[len(rows) - 0.4, -0.6], showgrid=False, rangemode="normal", zeroline=False
    )
    return figure
