"""The what-if pass: at the run's own temperature it is the run again, elsewhere it is the rules' mathematics."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from dflash_core import RULES, DFlashDraftModel, Generation, dflash_generate
from dflash_core.metrics import run_stats
from dflash_core.pairs import load_pair
from dflash_core.sampling import probabilities
from dflash_core.theory import expected_acceptance_length_by_position
from dflash_core.toy import ToyCache, ToyDraft, ToyTarget
from dflash_core.trace import Trace, TraceError, dump_trace, parse_trace
from dflash_core.whatif import WhatIf, expected_tau, judged_positions, rescore

from .conftest import VOCAB, OracleDraft, tiny_draft, tiny_target

TOY = ToyTarget()
TOY_DRAFT = ToyDraft(TOY)
GRID = (0.0, 0.4, 0.9, 1.5)
Table = tuple[tuple[float, ...], ...]


def close(values: list[float]) -> Any:
    return pytest.approx(values, rel=1e-5, abs=1e-5)


def toy_run(n: int = 40, **options: Any) -> Generation:
    values = {"temperature": 0.9, "seed": 5, "table_size": 1, **options}
    return dflash_generate(TOY_DRAFT, TOY, torch.tensor([[4, 9, 12]]), max_new_tokens=n, **values)


@functools.cache
def small() -> tuple[Generation, WhatIf]:
    generation = toy_run(block_size=4)
    return generation, rescore(TOY_DRAFT, TOY, generation, GRID)


def assert_is_the_run(result: WhatIf, generation: Generation, at: int) -> None:
    """Entropies, p(x) and q(x) at the temperature of this index are those that the run recorded."""
    recorded = [block.judged[i] for block in generation.blocks for i in range(block.accepted + block.rejected)]
    assert len(recorded) == len(result.positions) > 0
    for name in ("target_entropy", "draft_entropy", "target_prob", "draft_prob"):
        table: Table = getattr(result, name)
        assert [row[at] for row in table] == close([getattr(token, name) for token in recorded])


# The run again


@pytest.mark.parametrize("rule", ["match", "speculative", "greedy-match"])
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.0}, {"top_k": 12, "top_p": 0.9}, {"draft_temperature": 0.5}, {"block_size": 2}, {"block_size": 13}],
    ids=str,
)
def test_at_its_own_temperature_a_toy_run_comes_out_again(rule: str, options: dict[str, Any]) -> None:
    generation = toy_run(rule=rule, **options)
    result = rescore(TOY_DRAFT, TOY, generation, [0.3, generation.params.temperature])
    assert_is_the_run(result, generation, 1)


@pytest.mark.parametrize("rule", ["match", "speculative", "greedy-match"])
@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"temperature": 1.2, "top_p": 0.8, "block_size": 5}], ids=str)
def test_at_its_own_temperature_a_run_of_a_model_comes_out_again(
    target: PreTrainedModel, draft: DFlashDraftModel, rule: str, options: dict[str, Any]
) -> None:
    generation = dflash_generate(
        draft, target, torch.tensor([[5, 9, 13, 44, 2, 60]]), max_new_tokens=30, seed=3, rule=rule, table_size=1, **options
    )
    result = rescore(draft, target, generation, [options["temperature"], 2.0])
    assert_is_the_run(result, generation, 0)


def test_accepted_blocks_of_a_model_come_out_again() -> None:
    """A draft that knows the text but for every fifth position: blocks of many lengths, which both caches must follow."""
    target, prompt = tiny_target("llama"), torch.tensor([[5, 9, 13]])
    options: dict[str, Any] = {"temperature": 0.9, "seed": 1, "table_size": 1}
    text = dflash_generate(None, target, prompt, max_new_tokens=60, **options).token_ids
    oracle = OracleDraft(lambda position: (text[position - 3] + (position % 5 == 0)) % VOCAB)
    generation = dflash_generate(oracle, target, prompt, max_new_tokens=40, block_size=4, **options)
    assert generation.token_ids == text[:40]
    assert {block.n_accepted for block in generation.blocks[1:]} >= {0, 1, 3}
    assert_is_the_run(rescore(oracle, target, generation, [0.9]), generation, 0)


# The mathematics


def chain_rows(generation: Generation, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """p and q of each judged position in float64, from the chain itself: its rows, and the powers of its transition matrix."""

    def softmax(scores: np.ndarray) -> np.ndarray:
        weights = np.exp((scores - scores.max()) / temperature)
        return weights / weights.sum()

    logits = TOY.logits.double().numpy()
    step = np.stack([np.exp(row) / np.exp(row).sum() for row in logits])
    p, q = [], []
    for block in generation.blocks:
        for i in range(block.accepted + block.rejected):
            p.append(softmax(logits[(block.anchor, *block.drafted)[i]]))
            marginal = np.linalg.matrix_power(step, i + 1)[block.anchor]
            q.append(softmax(np.log(0.98 * marginal + 0.02 / len(step))))
    return np.stack(p), np.stack(q)


def test_values_against_the_chain_itself() -> None:
    generation, result = small()
    tokens = [(block.drafted[i - 1], i) for block in generation.blocks[1:] for i in range(1, block.accepted + block.rejected + 1)]
    x = np.array([token for token, _ in tokens])
    assert [i for _, i in result.positions] == [i for _, i in tokens]
    assert set(result.acceptance) == set(RULES) and result.temperatures == GRID
    for at, temperature in enumerate(GRID):
        if temperature == 0:
            continue
        p, q = chain_rows(generation, temperature)
        # The rules of one line, written out, and the code of all of them on these rows.
        by_hand = {
            "match": (p * q).sum(1),
            "greedy-match": np.take_along_axis(p, q.argmax(1)[:, None], 1)[:, 0],
            "speculative": np.minimum(p, q).sum(1),
        }
        for key, rule in RULES.items():
            column = [row[at] for row in result.acceptance[key]]
            assert column == close(rule.acceptance(torch.from_numpy(p), torch.from_numpy(q)).tolist())
            if key in by_hand:
                assert column == close(by_hand[key].tolist())
        expected = {
            "target_prob": p[np.arange(len(x)), x],
            "draft_prob": q[np.arange(len(x)), x],
            "target_entropy": -(p * np.log(p)).sum(1),
            "draft_entropy": -(q * np.log(q)).sum(1),
        }
        for name, values in expected.items():
            assert [row[at] for row in getattr(result, name)] == close(values.tolist())


@pytest.mark.parametrize("rule", ["match", "greedy-match", "speculative", "coupled"])
def test_the_curve_at_its_own_temperature_is_the_measured_tau(rule: str) -> None:
    """4,000 tokens. Measured and expected τ differ by the luck of the verdicts, whose standard error is below that of the mean
    length; 5 σ: a right curve fails less than once in a million seeds."""
    generation = toy_run(4000, rule=rule, table_size=0, block_size=8)
    figures = run_stats(generation.blocks, 8)
    assert figures.tau is not None and figures.tau_low is not None and figures.tau_high is not None
    result = rescore(TOY_DRAFT, TOY, generation, [0.9, 4.0], rules=[rule])
    own, other = expected_tau(result, rule)
    lengths = np.array([block.acceptance_length for block in generation.blocks[1:]])
    sigma = lengths.std() / math.sqrt(len(lengths))
    assert abs(own.tau - figures.tau) < 5 * sigma
    assert own.low is not None and own.high is not None
    assert own.low < figures.tau_high and figures.tau_low < own.high
    assert abs(other.tau - figures.tau) > 5 * sigma  # so the comparison would notice a wrong temperature


def test_the_expected_tau_pools_by_place_in_the_block() -> None:
    generation, result = small()
    for key in RULES:
        for at, expected in enumerate(expected_tau(result, key, n_bootstrap=200)):
            by_place = [
                [row[at] for row, (_, i) in zip(result.acceptance[key], result.positions, strict=True) if i == place]
                for place in (1, 2, 3)
            ]
            means = [sum(values) / len(values) if values else 0.0 for values in by_place]
            assert expected.temperature == GRID[at]
            assert expected.tau == pytest.approx(expected_acceptance_length_by_position(means))
            assert expected.low is not None and expected.high is not None
            assert 1 <= expected.low <= expected.tau <= expected.high <= generation.block_size


def made_of(rows: list[list[float]]) -> WhatIf:
    """A what-if for one temperature from the acceptances of each block."""
    positions = tuple((block, i) for block, row in enumerate(rows, start=1) for i in range(1, len(row) + 1))
    table = tuple((value,) for row in rows for value in row)
    return WhatIf((1.0,), positions, {"match": table}, table, table, table, table)


def test_the_expected_tau_by_hand() -> None:
    ((temperature, tau, low, high),) = expected_tau(made_of([[0.5, 0.25], [1.0, 0.75, 0.5], [0.0]]), "match")
    # Means 0.5, 0.5, 0.5 at the places 1, 2, 3; later places were never judged and count as 0.
    assert (temperature, tau) == (1.0, 1 + 0.5 + 0.25 + 0.125)
    assert low == 1.0 and high == 1 + 1 + 0.75 + 0.375  # three times the third block; three times the second
    assert expected_tau(made_of([[0.5, 0.5]]), "match") == [(1.0, 1.75, None, None)]


def test_the_bootstrap_covers_and_is_seeded() -> None:
    """Of 100 made runs of 40 blocks, at least 82 intervals hold the truth: at 95 %, fewer are less than 10⁻⁶ likely."""
    random = np.random.default_rng(1)
    truth, covered = 1 + 0.6 + 0.6 * 0.4, 0
    for _ in range(100):
        rows = []
        for easy in random.random(40) < 0.5:  # the two places of a block go together
            first, second = (0.9, 0.5) if easy else (0.3, 0.3)
            rows.append([first, second] if random.random() < 0.5 else [first])
        (row,) = expected_tau(made_of(rows), "match", n_bootstrap=300)
        assert row.low is not None and row.high is not None
        covered += row.low <= truth <= row.high
    assert covered >= 82
    _, result = small()
    assert expected_tau(result, "match") == expected_tau(result, "match", seed=0) != expected_tau(result, "match", seed=1)


# Extremes


def test_extreme_temperatures() -> None:
    generation, _ = small()
    result = rescore(TOY_DRAFT, TOY, generation, [0, 1e-6, 1e-5, 1e-4, 5, 100, 1e300])
    for rows in (*result.acceptance.values(), result.target_entropy, result.draft_entropy, result.target_prob, result.draft_prob):
        assert all(math.isfinite(value) and value >= 0 for row in rows for value in row)
        assert all(row[0] == row[1] for row in rows)
    for key, rows in result.acceptance.items():
        assert {row[0] for row in rows} == {0.0, 1.0}, key
        assert all(row[2] == pytest.approx(row[0], abs=1e-6) for row in rows)
        assert all(value <= 1 for row in rows for value in row)
    assert all(row[:2] == (0.0, 0.0) and row[6] == pytest.approx(math.log(TOY.vocab_size)) for row in result.target_entropy)
    assert all(row[6] == pytest.approx(1.0) for row in result.acceptance["speculative"])


def test_the_draft_keeps_a_temperature_of_its_own() -> None:
    result = rescore(TOY_DRAFT, TOY, toy_run(draft_temperature=0.6), GRID)
    for rows in (result.draft_prob, result.draft_entropy):
        assert all(len(set(row)) == 1 for row in rows)
    assert any(len(set(row)) > 1 for row in result.target_prob)
    followed = rescore(TOY_DRAFT, TOY, toy_run(), GRID)
    assert any(len(set(row)) > 1 for row in followed.draft_prob)


def cut_runs() -> list[Generation]:
    """One run whose last block the cap cut, one whose last block a stop token cut."""
    runs = [toy_run(n) for n in range(2, 40)] + [toy_run(rule="speculative", stop_token_ids=[token]) for token in range(3, 40)]
    cut = {run.finish_reason: run for run in runs if run.blocks[-1].is_cut}
    return [cut["length"], cut["stop"]]


def test_a_cut_block_counts_as_far_as_the_output_goes() -> None:
    for generation in cut_runs():
        last = generation.blocks[-1]
        assert len(last.judged) > last.accepted  # the verdict went further than the output
        result = rescore(TOY_DRAFT, TOY, generation, [0.9])
        assert len(result.positions) == run_stats(generation.blocks, generation.block_size).judged
        assert result.positions[-1] == (last.index, last.accepted)
        assert result.positions == judged_positions(generation.blocks)
        assert_is_the_run(result, generation, 0)


def test_a_stopped_run_can_be_scored() -> None:
    generation, result = small()
    part = replace(generation, blocks=generation.blocks[:3])
    n = len(judged_positions(part.blocks))
    partial = rescore(TOY_DRAFT, TOY, part, GRID)
    assert partial.positions == result.positions[:n] and partial.target_prob == result.target_prob[:n]


# Nothing kept, nothing large


def test_nothing_is_changed_or_kept() -> None:
    target, draft = tiny_target("qwen3"), tiny_draft()
    before = [weight.clone() for model in (target, draft) for weight in model.parameters()]

    def run() -> Generation:
        return dflash_generate(draft, target, torch.tensor([[5, 9, 13]]), max_new_tokens=12, temperature=0.8, seed=2)

    generation, state = run(), torch.get_rng_state()
    first = rescore(draft, target, generation, GRID)
    assert torch.equal(torch.get_rng_state(), state)
    assert rescore(draft, target, generation, GRID) == first
    again = run()
    assert again.token_ids == generation.token_ids
    for weight, old in zip((w for model in (target, draft) for w in model.parameters()), before, strict=True):
        assert torch.equal(weight, old) and weight.grad is None and not weight.is_inference()


def test_a_loaded_pair_and_a_choice_of_rules() -> None:
    generation, result = small()
    pair = load_pair("toy")
    chosen = rescore(pair.draft, pair.target, generation, GRID, rules=["coupled", "match"])
    assert list(chosen.acceptance) == ["coupled", "match"]
    assert all(chosen.acceptance[key] == result.acceptance[key] for key in chosen.acceptance)


class _Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation gave back."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, Tensor):
                self.numel = max(self.numel, value.numel())
        return result


class WideTarget(ToyTarget):
    """A target of many words, whose logits depend on the last token."""

    def __init__(self) -> None:
        self.vocab_size = 4001

    def forward(self, token_ids: Tensor, cache: ToyCache, *, taps: Any, last_only: bool) -> tuple[Tensor, Tensor]:
        cache.rows[0] += token_ids[0].tolist()
        scored = token_ids[:, -1:] if last_only else token_ids
        logits = torch.sin(scored[..., None] * torch.arange(1.0, self.vocab_size + 1))
        return 5 * logits, torch.zeros(1, token_ids.shape[1], 1)


def test_the_memory_is_that_of_one_block_at_one_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = WideTarget(), OracleDraft(lambda position: position, 4001)
    generation = dflash_generate(draft, target, torch.tensor([[1, 2]]), max_new_tokens=30, block_size=8, temperature=0.8, seed=1)
    sizes = []

    def recorded(logits: Tensor, **options: Any) -> Tensor:
        sizes.append(logits.numel())
        return probabilities(logits, **options)

    monkeypatch.setattr("dflash_core.whatif.probabilities", recorded)
    grid = np.linspace(0, 1.5, 12).tolist()
    with _Largest() as largest:
        rescore(draft, target, generation, grid)
    assert len(sizes) == 2 * len(grid) * (len(generation.blocks) - 1)
    assert max(sizes) <= 7 * 4001
    assert largest.numel == 8 * 4001  # the target's own logits of one block


def test_progress_is_told_and_can_end_the_pass() -> None:
    generation, _ = small()
    told: list[tuple[int, int]] = []
    rescore(TOY_DRAFT, TOY, generation, [1.0], rules=["match"], on_progress=lambda done, total: told.append((done, total)))
    n = len(generation.blocks) - 1
    assert told == [(done, n) for done in range(1, n + 1)]

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        rescore(TOY_DRAFT, TOY, generation, [1.0], on_progress=stop)


# What cannot work


@pytest.mark.parametrize("grid", [[math.nan], [-0.1], [], [1.0, math.inf], ["1"], [True], [None], [10**400], "1.0", None, 0.7])
def test_a_bad_grid(grid: Any) -> None:
    with pytest.raises(ValueError, match="temperature"):
        rescore(TOY_DRAFT, TOY, small()[0], grid)


def test_bad_rules_and_bootstrap() -> None:
    generation, result = small()
    for rules in ([], ["lucky"], "match"):
        with pytest.raises(ValueError, match="rules must be some of match"):
            rescore(TOY_DRAFT, TOY, generation, [1.0], rules=rules)
    with pytest.raises(ValueError, match="was not scored; this what-if has match"):
        expected_tau(made_of([[0.5]]), "block")
    with pytest.raises(ValueError, match="n_bootstrap must be at least 1"):
        expected_tau(result, "match", n_bootstrap=0)


def test_a_run_without_judged_tokens() -> None:
    for generation in (toy_run(block_size=1), toy_run(1), replace(toy_run(), blocks=())):
        with pytest.raises(ValueError, match="no judged token"):
            rescore(TOY_DRAFT, TOY, generation, [1.0])


def test_a_run_of_another_pair() -> None:
    target, draft = tiny_target("llama"), tiny_draft()
    generation = dflash_generate(draft, target, torch.tensor([[96, 90]]), max_new_tokens=5, temperature=1.0, seed=1)
    with pytest.raises(ValueError, match="token id 96, but the target's vocabulary ends"):
        rescore(TOY_DRAFT, TOY, generation, [1.0])
    with pytest.raises(ValueError, match="beyond the target's context of 512"):
        rescore(draft, target, toy_run(600), [1.0])


# In the trace


def trace() -> Trace:
    generation, result = small()
    return Trace(generation, {"pair": "toy"}, tuple(None for _ in generation.blocks), result)


def test_round_trip_through_json_and_trace() -> None:
    _, result = small()
    assert WhatIf.from_dict(result.to_dict()) == result
    assert WhatIf.from_dict(json.loads(json.dumps(result.to_dict(), allow_nan=False))) == result
    text = dump_trace(trace())
    assert parse_trace(text) == trace()
    assert json.loads(text.splitlines()[-1]).keys() == {"whatif"}
    without = parse_trace("".join(line + "\n" for line in text.splitlines()[:-1]))
    assert without == replace(trace(), whatif=None)  # what older versions wrote
    assert expected_tau(parse_trace(text).whatif or made_of([]), "match") == expected_tau(result, "match")


def test_numbers_are_short() -> None:
    _, result = small()
    for rows in (result.target_prob, result.acceptance["coupled"]):
        assert all(float(f"{value:.6g}") == value for row in rows for value in row)


def spoiled(change: Callable[[Any], None]) -> str:
    """The trace's text after a change of its last line."""
    *lines, last = dump_trace(trace()).splitlines()
    values = json.loads(last)
    change(values)
    return "".join(line + "\n" for line in [*lines, json.dumps(values)])


HOSTILE: list[Any] = [None, [], {}, "x", 1, True, [[]], [1.0], {"match": []}, "<script>", [None] * 3]


@pytest.mark.parametrize("name", list(small()[1].to_dict()))
def test_a_malformed_what_if(name: str) -> None:
    last = dump_trace(trace()).count("\n")
    for value in HOSTILE:
        with pytest.raises(TraceError, match=rf"^line {last}: "):
            parse_trace(spoiled(lambda line, value=value: line["whatif"].update({name: value})))  # type: ignore[misc]
    with pytest.raises(TraceError, match=r"must be an object with temperatures"):
        parse_trace(spoiled(lambda line: line["whatif"].pop(name)))


@pytest.mark.parametrize("value", [None, [], "x", 3, {"shoe_size": 43}])
def test_a_what_if_that_is_something_else(value: Any) -> None:
    with pytest.raises(TraceError, match="the what-if is malformed: must be an object"):
        parse_trace(spoiled(lambda line: line.update({"whatif": value})))
    with pytest.raises(ValueError, match="must be an object"):
        WhatIf.from_dict(value)


@pytest.mark.parametrize("value", [-1e-9, "0.5", None, True, 10**400, [0.5], 101.0])
@pytest.mark.parametrize("name", ["target_entropy", "draft_entropy", "target_prob", "draft_prob", "match", "block"])
def test_malformed_numbers(name: str, value: Any) -> None:
    def change(line: Any) -> None:
        (line["whatif"]["acceptance"] if name in RULES else line["whatif"])[name][1][2] = value

    with pytest.raises(TraceError, match=f'each row of "{name}" must have 4 numbers from 0 to'):
        parse_trace(spoiled(change))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999", "9" * 5000])
def test_numbers_that_json_or_a_float_does_not_have(number: str) -> None:
    text = dump_trace(trace())
    with pytest.raises(TraceError, match=r"^line \d+: "):
        parse_trace(text.replace('"temperatures":[0.0', f'"temperatures":[{number}'))
    with pytest.raises(TraceError, match=r"^line \d+: "):
        parse_trace(text.replace('"target_entropy":[[0.0', f'"target_entropy":[[{number}'))


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values["positions"].reverse(),
        lambda values: values["positions"][0].append(1),
        lambda values: values["positions"][0].__setitem__(1, 2),
        lambda values: values["positions"][0].__setitem__(0, 0),
        lambda values: values["positions"][0].__setitem__(0, True),
        lambda values: values["positions"][-1].__setitem__(1, 10**12),
        lambda values: values["positions"].pop(),
        lambda values: values["positions"].append([10**6, 1]),
        lambda values: values["target_prob"].pop(),
        lambda values: values["acceptance"].update({"lucky": values["target_prob"]}),
        lambda values: values["acceptance"]["match"][0].pop(),
        lambda values: values["temperatures"].append(2.0),
        lambda values: values["temperatures"].__setitem__(0, -1.0),
        lambda values: values.update({"shoe_size": 43}),
    ],
)
def test_a_what_if_that_does_not_hold_together(change: Callable[[Any], None]) -> None:
    with pytest.raises(TraceError, match=r"^line \d+: "):
        parse_trace(spoiled(lambda line: change(line["whatif"])))


def test_a_what_if_of_another_run() -> None:
    other = rescore(TOY_DRAFT, TOY, toy_run(block_size=3), GRID)
    with pytest.raises(TraceError, match="the judged ones of the blocks"):
        parse_trace(dump_trace(replace(trace(), whatif=other)))


def test_the_what_if_comes_last_and_once() -> None:
    lines = dump_trace(trace()).splitlines()
    for wrong in ([*lines, lines[-1]], [*lines[:-2], lines[-1], lines[-2]], [*lines, "{}"]):
        with pytest.raises(TraceError, match=r"which comes last|judged ones"):
            parse_trace("".join(line + "\n" for line in wrong))


def test_all_the_rules_agree_where_they_must() -> None:
    """match ≤ speculative at every position and temperature; block's and naive's forms at one position are the ratio test's."""
    _, result = small()
    assert result.acceptance["block"] == result.acceptance["naive"] == result.acceptance["speculative"]
    for match, ratio in zip(result.acceptance["match"], result.acceptance["speculative"], strict=True):
        assert all(a <= b + 1e-6 for a, b in zip(match, ratio, strict=True))
    assert all(block >= before for (before, _), (block, _) in pairwise(result.positions))
