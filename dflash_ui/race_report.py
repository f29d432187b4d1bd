"""A race in words and numbers: what assets/js/race.js puts on the page. It computes no figure: those are the core's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dflash_core.blocks import Generation, SamplingParams
from dflash_core.pairs import Pair
from dflash_core.race import Arm, RaceStats, Round, clock, race_stats
from dflash_core.sampling import GREEDY_BELOW

from . import render
from .race_charts import cost_figure, part_seconds
from .text import text

GHOSTS = ("rejected", "unjudged", "cut")
SEVERITY = ("fault", "rounding", "same", "other_draw", "other_law")


def report(rounds: Sequence[Round], pair: Pair, head: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a race's complete repeats, JSON values; None if there are none, or no token after the prefill's.

    head: the description of the run, `run.make_head`. Only token texts come from a model; all else is the page's own words.
    """
    stats = race_stats(rounds)
    if stats is None:
        return None
    shown = rounds[stats.shown]
    speed, same = _speed(stats), _texts(rounds, pair, head)
    values = {
        "n": len(rounds),
        "shown": stats.shown + 1,
        "plain": 1000 * shown.plain.blocks[0].seconds,
        "dflash": 1000 * shown.dflash.blocks[0].seconds,
    }
    caption = text("race", "caption" if len(rounds) > 1 else "caption_one").format(**values)
    return {
        "said": f"{speed['title']}. {same['title']}.",
        "about": text("race", "about").format(
            n=len(rounds), prompt_tokens=head["prompt_tokens"], more=unusual(shown.dflash.params), **_of_head(head)
        ),
        "caption": f"{caption} {text('race', 'clock').format(**values)}",
        "lanes": _lanes(shown, pair, head),
        "verdicts": [same, speed],
        "numbers": _numbers(stats, len(rounds)),
        "why": {"title": text("race", "why"), "lines": _why(stats, head)},
        "tables": [_repeats_table(stats, rounds), _cost_table(stats)],
        "figure": {look: json.loads(cost_figure(stats, dark=look == "dark").to_json()) for look in ("light", "dark")},
    }


def unusual(params: SamplingParams) -> str:
    """Top-p, top-k and the draft's own temperature, where they are set, to be put after the temperature."""
    found = {"top_p": params.top_p if params.top_p < 1 else None, "top_k": params.top_k or None,
             "draft_temperature": params.draft_temperature}  # fmt: skip
    return "".join(text("race", key).format(value) for key, value in found.items() if value is not None)


def _of_head(head: dict[str, Any]) -> dict[str, Any]:
    return {name: head[name] for name in ("pair", "device", "dtype", "rule_label", "temperature", "block_size", "seed")}


def _arm(arm: Arm, head: dict[str, Any]) -> str:
    return text("race", arm).format(block_size=head["block_size"])


def _lanes(shown: Round, pair: Pair, head: dict[str, Any]) -> list[dict[str, Any]]:
    """Both sides of the replay: when each block was there, what it brought, and in which place the side came in."""
    runs: dict[Arm, Generation] = {"plain": shown.plain, "dflash": shown.dflash}
    ends = {arm: clock(run)[-1] for arm, run in runs.items()}
    first = min(ends.values())
    lanes = []
    for arm, run in runs.items():
        texts = render.TokenText(pair.tokenizer, run.prompt_ids)
        n, blocks = 0, []
        for at, block in zip(clock(run), run.blocks, strict=True):
            n += len(block.emitted)
            chips = [chip for chip in texts.block_chips(block) if chip["s"] not in GHOSTS]
            kept = [{name: chip[name] for name in ("s", "t", "special") if name in chip} for chip in chips]
            blocks.append({"at": at, "n": n, "chips": kept})
        place = "first" if ends[arm] == first else "later"
        finish = text("race", place).format(seconds=ends[arm], gap=ends[arm] - first)
        ended = text("race", f"ended_{run.finish_reason or 'length'}")
        lanes.append({"arm": arm, "name": _arm(arm, head), "seconds": ends[arm], "n": n, "place": place, "finish": finish,
                      "ended": ended, "blocks": blocks})  # fmt: skip
    return lanes


def _texts(rounds: Sequence[Round], pair: Pair, head: dict[str, Any]) -> dict[str, Any]:
    """The verdict on the texts, of the repeat where it is worst."""
    worst = min(rounds, key=lambda one: SEVERITY.index(one.check.outcome))
    outcome, found = worst.check.outcome, worst.check.difference
    greedy = head["temperature"] < GREEDY_BELOW
    values = {
        "n": len(rounds),
        "tokens": len(worst.plain.token_ids),
        "same": sum(one.check.outcome == "same" for one in rounds),
        "rule": head["rule_label"],
        "why": text("race", "same_greedy" if greedy else "same_rule").format(rule=head["rule_label"]),
        "index": found.index + 1 if found else 0,
        "gap": f"{found.logit_gap:.2g}" if found and found.logit_gap is not None else "–",
        "dtype": head["dtype"],
        "device": head["device"],
        "border": "" if greedy else text("race", "border"),
    }
    kind = {"same": "good", "fault": "bad", "other_law": "bad"}.get(outcome, "missed")
    verdict = {
        "kind": kind,
        "title": text("race", outcome).format(**values),
        "note": text("race", f"{outcome}_note").format(**values),
    }
    if found is None:
        return verdict
    sides = (
        (_arm("plain", head), worst.plain, found.token_a, found.margin_a),
        (_arm("dflash", head), worst.dflash, found.token_b, found.margin_b),
    )
    rows = [
        {
            "name": name,
            "token": None if token is None else _word(pair, run, found.index),
            "margin": "–" if margin is None else f"{margin:+.2g}",
        }
        for name, run, token, margin in sides
    ]
    return verdict | {"difference": {"head": [text("race", name) for name in ("side", "token", "margin")], "rows": rows}}


def _word(pair: Pair, run: Generation, index: int) -> str:
    """The text of new token `index` of a run."""
    for block in run.blocks:
        if index < len(block.emitted):
            return render.TokenText(pair.tokenizer, run.prompt_ids).words(block)[str(block.emitted[index])]
        index -= len(block.emitted)
    raise AssertionError("the run has no such token")


def _speed(stats: RaceStats) -> dict[str, Any]:
    kind = {"faster": "good", "slower": "bad", "level": "missed"}[stats.result]
    values = {"speedup": stats.speedup, "low": stats.low, "high": stats.high, "n": len(stats.ratios), "coverage": stats.coverage}
    note = text("race", "speed_note" if len(stats.ratios) > 1 else "speed_note_one").format(**values)
    return {"kind": kind, "title": text("race", stats.result).format(**values), "note": note}


def _numbers(stats: RaceStats, n: int) -> list[dict[str, str]]:
    def spread(values: Sequence[float], digits: int) -> str:
        low, high = min(values), max(values)
        return (
            text("race", "spread").format(low=f"{low:.{digits}f}", high=f"{high:.{digits}f}", n=n)
            if n > 1
            else text("race", "no_spread")
        )

    def number(key: str, value: str, note: str) -> dict[str, str]:
        return {"name": text("race", key), "value": value, "note": note}

    run = stats.dflash
    interval = text("race", "interval").format(low=run.tau_low, high=run.tau_high) if run.tau_low is not None else ""
    return [
        number("speedup", f"{stats.speedup:.2f}×", spread(stats.ratios, 2)),
        number("plain_speed", f"{stats.plain.tokens_per_second:.1f}", spread([plain for plain, _ in stats.speeds], 1)),
        number("dflash_speed", f"{run.tokens_per_second:.1f}", spread([dflash for _, dflash in stats.speeds], 1)),
        number("tau", f"{run.tau:.2f}", text("race", "tau_note").format(n=run.n_blocks, interval=interval)),
        number("break_even", f"{stats.break_even:.2f}", text("race", "break_even_note")),
    ]


def _why(stats: RaceStats, head: dict[str, Any]) -> list[str]:
    """The speed-up from the measured costs, in sentences."""
    block, plain = stats.dflash, stats.plain
    values = {
        "B": head["block_size"],
        "block_ms": 1000 * sum(part_seconds(block)),
        "step_ms": 1000 * sum(part_seconds(plain)),
        "d": stats.draft_cost,
        "v": stats.verify_cost,
        "cost": stats.break_even,
        "tau": block.tau,
        "modelled": stats.modelled,
        "blocks": block.n_blocks,
        "steps": plain.n_blocks,
        "n": len(stats.ratios),
    }
    return [text("race", key).format(**values) for key in ("why_cost", "why_gain", f"why_{stats.result}")]


def _repeats_table(stats: RaceStats, rounds: Sequence[Round]) -> dict[str, Any]:
    rows = [
        [str(i), f"{plain:.2f}", f"{dflash:.2f}", f"{ratio:.3f}", str(len(one.plain.token_ids)), str(len(one.dflash.token_ids))]
        for i, ((plain, dflash), ratio, one) in enumerate(zip(stats.speeds, stats.ratios, rounds, strict=True), start=1)
    ]
    names = ("repeat", "plain_speed", "dflash_speed", "ratio", "plain_tokens", "dflash_tokens")
    return {"title": text("race", "all_repeats"), "head": [text("race", name) for name in names], "rows": rows}


def _cost_table(stats: RaceStats) -> dict[str, Any]:
    rows = []
    for name, run in (("a_step", stats.plain), ("a_block", stats.dflash)):
        parts = part_seconds(run)
        cells = [f"{1000 * seconds:.2f}" for seconds in (*parts, sum(parts))]
        rows.append([text("race", name), *cells, f"{run.tau:.2f}", str(run.n_blocks)])
    names = ("pass", "draft", "verify", "other", "whole", "gained", "passes")
    return {"title": text("race", "all_costs"), "head": [text("race", name) for name in names], "rows": rows}
