"""The chart of a race: what a pass costs, and what it brings. Pure; no gradio."""

from __future__ import annotations

import plotly.graph_objects as go

from dflash_core.metrics import RunStats
from dflash_core.race import RaceStats

from .charts import _layout
from .text import text
from .theme import neutrals

PARTS = ("draft", "verify", "other")


def part_seconds(stats: RunStats) -> tuple[float, float, float]:
    """Mean seconds of a pass after the prefill: draft, verify, other."""
    n = stats.n_blocks
    return stats.seconds_draft / n, stats.seconds_verify / n, stats.seconds_other / n


def cost_figure(stats: RaceStats, *, dark: bool = False) -> go.Figure:
    """Milliseconds of a plain step, of a DFlash block, and of the block over the τ tokens it brings: stacked parts."""
    look = neutrals(dark)
    tau = stats.dflash.tau
    assert tau is not None
    block = part_seconds(stats.dflash)
    bars = [
        (text("race", "bar_step"), part_seconds(stats.plain)),
        (text("race", "bar_block").format(tau=tau), block),
        (text("race", "bar_token").format(tau=tau), tuple(seconds / tau for seconds in block)),
    ]
    looks = {"draft": (look.accent, "/"), "verify": (look.soft, ""), "other": (look.line, "x")}
    figure = go.Figure(
        [
            go.Bar(
                name=text("race", part),
                orientation="h",
                y=[name for name, _ in bars],
                x=[1000 * seconds[i] for _, seconds in bars],
                width=0.62,
                marker={
                    "color": looks[part][0],
                    "line": {"width": 1, "color": look.ink},
                    "pattern": {
                        "shape": looks[part][1],
                        "fillmode": "overlay",
                        "fgcolor": look.paper,
                        "size": 7,
                        "solidity": 0.2,
                    },
                },
                hovertemplate=f"{text('race', part)}: %{{x:.2f}} ms<extra></extra>",
            )
            for i, part in enumerate(PARTS)
        ],
        _layout(text("race", "chart"), "ms", "", dark),
    )
    totals = [1000 * sum(seconds) for _, seconds in bars]
    figure.update_layout(
        barmode="stack",
        legend={"traceorder": "normal"},
        annotations=[
            {
                "x": total,
                "y": name,
                "text": f"{total:.{0 if total >= 100 else 2}f} ms",
                "xanchor": "left",
                "xshift": 6,
                "showarrow": False,
            }
            for total, (name, _) in zip(totals, bars, strict=True)
        ],
    )
    figure.update_xaxes(rangemode="tozero", range=[0, 1.35 * max(totals)], showgrid=True)
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False, rangemode="normal")
    return figure
