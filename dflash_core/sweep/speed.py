"""Speeds of a sweep: what was measured beside plain decoding, the cost model, and which block size to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..intervals import Array, cluster_interval
from ..theory import expected_acceptance_length_by_position, speedup
from .figures import CellResult, CellSpeed, Estimate, Recommendation, SpeedModel
from .plan import Cell
from .runs import CellRun

# Columns of a prompt's sums: tokens, cycles, and seconds outside and inside the target's pass.
TOKENS, CYCLES, AROUND, VERIFY = range(4)
TOO_WIDE = 10  # a speed-up whose interval spans such a factor says nothing


def cell_speed(runs: Sequence[CellRun], plain: Sequence[CellRun]) -> CellSpeed | None:
    """Speeds of a cell's timed runs and the plain runs of the same prompts; None without such."""
    ours, theirs = _sums(runs), _sums(plain)
    both = [prompt for prompt in ours if prompt in theirs]
    if not both:
        return None
    sums = np.array([np.concatenate([ours[prompt], theirs[prompt]]) for prompt in both])
    n_blocks = int(sums[:, CYCLES].sum())
    return CellSpeed(
        n_blocks=n_blocks,
        tokens_per_second=_positive(sums, _speed),
        plain_tokens_per_second=_positive(sums[:, 4:], _speed),
        speedup=_positive(sums, lambda s: _speed(s) / _speed(s[..., 4:])),
        draft_cost=_positive(sums, lambda s: s[..., AROUND] / s[..., CYCLES] * _speed(s[..., 4:])),
        verify_cost=_positive(sums, lambda s: s[..., VERIFY] / s[..., CYCLES] * _speed(s[..., 4:])),
    )


def batched_throughput(runs: Sequence[CellRun]) -> Estimate | None:
    """Tokens a second of the runs that were decoded as rows of a batch; None without such."""
    sums = _sums(runs, batched=True)
    return _positive(np.array(list(sums.values())), _speed) if sums else None


def speed_model(line: Sequence[CellResult]) -> SpeedModel:
    """The cost model along the block sizes of one temperature and rule; each result has a speed."""
    line = sorted(line, key=lambda result: result.cell.block_size)
    sizes = [result.cell.block_size for result in line]
    speeds = [result.speed for result in line if result.speed]
    alphas = [p.rate.value if p.rate else 0.0 for p in line[-1].positions]
    all_sizes = tuple(range(2, sizes[-1] + 1))
    draft_costs = np.interp(all_sizes, sizes, [speed.draft_cost.value for speed in speeds])
    # A target pass over one token is a plain step.
    verify_costs = np.interp(all_sizes, [1, *sizes], [1.0, *(speed.verify_cost.value for speed in speeds)])
    gains = tuple(
        speedup(expected_acceptance_length_by_position(alphas[: size - 1]), float(d), float(v))
        for size, d, v in zip(all_sizes, draft_costs, verify_costs, strict=True)
    )
    best = max(zip(gains, all_sizes, strict=True), key=lambda pair: (pair[0], -pair[1]))
    cell = line[0].cell
    return SpeedModel(
        cell.temperature, cell.draft_temperature, cell.rule, all_sizes, gains, (best[1], best[0]) if best[0] > 1 else (1, 1.0)
    )


def recommend(line: Sequence[CellResult], runs_of: Mapping[Cell, Sequence[CellRun]]) -> Recommendation:
    """The fastest block size of one temperature and rule, and which others cannot be told from it.

    line: the cells, each with a speed. runs_of: the runs of each. The best of several measured ones looks a little better than
    it is; sizes are compared by prompt, on the prompts that both were timed on.
    """
    line = sorted(line, key=lambda result: result.cell.block_size)
    fastest = max(line, key=lambda result: result.speed.speedup.value if result.speed else 0.0)
    assert fastest.speed is not None
    gain, size = fastest.speed.speedup, fastest.cell.block_size
    like_plain = gain.low is not None and gain.high is not None and gain.low <= 1 <= gain.high
    best = 1 if gain.value < 1 else size
    within = [1] if best > 1 and like_plain else []
    for other in line:
        if other.cell.block_size == best:
            continue
        if best == 1:
            compared = other.speed.speedup if other.speed else None
        else:
            compared = _compared(runs_of[other.cell], runs_of[fastest.cell])
        if compared and compared.low is not None and compared.high is not None and compared.low <= 1 <= compared.high:
            within.append(other.cell.block_size)
    cell = fastest.cell
    return Recommendation(
        cell.temperature,
        cell.draft_temperature,
        cell.rule,
        best,
        Estimate(1.0, 1.0, 1.0, gain.n) if best == 1 else gain,
        tuple(within),
        _words(cell, gain, best, within, [result.cell.block_size for result in line]),
    )


def _words(cell: Cell, gain: Estimate, best: int, within: Sequence[int], sizes: Sequence[int]) -> str:
    draft = "" if cell.draft_temperature is None else f" (draft at {cell.draft_temperature:g})"
    prompts = f"On these {gain.n} prompts" if gain.n > 1 else "On this one prompt"
    where = f"{prompts}, `{cell.rule}` at T = {cell.temperature:g}{draft}"
    if gain.low is not None and gain.high is not None and gain.high > TOO_WIDE * gain.low:
        return (
            f"{where}: the speeds differ too much from prompt to prompt to recommend a block size (the 95 % interval of the "
            f"best, B = {cell.block_size}, spans a factor of more than {TOO_WIDE}): take more prompts, or a quieter machine."
        )
    interval = f" ({gain.low:.2f} – {gain.high:.2f})" if gain.low is not None else ""
    measured = f"{gain.value:.2f} ×{interval}"
    if best == 1:
        text = f"{where}: plain decoding is fastest; the best of the block sizes, B = {cell.block_size}, gives {measured}"
    else:
        only = "is best" if len(sizes) > 1 else "was measured"
        text = f"{where}: B = {best} {only}, {measured}"
    if gain.low is None:
        return f"{text}; {'one prompt gives' if gain.n == 1 else 'so few prompts give'} no interval."
    others = [size for size in within if size > 1]
    if others:
        text += f"; {_listed(others, sizes)} {'is' if len(others) == 1 else 'are'} within noise"
        text += " of that" if best > 1 else " of plain decoding"
    if 1 in within:
        text += "; the gain over plain decoding is itself within noise"
    return text + "."


def _listed(some: Sequence[int], sizes: Sequence[int]) -> str:
    """`B = 4 to 16`, if these are neighbours among the measured sizes, else `B = 2, 8`."""
    first, last = sizes.index(some[0]), sizes.index(some[-1])
    if len(some) > 2 and last - first == len(some) - 1:
        return f"B = {some[0]} to {some[-1]}"
    return "B = " + ", ".join(map(str, some))


def _compared(runs: Sequence[CellRun], others: Sequence[CellRun]) -> Estimate | None:
    """Speed of the runs over that of the others, on the prompts that both have."""
    ours, theirs = _sums(runs), _sums(others)
    rows = [np.concatenate([ours[prompt], theirs[prompt]]) for prompt in ours if prompt in theirs]
    return _positive(np.array(rows), lambda s: _speed(s) / _speed(s[..., 4:])) if rows else None


def _sums(runs: Sequence[CellRun], *, batched: bool = False) -> dict[int, Array]:
    """By prompt: tokens, cycles and seconds of the runs decoded one by one, or of the batched ones; prefills are left out."""
    sums: dict[int, Array] = {}
    for run in runs:
        if (run.rows > 1) != batched or len(run.blocks) < 2:
            continue
        row = np.zeros(4)
        for block in run.blocks[1:]:
            row += [len(block.emitted), 1, block.draft_seconds + block.other_seconds, block.verify_seconds]
        if row[AROUND] + row[VERIFY] > 0:
            sums[run.key.prompt] = sums.get(run.key.prompt, np.zeros(4)) + row
    return sums


def _speed(sums: Array) -> Array:
    """Tokens a second."""
    return np.asarray(sums[..., TOKENS] / (sums[..., AROUND] + sums[..., VERIFY]))


def _positive(sums: Array, figure: Callable[[Array], Array]) -> Estimate:
    """A figure that is a ratio of times: its interval is made of its logarithm."""
    value, low, high = cluster_interval(sums, lambda s: np.log(figure(s)))
    return Estimate(
        float(np.exp(value)),
        None if low is None else float(np.exp(low)),
        None if high is None else float(np.exp(high)),
        len(sums),
    )
