"""The intervals of a sweep cover what they should, and its figures are those of their definitions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dflash_core.blocks import Block, FinishReason, NextKind
from dflash_core.intervals import cluster_interval
from dflash_core.metrics import run_stats, survival_interval, wilson_interval
from dflash_core.pairs import load_pair
from dflash_core.sweep.plan import Cell, Prompt, RunKey, SweepPlan
from dflash_core.sweep.results import cell_result, sweep_results
from dflash_core.sweep.runs import CellRun, sweep_runs
from dflash_core.toy import WORDS
from dflash_core.training.evaluate import tau_over_prompts
from tests.sweeps import PROMPTS, ToyLaw, plan

SWEEPS, BLOCK_SIZE, TOKENS = 200, 4, 24
STARTS = range(2, len(WORDS))  # the last token of a random prompt


@pytest.fixture(scope="module")
def laws() -> dict[str, ToyLaw]:
    return {rule: ToyLaw(rule, 1.0, BLOCK_SIZE) for rule in ("match", "speculative")}


def test_the_toy_pair_follows_its_exact_law(laws: dict[str, ToyLaw]) -> None:
    """What the coverage below is measured against: the τ of many runs of the loop is the exact one."""
    ids = [(start,) for start in STARTS] * 2
    prompts = tuple(Prompt(str(i), "", "all", chat=False) for i in range(len(ids)))
    # As rows of a batch, so that no plain run is decoded beside.
    grid = SweepPlan(prompts, (1.0,), (BLOCK_SIZE,), tuple(laws), max_new_tokens=TOKENS, rows=8, timed_prompts=0, contexts=False)
    runs = [step.run for step in sweep_runs(load_pair("toy"), grid, ids) if step.run]
    for result in sweep_results(grid, runs).cells:
        assert result.tau is not None and result.tau.low is not None and result.tau.high is not None
        error = (result.tau.high - result.tau.low) / 4
        assert result.tau.value == pytest.approx(laws[result.cell.rule].tau(STARTS, TOKENS), abs=3 * error)
        assert 0 < error < 0.05


def test_intervals_cover_the_known_tau_of_the_toy_pair(laws: dict[str, ToyLaw]) -> None:
    """200 sweeps of six random prompts: τ of two rules and their difference, all known exactly, lie in 90 … 99 % of them."""
    truth = {rule: law.tau(STARTS, TOKENS) for rule, law in laws.items()}
    truth["difference"] = truth["speculative"] - truth["match"]
    covered = dict.fromkeys(truth, 0)
    random = np.random.default_rng(1)
    grid = plan(prompts=PROMPTS, temperatures=(1.0,), block_sizes=(BLOCK_SIZE,), rules=tuple(laws), contexts=False)
    for _ in range(SWEEPS):
        runs = []
        for prompt in range(len(PROMPTS)):
            start = int(random.choice(STARTS))
            for cell in grid.cells:
                blocks = [block(BLOCK_SIZE, n - 1) for n in laws[cell.rule].lengths(start, TOKENS, random)]
                blocks[-1] = dataclasses.replace(blocks[-1], finish_reason="length")
                runs.append(CellRun(RunKey(cell, prompt, 0), (prefill(), *blocks)))
        results = sweep_results(grid, runs)
        found = {result.cell.rule: result.tau for result in results.cells} | {"difference": results.differences[0].tau}
        for name, estimate in found.items():
            assert estimate is not None and (estimate.n, estimate.unit) == (6, "prompts")
            if estimate.low is not None and estimate.high is not None:  # else, rarely, all prompts agree
                covered[name] += estimate.low <= truth[name] <= estimate.high
    for name, count in covered.items():
        assert 0.90 <= count / SWEEPS <= 0.99, f"{name}: {count} of {SWEEPS} intervals cover the truth"


def test_a_cluster_interval_is_that_of_student_for_equal_few_clusters() -> None:
    """Four clusters of one block each: the mean, with the t interval of the textbook."""
    tokens = np.array([2.0, 3.0, 5.0, 2.0])
    sums = np.stack([tokens, np.ones(4)], axis=1)
    value, low, high = cluster_interval(sums, lambda s: s[..., 0] / s[..., 1])
    half = 3.182446 * tokens.std(ddof=1) / 2
    assert (value, low, high) == pytest.approx((3.0, 3.0 - half, 3.0 + half), rel=1e-6)


def test_two_clusters_or_clusters_that_agree_have_no_interval() -> None:
    for sums in (np.array([[6.0, 2.0]]), np.array([[7.0, 2.0], [2.0, 1.0]]), np.array([[6.0, 2.0], [3.0, 1.0], [9.0, 3.0]])):
        assert cluster_interval(sums, lambda s: s[..., 0] / s[..., 1]) == (3.0, None, None)


def test_survival_has_the_wilson_interval_of_its_blocks() -> None:
    blocks = [prefill(), block(4, 3), block(4, 0), block(4, 2), block(4, 3)]
    stats = run_stats(blocks, 4)
    for i, kept in ((1, 3), (2, 3), (3, 2)):
        assert stats.positions[i - 1].survival == pytest.approx(kept / 4)
        assert survival_interval(stats.positions, i) == pytest.approx(wilson_interval(kept, 4))
    never = run_stats([prefill(), block(4, 0), block(4, 0)], 4)
    assert survival_interval(never.positions, 3) == pytest.approx(wilson_interval(0, 2))
    # Half of the last block was never judged: the interval is wider than if it had been.
    cut = run_stats([*blocks[:4], dataclasses.replace(blocks[4], emitted=(1, 1), finish_reason="length")], 4)
    assert cut.positions[2].survival == pytest.approx(3 / 4 * 1 / 2)
    low, high = survival_interval(cut.positions, 3)
    low_if_judged, high_if_judged = wilson_interval(1.5, 4)
    assert low is not None and high is not None and low_if_judged is not None and high_if_judged is not None
    assert high - low > high_if_judged - low_if_judged


def test_the_figures_of_a_cell_are_those_of_its_blocks() -> None:
    """Two prompts with known blocks: τ, its kinds, what is cut, speeds and costs by hand."""
    small = plan(prompts=PROMPTS[:2], temperatures=(0.8,), block_sizes=(4,), rules=("match",), contexts=False)
    cell = small.cells[0]
    plain = small.plain_cell(0.8)
    ours = [
        CellRun(RunKey(cell, 0, 0), (prefill(), block(4, 1, seconds=(1, 2, 1)), block(4, 3, seconds=(1, 2, 1), finish="stop"))),
        CellRun(RunKey(cell, 1, 0), (prefill(), block(4, 0, seconds=(1, 4, 1)), block(4, 1, seconds=(1, 2, 3), finish="stop"))),
    ]
    steps = (prefill(), *(block(1, 0, seconds=(0, 2, 0)) for _ in range(3)), block(1, 0, seconds=(0, 2, 0), finish="length"))
    result = cell_result(small, cell, [*ours, *(CellRun(RunKey(plain, i, 0), steps) for i in range(2))])
    assert result.tau is not None and result.speed is not None
    assert result.tau.value == pytest.approx(9 / 4) and result.tau.n == 2
    assert result.tau_by_kind["even"].value == pytest.approx(3.0) and result.tau_by_kind["even"].low is None
    assert result.tau_by_kind["odd"].value == pytest.approx(1.5)
    assert (result.n_blocks, result.n_tokens, result.n_runs, result.n_cut) == (4, 11, 2, 0)
    speed = result.speed
    assert speed.plain_tokens_per_second.value == pytest.approx(0.5)
    assert speed.tokens_per_second.value == pytest.approx(9 / 20)
    assert speed.draft_cost.value == pytest.approx((2 + 2 + 2 + 4) / 4 / 2)
    assert speed.verify_cost.value == pytest.approx((2 + 2 + 4 + 2) / 4 / 2)
    # τ / (d + v) is the measured speed-up, by definition.
    assert speed.speedup.value == pytest.approx(result.tau.value / (speed.draft_cost.value + speed.verify_cost.value))
    assert speed.speedup.value == pytest.approx(0.9)


def test_batched_runs_are_not_timed() -> None:
    small = plan(prompts=PROMPTS[:1], temperatures=(0.8,), block_sizes=(4,), rules=("match",), contexts=False)
    runs = [
        CellRun(RunKey(cell, 0, 0), (prefill(), block(cell.block_size, 0, seconds=(1, 1, 1), finish="length")), rows)
        for cell, rows in ((small.cells[0], 8), (small.plain_cell(0.8), 1))
    ]
    result = cell_result(small, small.cells[0], runs)
    assert result.speed is None and result.tau is not None
    assert result.batched_tokens_per_second is not None and result.batched_tokens_per_second.value == pytest.approx(1 / 3)
    timed = cell_result(small, small.cells[0], [dataclasses.replace(run, rows=1) for run in runs])
    assert timed.speed is not None and timed.batched_tokens_per_second is None


def test_with_one_prompt_its_seeds_are_the_units() -> None:
    small = plan(prompts=PROMPTS[:1], temperatures=(0.8,), block_sizes=(4,), rules=("match",), seeds=(0, 1, 2), contexts=False)
    runs = [
        CellRun(RunKey(small.cells[0], 0, seed), (prefill(), block(4, kept, finish="length")))
        for seed, kept in ((0, 1), (1, 3), (2, 2))
    ]
    tau = cell_result(small, small.cells[0], runs).tau
    assert tau is not None and (tau.value, tau.n, tau.unit) == (3.0, 3, "seeds") and tau.low is not None


def test_sweep_and_evaluation_have_one_interval() -> None:
    small = plan(prompts=PROMPTS, temperatures=(0.8,), block_sizes=(4,), rules=("match",), contexts=False)
    runs = [
        CellRun(RunKey(small.cells[0], i, 0), (prefill(), block(4, kept), block(4, 0, finish="length")))
        for i, kept in enumerate((0, 3, 1, 2, 3, 0))
    ]
    tau = cell_result(small, small.cells[0], runs).tau
    assert tau is not None and tau_over_prompts([run.blocks for run in runs]) == (tau.value, tau.low, tau.high)
    assert tau_over_prompts([(prefill(),)]) == (None, None, None)


def test_the_recommendation_says_what_is_best_and_what_is_within_noise() -> None:
    """Six prompts; B = 2 and B = 4 are equally fast up to noise, B = 8 is clearly slower, plain decoding too."""
    small = plan(prompts=PROMPTS, temperatures=(0.8,), block_sizes=(2, 4, 8), rules=("match",), contexts=False)
    rng = np.random.default_rng(0)
    runs = []
    for prompt in range(6):
        for cell, seconds in zip((*small.cells, small.plain_cell(0.8)), (0.6, 0.6, 2.0, 1.0), strict=True):
            jitter = 1 + 0.02 * rng.standard_normal()
            last = block(cell.block_size, 0, seconds=(0, seconds * jitter, 0), finish="length")
            runs.append(CellRun(RunKey(cell, prompt, 0), (prefill(), last)))
    results = sweep_results(small, runs)
    (said,) = results.recommendations
    other = 6 - said.block_size
    assert said.block_size in (2, 4) and said.within_noise == (other,)
    assert said.speedup.value == pytest.approx(1 / 0.6, rel=0.05)
    low, high = f"{said.speedup.low:.2f}", f"{said.speedup.high:.2f}"
    assert said.text == (
        f"On these 6 prompts, `match` at T = 0.8: B = {said.block_size} is best, {said.speedup.value:.2f} × ({low} – {high}); "
        f"B = {other} is within noise of that."
    )
    slower = [dataclasses.replace(run, blocks=(prefill(), slowed(run))) if not run.key.cell.is_plain else run for run in runs]
    (said,) = sweep_results(small, slower).recommendations
    assert said.block_size == 1 and said.within_noise == () and "plain decoding is fastest" in said.text
    uneven = [
        dataclasses.replace(run, blocks=(prefill(), slowed(run, 400.0 ** (run.key.prompt % 2))))
        if not run.key.cell.is_plain
        else run
        for run in runs
    ]
    (said,) = sweep_results(small, uneven).recommendations
    assert "differ too much from prompt to prompt" in said.text
    (model,) = results.models
    assert model.block_sizes == tuple(range(2, 9)) and model.best[0] in model.block_sizes


def test_rules_are_compared_prompt_by_prompt() -> None:
    small = plan(prompts=PROMPTS, temperatures=(0.0, 0.8), block_sizes=(8,), contexts=False)
    runs = []
    for prompt in range(6):
        for rule, more in (("match", 0), ("speculative", 1)):
            last = block(8, prompt + more, finish="length")  # prompts differ far more than rules
            runs.append(CellRun(RunKey(Cell(0.8, 8, rule), prompt, 0), (prefill(), block(8, prompt), last)))
    (difference,) = sweep_results(small, runs).differences  # none at temperature 0, where the runs are the same
    assert (difference.rule, difference.other, difference.tau.n) == ("speculative", "match", 6)
    assert difference.tau.value == pytest.approx(0.5)
    # Each prompt differs by just that: no doubt is left, though τ itself is very uncertain.
    assert difference.tau.low is None or difference.tau.high - difference.tau.low < 1e-6  # type: ignore[operator]


def prefill() -> Block:
    return Block(0, 0, 1, (), 0, 1, "bonus", (1,), None)


def block(
    block_size: int, kept: int, *, seconds: tuple[float, float, float] = (0, 0, 0), finish: FinishReason | None = None
) -> Block:
    """An uncut block that kept so many of its draft tokens."""
    drafted = (1,) * (block_size - 1)
    kind: NextKind = "resampled" if kept < len(drafted) else "bonus"
    return Block(1, 1, 1, drafted, kept, 1, kind, (1,) * (kept + 1), finish, (), None, *seconds)


def slowed(run: CellRun, factor: float = 3) -> Block:
    return dataclasses.replace(run.blocks[1], verify_seconds=factor * run.blocks[1].verify_seconds)
