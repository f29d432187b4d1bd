"""Are two texts the same token for token, and if not, is rounding the reason? The exact check of losslessness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .blocks import Generation, require
from .sampling import GREEDY_BELOW, Randomness, probabilities
from .target import Target, as_target
from .verify import RULES, judge_by_match


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two texts that should be equal part.

    index: of the first new token that differs; position: its absolute position.
    token_a, token_b: the tokens there; None where that text has ended.
    margin_a, margin_b: logit of token_a minus logit of token_b, in the logits that either run saw; None if a text ended. At
    temperature 0 rounding shows as two tiny margins of opposite sign; above it a draw can fall on a border at any margin.
    logit_gap: the largest difference between these logits, over the vocabulary.
    rounding: each run drew what its logits say, and the logits differ by no more than rounding. Otherwise it is a fault.
    """

    index: int
    position: int
    token_a: int | None
    token_b: int | None
    margin_a: float | None = None
    margin_b: float | None = None
    logit_gap: float | None = None
    rounding: bool = False


def same_text(a: Generation, b: Generation) -> bool:
    """Whether two runs emitted the same tokens. Raises ValueError if they need not: see `first_difference`."""
    for name, ours, theirs in (
        ("prompt", a.prompt_ids, b.prompt_ids),
        *((name, getattr(a.params, name), getattr(b.params, name)) for name in ("temperature", "top_p", "top_k", "seed")),
    ):
        require(ours == theirs, f"the two runs differ in their {name}: only runs alike in that have the same text")
    if a.params.temperature >= GREEDY_BELOW:
        rules = RULES[a.params.rule], RULES[b.params.rule]
        require(
            rules[0].same_text and rules[0].judge is rules[1].judge,
            f"the rules {rules[0].key} and {rules[1].key} draw in different ways: above temperature 0 their texts may differ",
        )
    return a.token_ids == b.token_ids


def first_difference(a: Generation, b: Generation, target: Any) -> Difference | None:
    """Where two runs of one prompt part, and whether rounding explains it; None if the texts are equal.

    The runs may differ in block size, draft, and in the rule among those that emit the target's own draw in one way (any rule
    at temperature 0). The target repeats the passes of both runs up to that place, so its logits are those the runs saw.
    """
    if same_text(a, b):
        return None
    tokens_a, tokens_b = a.token_ids, b.token_ids
    shared = min(len(tokens_a), len(tokens_b))
    index = next((i for i in range(shared) if tokens_a[i] != tokens_b[i]), shared)
    position = len(a.prompt_ids) + index
    if index == shared:
        ends = [tokens[index] if index < len(tokens) else None for tokens in (tokens_a, tokens_b)]
        return Difference(index, position, ends[0], ends[1])
    target = as_target(target)
    token_a, token_b = tokens_a[index], tokens_b[index]
    logits_a, logits_b = (_replayed_logits(run, target, index) for run in (a, b))
    explained = all(
        _own_draw(run, logits, position) == token for run, logits, token in ((a, logits_a, token_a), (b, logits_b, token_b))
    )
    # −inf in both is no difference.
    gap = float((logits_a.double() - logits_b.double()).nan_to_num(nan=0.0).abs().max())
    scale = float(logits_a[logits_a.isfinite()].double().abs().max())
    # The square root: rounding adds up through the layers, in ways that depend on the device.
    small = gap <= torch.finfo(logits_a.dtype).eps ** 0.5 * scale
    margin_a, margin_b = (float(logits[token_a]) - float(logits[token_b]) for logits in (logits_a, logits_b))
    return Difference(index, position, token_a, token_b, margin_a, margin_b, gap, explained and small)


@torch.inference_mode()
def _replayed_logits(run: Generation, target: Target, index: int) -> Tensor:
    """The logits (V) from which the run drew new token `index`."""
    cache = target.new_cache()
    for block in run.blocks:
        ids = [block.anchor, *block.drafted] if block.index else list(run.prompt_ids)
        logits, _ = target.forward(torch.tensor([ids], device=target.device), cache, taps=[], last_only=not block.index)
        if index < len(block.emitted):
            return logits[0, index]
        index -= len(block.emitted)
        target.roll_back(cache, block.start + len(block.emitted))
    raise AssertionError("the run has no such token")


def _own_draw(run: Generation, logits: Tensor, position: int) -> int:
    """The target's own draw at a position, as the loop makes it under the run's rule."""
    params, rule = run.params, RULES[run.params.rule]
    probs = probabilities(logits[None, None], temperature=params.temperature, top_p=params.top_p, top_k=params.top_k)
    draws = Randomness(params.seed, logits.device).draws(position - 1, 0)
    judge = rule.judge if rule.same_text else judge_by_match
    nothing = torch.empty((1, 0), dtype=torch.long, device=logits.device)
    return int(judge(probs, probs[:, :0], nothing, draws).next_token)
