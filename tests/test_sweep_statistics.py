"""The intervals of a sweep cover what they should, and its figures are those of their definitions."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from dflash_core.intervals import cluster_interval
from dflash_core.metrics import run_stats, survival_interval, wilson_interval
from dflash_core.pairs import load_pair
import dflash_core.sweep.runs as sweep_module
from dflash_core.sweep.plan import Cell, Prompt, SweepPlan
from dflash_core.sweep.results import sweep_results
from dflash_core.sweep.runs import sweep_runs
from dflash_core.toy import WORDS
from tests.sweeps import exact_tau

SWEEPS, N_PROMPTS, TOKENS = 200, 6, 8


def test_intervals_cover_the_known_tau_of_the_toy_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 sweeps of six random prompts each: τ of two rules and their difference, whose true values are known exactly."""
    monkeypatch.setattr(sweep_module, "iter_rows", functools.partial(sweep_module.iter_rows, record=False))  # half the time
    pair = load_pair("toy")
    starts = np.random.default_rng(3).integers(2, len(WORDS), size=SWEEPS * N_PROMPTS).tolist()
    ids = [(start,) for start in starts]
    prompts = tuple(Prompt(str(i), "", "all", chat=False) for i in range(len(ids)))
    # As rows of a batch, so that no plain run is decoded beside.
    plan = SweepPlan(
        prompts, (1.0,), (4,), ("match", "speculative"), max_new_tokens=TOKENS, rows=8, timed_prompts=0, contexts=False
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runs = [step.run for step in sweep_runs(pair, plan, ids) if step.run]
    finally:
        torch.set_num_threads(threads)
    population = range(2, len(WORDS))
    match, speculative = (exact_tau(rule, 1.0, 4, population, TOKENS) for rule in plan.rules)
    covered = {"match": 0, "speculative": 0, "difference": 0}
    means = []
    by_sweep: list[list[object]] = [[] for _ in range(SWEEPS)]
    for run in runs:
        by_sweep[run.key.prompt // N_PROMPTS].append(run)
    for some in by_sweep:
        results = sweep_results(plan, some)  # type: ignore[arg-type]
        taus = {result.cell.rule: result.tau for result in results.cells}
        checks = [(taus["match"], match), (taus["speculative"], speculative), (results.differences[0].tau, speculative - match)]
        for name, (estimate, truth) in zip(covered, checks, strict=True):
            assert estimate is not None and estimate.low is not None and estimate.high is not None
            assert estimate.n == N_PROMPTS and estimate.unit == "prompts"
            covered[name] += estimate.low <= truth <= estimate.high
        means.append([estimate.value if estimate else math.nan for estimate, _ in checks])
    print(covered)
    for name, count in covered.items():
        assert 0.90 <= count / SWEEPS <= 0.99, f"{name}: {count} of {SWEEPS} intervals cover the truth"
    error = np.std(means, axis=0) / math.sqrt(SWEEPS)
    assert np.abs(np.mean(means, axis=0) - [match, speculative, speculative - match]).max() < 4 * error.max()
