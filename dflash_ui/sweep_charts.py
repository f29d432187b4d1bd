"""The figures of a sweep: its results in, plotly figures out, each with a caption that says what was measured. Pure; no gradio.

In every trace of measured points `customdata` is [index of the cell in `SweepResults.cells`, words of the hover label].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from dflash_core.sweep.figures import CellResult, Estimate, SweepResults

from .charts import escaped, layout
from .sweep_words import n_words, shortened, told
from .text import text
from .theme import neutrals, rule_looks

DODGE = 0.011  # of the axis, between the points of two rules, so that their intervals do not cover each other
MAX_KINDS = 12
HEAT_HEIGHT, KIND_HEIGHT = 300, 280


@dataclass(frozen=True, slots=True)
class Slice:
    """Where the figures cut through the grid: each shows two of its axes, the others are held at these values."""

    temperature: float
    block_size: int
    draft_temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure, and under it in words: what is on it, n, kind of interval, pair, dtype, device."""

    key: str
    title: str
    caption: str
    figure: go.Figure


def usual_slice(results: SweepResults) -> Slice:
    """The middle temperature, and the block size with the best measured speed there; without speeds the middle one."""
    temperatures = axis(results, "temperature")
    temperature = temperatures[len(temperatures) // 2]
    draft_temperature = axis(results, "draft_temperature")[0]
    here = [r for r in results.cells if r.cell.temperature == temperature and r.cell.draft_temperature == draft_temperature]
    sizes = axis(results, "block_size")
    timed = [r for r in here if r.speed]
    best = max(timed, key=lambda r: r.speed.speedup.value if r.speed else 0.0) if timed else None
    return Slice(temperature, best.cell.block_size if best else sizes[len(sizes) // 2], draft_temperature)


def axis(results: SweepResults, name: str) -> list[Any]:
    """The values of one axis of the grid (a field of Cell), in the order of the plan."""
    return list(dict.fromkeys(getattr(result.cell, name) for result in results.cells))


def sweep_charts(results: SweepResults, about: Mapping[str, Any], cut: Slice, *, dark: bool = False) -> list[Chart]:
    """All figures at one cut: τ over the temperature, a heat map a rule, speed-up over B, τ for each kind of prompt."""
    rules = axis(results, "rule")
    charts = [tau_chart(results, about, cut, dark=dark)]
    charts += [heat_chart(results, about, rule, cut, dark=dark) for rule in rules]
    charts += [speed_chart(results, about, cut, dark=dark)]
    kinds = kinds_of(results)
    if len(kinds) > 1:
        charts += [kind_chart(results, about, kind, cut, dark=dark) for kind in kinds[:MAX_KINDS]]
    return charts


def kinds_of(results: SweepResults) -> list[str]:
    """The kinds of prompts that there are figures of."""
    return list(dict.fromkeys(kind for result in results.cells for kind in result.tau_by_kind))


def tau_chart(results: SweepResults, about: Mapping[str, Any], cut: Slice, *, dark: bool = False) -> Chart:
    """τ over the temperature, a line for each rule, and dashed what the contexts of one temperature would give at the others."""
    title = text("sweep_charts", "tau").format(block_size=cut.block_size)
    figure = _tau_figure(results, cut, title, lambda result: result.tau, dark)
    curves = [c for c in results.curves if c.block_size == cut.block_size and len(c.temperatures) > 1]
    for curve in curves if cut.draft_temperature is None else []:
        points = sorted(zip(curve.temperatures, curve.taus, strict=True), key=lambda point: point[0])
        figure.add_scatter(
            name=text("sweep_charts", "theory").format(rule=curve.rule),
            legendgroup=curve.rule,
            showlegend=False,
            mode="lines",
            x=[t for t, _ in points],
            y=[tau.value for _, tau in points],
            customdata=[told(tau) for _, tau in points],
            line={"color": _colour(curve.rule, dark), "width": 2, "dash": "dash"},
            hovertemplate=text("sweep_charts", "theory").format(rule=curve.rule) + ", T = %{x}: %{customdata}<extra></extra>",
        )
    caption = text("sweep_charts", "tau_caption").format(n=n_words(r.tau for r in _line(results, cut)), **_where(about))
    if curves and cut.draft_temperature is None:
        figure.add_scatter(
            name=text("sweep_charts", "theory_key"),
            mode="lines",
            x=[None],
            y=[None],
            line={"color": neutrals(dark).soft, "width": 2, "dash": "dash"},
        )
        source = {"temperature": f"{curves[0].from_temperature:g}", "rule": curves[0].from_rule}
        caption += " " + text("sweep_charts", "theory_caption").format(**source)
    return Chart("tau", title, caption, figure)


def kind_chart(results: SweepResults, about: Mapping[str, Any], kind: str, cut: Slice, *, dark: bool = False) -> Chart:
    """τ over the temperature on the prompts of one kind; the axis is the same for all kinds."""
    figure = _tau_figure(results, cut, escaped(shortened(kind, 40)), lambda result: result.tau_by_kind.get(kind), dark)
    every = [tau for result in _line(results, cut) for tau in result.tau_by_kind.values()]
    figure.update_layout(height=KIND_HEIGHT, margin={"b": 76, "t": 42})
    figure.update_yaxes(range=[1, 1.05 * max((_high(tau) for tau in every), default=2.0)], title=None)
    n = n_words(result.tau_by_kind.get(kind) for result in _line(results, cut))
    caption = text("sweep_charts", "kind_caption").format(n=n, block_size=cut.block_size, **_where(about))
    return Chart("kind", kind, caption, figure)


def heat_chart(results: SweepResults, about: Mapping[str, Any], rule: str, cut: Slice, *, dark: bool = False) -> Chart:
    """τ of one rule over temperature × block size. All rules share the colours."""
    sizes, temperatures = sorted(axis(results, "block_size")), sorted(axis(results, "temperature"))
    found = {
        (result.cell.temperature, result.cell.block_size): (i, result)
        for i, result in enumerate(results.cells)
        if result.cell.rule == rule and result.cell.draft_temperature == cut.draft_temperature
    }
    rows = [[found[t, size] for size in sizes] for t in temperatures]
    top = max((result.tau.value for result in results.cells if result.tau), default=2.0)
    title = text("sweep_charts", "heat").format(rule=rule)
    figure = go.Figure(
        go.Heatmap(
            x=[f"{size}" for size in sizes],
            y=[f"{t:g}" for t in temperatures],
            z=[[result.tau.value if result.tau else None for _, result in row] for row in rows],
            customdata=[[[i, told(result.tau)] for i, result in row] for row in rows],
            zmin=1,
            zmax=max(top, 1.01),
            colorscale="Cividis",
            xgap=2,
            ygap=2,
            hoverongaps=False,
            colorbar={"title": {"text": "τ"}, "thickness": 12, "outlinewidth": 0, "tickfont": {"color": neutrals(dark).soft}},
            hovertemplate="T = %{y}, B = %{x}: τ %{customdata[1]}<extra></extra>",
        ),
        layout(title, text("sweep_charts", "block_size"), text("sweep_charts", "temperature"), dark),
    )
    figure.update_layout(
        height=HEAT_HEIGHT,
        margin={"b": 52, "r": 8},
        annotations=[
            _number(x, y, result.tau.value, (result.tau.value - 1) / max(top - 1, 0.01))
            for y, row in enumerate(rows)
            for x, (_, result) in enumerate(row)
            if result.tau
        ],
    )
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="category", showgrid=False, rangemode="normal")
    caption = text("sweep_charts", "heat_caption").format(
        n=n_words(result.tau for row in rows for _, result in row), **_where(about)
    )
    return Chart("heat", title, caption, figure)


def speed_chart(results: SweepResults, about: Mapping[str, Any], cut: Slice, *, dark: bool = False) -> Chart:
    """Measured speed-up over the block size, with the cost model and its optimum; 1 is plain decoding."""
    look, rules = neutrals(dark), axis(results, "rule")
    title = text("sweep_charts", "speed").format(temperature=f"{cut.temperature:g}")
    figure = go.Figure(layout=layout(title, text("sweep_charts", "block_size"), text("sweep_charts", "speedup"), dark))
    sizes = axis(results, "block_size")
    here = (cut.temperature, cut.draft_temperature)
    for rule in rules:
        measured = [
            (i, result)
            for i, result in enumerate(results.cells)
            if (result.cell.temperature, result.cell.draft_temperature) == here and result.cell.rule == rule and result.speed
        ]
        for model in results.models:
            if (model.temperature, model.draft_temperature, model.rule) == (*here, rule):
                figure.add_scatter(
                    name=text("sweep_charts", "model").format(rule=rule),
                    legendgroup=rule,
                    showlegend=False,
                    mode="lines",
                    x=[1, *model.block_sizes],
                    y=[1.0, *model.speedups],
                    line={"color": _colour(rule, dark), "width": 1.5, "dash": "dash"},
                    hovertemplate=text("sweep_charts", "model").format(rule=rule) + ", B = %{x}: %{y:.2f} ×<extra></extra>",
                )
                figure.add_scatter(
                    name=text("sweep_charts", "optimum"),
                    legendgroup=rule,
                    showlegend=False,
                    mode="markers",
                    x=[model.best[0]],
                    y=[model.best[1]],
                    marker={"symbol": "star", "size": 15, "color": _colour(rule, dark), "line": {"width": 1, "color": look.ink}},
                    hovertemplate=f"{rule}: {text('sweep_charts', 'optimum')}, B = %{{x}}: %{{y:.2f}} ×<extra></extra>",
                )
        figure.add_trace(
            _points(
                rule,
                [_dodged(result.cell.block_size, rule, rules, max(sizes) - 1) for _, result in measured],
                [result.speed.speedup for _, result in measured if result.speed],
                [[i, _speed_words(result)] for i, result in measured],
                "markers",
                dark,
            )
        )
    drawn = [y for trace in figure.data for y in trace.y]
    highs = [_high(r.speed.speedup) for r in results.cells if r.speed and (r.cell.temperature, r.cell.draft_temperature) == here]
    # An interval of few prompts can be of any length: it may leave the figure, the points may not.
    figure.update_yaxes(range=[0, 1.05 * min(max([1.5, *highs]), max([1.5, *(1.8 * y for y in drawn)]))])
    figure.add_hline(y=1, line={"color": look.soft, "width": 1.5, "dash": "dot"})
    figure.add_annotation(
        x=1, xref="paper", xanchor="right", y=1, yanchor="bottom", showarrow=False,
        text=text("sweep_charts", "plain"), font={"size": 12, "color": look.soft},
    )  # fmt: skip
    figure.update_xaxes(tickvals=[1, *sizes])
    cells = [r for r in results.cells if (r.cell.temperature, r.cell.draft_temperature) == here]
    n = n_words(result.speed.speedup if result.speed else None for result in cells)
    return Chart("speed", title, text("sweep_charts", "speed_caption").format(n=n, **_where(about)), figure)


def _tau_figure(
    results: SweepResults, cut: Slice, title: str, tau: Callable[[CellResult], Estimate | None], dark: bool
) -> go.Figure:
    rules, temperatures = axis(results, "rule"), sorted(axis(results, "temperature"))
    figure = go.Figure(layout=layout(title, text("sweep_charts", "temperature"), text("sweep_charts", "tau_axis"), dark))
    for rule in rules:
        found = []
        for i, result in enumerate(results.cells):
            cell, estimate = result.cell, tau(result)
            if (cell.block_size, cell.draft_temperature, cell.rule) == (cut.block_size, cut.draft_temperature, rule) and estimate:
                found.append((cell.temperature, i, estimate))
        found.sort(key=lambda point: point[0])
        x = [_dodged(t, rule, rules, temperatures[-1] - temperatures[0]) for t, _, _ in found]
        data = [[i, f"T = {t:g}: τ {told(estimate)}"] for t, i, estimate in found]
        figure.add_trace(_points(rule, x, [estimate for _, _, estimate in found], data, "lines+markers", dark))
    figure.update_xaxes(tickvals=temperatures)
    figure.update_yaxes(rangemode="normal")
    return figure


def _number(x: int, y: int, value: float, shade: float) -> dict[str, Any]:
    """A number in a cell (column, row) of a heat map, black or white, whichever stands out from the cell's shade (0 … 1)."""
    (colour,) = sample_colorscale("Cividis", [min(max(shade, 0.0), 1.0)])
    red, green, blue = (float(part) for part in colour.removeprefix("rgb(").rstrip(")").split(","))
    bright = 0.299 * red + 0.587 * green + 0.114 * blue > 120
    font = {"color": "#000000" if bright else "#FFFFFF", "size": 13}
    return {"x": x, "y": y, "text": f"{value:.2f}", "showarrow": False, "font": font}


def _points(rule: str, x: Sequence[float], estimates: Sequence[Estimate], data: list[Any], mode: str, dark: bool) -> go.Scatter:
    """One rule's estimates with their intervals; those without one get no bar."""
    highs, lows = ([e.value if bound is None else bound for e, bound in bounds] for bounds in (
        [(e, e.high) for e in estimates], [(e, e.low) for e in estimates]
    ))  # fmt: skip
    return go.Scatter(
        name=rule,
        legendgroup=rule,
        mode=mode,
        x=x,
        y=[e.value for e in estimates],
        customdata=data,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [high - e.value for e, high in zip(estimates, highs, strict=True)],
            "arrayminus": [e.value - low for e, low in zip(estimates, lows, strict=True)],
            "thickness": 1.6,
            "width": 4,
        },
        line={"color": _colour(rule, dark), "width": 2},
        marker={"color": _colour(rule, dark), "size": 9, "symbol": rule_looks()[rule].symbol},
        hovertemplate=f"{rule}, %{{customdata[1]}}<extra></extra>",
    )


def _dodged(x: float, rule: str, rules: Sequence[str], span: float) -> float:
    return x + (rules.index(rule) - (len(rules) - 1) / 2) * DODGE * span


def _colour(rule: str, dark: bool) -> str:
    look = rule_looks()[rule]
    return look.dark if dark else look.light


def _line(results: SweepResults, cut: Slice) -> list[CellResult]:
    """The cells of all temperatures and rules at the cut's block size and draft temperature."""
    where = (cut.block_size, cut.draft_temperature)
    return [result for result in results.cells if (result.cell.block_size, result.cell.draft_temperature) == where]


def _high(estimate: Estimate) -> float:
    return estimate.value if estimate.high is None else estimate.high


def _speed_words(result: CellResult) -> str:
    speed = result.speed
    assert speed is not None
    costs = f"d {speed.draft_cost.value:.2f}, v {speed.verify_cost.value:.2f}"
    return f"B = {result.cell.block_size}: {told(speed.speedup)} × ({costs})"


def _where(about: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(about[name]) for name in ("pair", "dtype", "device")} | {"interval": text("sweep_charts", "interval")}
