"""From finished runs to the figures of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product

import numpy as np

from ..intervals import Array, cluster_interval, ratio
from ..metrics import RunStats, run_stats, survival_interval, tokens_and_blocks, wilson_interval
from ..theory import expected_acceptance_length
from .figures import CellResult, ContextCurve, Estimate, PositionResult, RuleDifference, SweepResults
from .plan import Cell, SweepPlan
from .runs import CellRun
from .speed import batched_throughput, cell_speed, recommend, speed_model

RunsOf = Mapping[Cell, Sequence[CellRun]]


def cell_result(plan: SweepPlan, cell: Cell, runs: Iterable[CellRun]) -> CellResult:
    """The figures of one cell. runs: of any cells; its own are used (at temperature 0: those it shares), and the plain ones."""
    return _cell_result(plan, cell, _by_cell(runs))


def sweep_results(plan: SweepPlan, runs: Iterable[CellRun]) -> SweepResults:
    """All figures from the runs that are finished so far."""
    runs_of = _by_cell(runs)
    cells = tuple(_cell_result(plan, cell, runs_of) for cell in plan.cells)
    lines: dict[tuple[float, float | None, str], list[CellResult]] = {}
    for result in cells:
        if result.speed:
            lines.setdefault((result.cell.temperature, result.cell.draft_temperature, result.cell.rule), []).append(result)
    return SweepResults(
        cells,
        tuple(_differences(plan, runs_of)),
        tuple(_curves(plan, runs_of)),
        tuple(speed_model(line) for line in lines.values()),
        tuple(recommend(line, {r.cell: runs_of[plan.decoded_as(r.cell)] for r in line}) for line in lines.values()),
    )


def clusters(runs: Iterable[CellRun], row: Callable[[CellRun], Sequence[float]]) -> tuple[dict[int, Array], str]:
    """The sums of `row` over the runs of each prompt, and what they are sums of: "prompts".

    With a single prompt, and several seeds, of each seed: "seeds". What is said then holds for this prompt alone.
    """
    runs = list(runs)
    unit = "seeds" if len({run.key.prompt for run in runs}) == 1 and len(runs) > 1 else "prompts"
    sums: dict[int, Array] = {}
    for run in runs:
        name = run.key.seed if unit == "seeds" else run.key.prompt
        sums[name] = sums.get(name, 0.0) + np.array(row(run), dtype=float)
    return sums, unit


def estimate(sums: Array, figure: Callable[[Array], Array], unit: str, *, low: float = -np.inf, high: float = np.inf) -> Estimate:
    """The figure of sums over clusters (n, m), its interval cut to what the figure can be."""
    value, lower, upper = cluster_interval(sums, figure)
    if lower is None or upper is None:
        return Estimate(value, None, None, len(sums), unit)
    return Estimate(value, max(lower, low), min(upper, high), len(sums), unit)


def _by_cell(runs: Iterable[CellRun]) -> dict[Cell, list[CellRun]]:
    runs_of: dict[Cell, list[CellRun]] = {}
    for run in runs:
        runs_of.setdefault(run.key.cell, []).append(run)
    return runs_of


def _cell_result(plan: SweepPlan, cell: Cell, runs_of: RunsOf) -> CellResult:
    source = plan.decoded_as(cell)
    runs = runs_of.get(source, [])
    plain = runs_of.get(plan.plain_cell(cell.temperature), [])
    stats = run_stats((block for run in runs for block in run.blocks), cell.block_size)
    kinds = dict.fromkeys(plan.prompts[run.key.prompt].kind for run in runs)
    by_kind = {kind: _tau([run for run in runs if plan.prompts[run.key.prompt].kind == kind], cell) for kind in kinds}
    repeated = [run_stats(run.blocks, cell.block_size).repeated_share for run in runs]
    return CellResult(
        cell=cell,
        shared=source.rule != cell.rule,
        n_prompts=len({run.key.prompt for run in runs}),
        n_seeds=len({run.key.seed for run in runs}),
        n_runs=len(runs),
        n_blocks=stats.n_blocks,
        n_cut=stats.n_cut,
        n_tokens=stats.n_tokens,
        tau=_tau(runs, cell),
        tau_by_kind={kind: tau for kind, tau in by_kind.items() if tau},
        alpha=_wilson(stats.accepted, stats.judged),
        tau_independent=None if stats.alpha is None else expected_acceptance_length(stats.alpha, cell.block_size),
        positions=tuple(
            PositionResult(
                p.i,
                p.accepted,
                p.judged,
                _wilson(p.accepted, p.judged),
                _survival(stats, p.i),
            )
            for p in stats.positions
        ),
        repeated_share=sum(repeated) / len(repeated) if repeated else None,
        speed=cell_speed(runs, plain),
        batched_tokens_per_second=batched_throughput(runs),
    )


def _tau(runs: Sequence[CellRun], cell: Cell) -> Estimate | None:
    sums, unit = clusters(runs, lambda run: tokens_and_blocks(run.blocks))
    rows = np.array([row for row in sums.values() if row[1] > 0])
    return estimate(rows, ratio, unit, low=1.0, high=cell.block_size) if len(rows) else None


def _wilson(successes: int, trials: int) -> Estimate | None:
    low, high = wilson_interval(successes, trials)
    return Estimate(successes / trials, low, high, trials, "judged") if trials else None


def _survival(stats: RunStats, i: int) -> Estimate | None:
    survival = stats.positions[i - 1].survival
    low, high = survival_interval(stats.positions, i)
    return None if survival is None else Estimate(survival, low, high, stats.n_blocks, "blocks")


def _differences(plan: SweepPlan, runs_of: RunsOf) -> Iterable[RuleDifference]:
    for t, d, size in product(plan.temperatures, plan.draft_temperatures, plan.block_sizes):
        for other, rule in combinations(plan.rules, 2):
            cells = [Cell(t, size, key, d) for key in (rule, other)]
            if cells[0].is_greedy:  # the same runs
                continue
            done = [{(run.key.prompt, run.key.seed): run for run in runs_of.get(cell, [])} for cell in cells]
            both = [key for key in done[0] if key in done[1] and all(len(runs[key].blocks) > 1 for runs in done)]
            sums, unit = clusters(
                [done[0][key] for key in both],
                lambda run, done=done: [  # type: ignore[misc]
                    n for runs in done for n in tokens_and_blocks(runs[run.key.prompt, run.key.seed].blocks)
                ],
            )
            if both:
                tau = estimate(np.array(list(sums.values())), _ratio_difference, unit)
                yield RuleDifference(t, d, size, rule, other, tau)


def _curves(plan: SweepPlan, runs_of: RunsOf) -> Iterable[ContextCurve]:
    """One for each block size and rule, from the runs that were scored at all temperatures."""
    for cell in runs_of:
        runs = [run for run in runs_of[cell] if run.contexts]
        if not plan.has_contexts(cell) or not runs:
            continue
        for rule in plan.rules:
            taus = []
            for t in range(len(plan.temperatures)):
                sums, unit = clusters(
                    runs,
                    lambda run, rule=rule, t=t: [  # type: ignore[misc]
                        *run.contexts.judged, *run.contexts.accepted[rule][t]
                    ],
                )  # fmt: skip
                taus.append(estimate(np.array(list(sums.values())), _tau_of_places, unit, low=1.0, high=cell.block_size))
            yield ContextCurve(rule, cell.block_size, cell.temperature, cell.rule, plan.temperatures, tuple(taus))


def _ratio_difference(sums: Array) -> Array:
    return ratio(sums) - ratio(sums[..., 2:])


def _tau_of_places(sums: Array) -> Array:
    """1 + Σᵢ Πⱼ≤ᵢ āⱼ from judged counts (…, γ) and sums of acceptance (…, γ); a place never judged counts as 0."""
    judged, accepted = np.split(sums, 2, axis=-1)
    return np.asarray(1 + np.cumprod(accepted / np.maximum(judged, 1), axis=-1).sum(-1))
