"""Draws the log of a training run as a page: `python -m dflash_ui.training_chart RUN/log.jsonl --out curves.html`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

POSITIONS = (1, 2, 4, 8, 15)
FIGURES = {
    "loss": "−log q of the text's token (nats)",
    "agreement": "same most likely token (share)",
    "overlap": "Σ min(p, q), temperature 1",
}
COLOURS = ("#0b6e99", "#2a9d8f", "#8ab17d", "#e9a13b", "#d1495b")


def training_figure(lines: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Loss, agreement and overlap against the step, a colour a position: held-out solid, trained on dotted."""
    figure = make_subplots(rows=1, cols=len(FIGURES), subplot_titles=list(FIGURES.values()))
    steps = [line["step"] for line in lines]
    for column, name in enumerate(FIGURES, start=1):
        for position, colour in zip(POSITIONS, COLOURS, strict=True):
            for side, dash in (("held_out", "solid"), ("training", "dot")):
                figure.add_scatter(
                    row=1,
                    col=column,
                    x=steps,
                    y=[line[side][name][position - 1] for line in lines],
                    name=f"position {position}, {'held out' if side == 'held_out' else 'trained on'}",
                    legendgroup=f"{position} {side}",
                    showlegend=column == 1,
                    line={"color": colour, "dash": dash},
                )
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(template="plotly_white", title="Training of the draft", height=480)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--out", type=Path, default=Path("curves.html"))
    options = parser.parse_args(arguments)
    try:
        lines = [json.loads(line) for line in options.log.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise SystemExit(f"{options.log} is not the log of a training run: {error}") from error
    training_figure(lines).write_html(options.out, include_plotlyjs=True)


if __name__ == "__main__":
    main()
