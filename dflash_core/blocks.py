"""The values of a run: how it samples, what one draft-verify cycle did, and the whole generation. Plain Python throughout."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, TypeGuard

NextKind = Literal["resampled", "bonus"]
FinishReason = Literal["stop", "length"]


def require(condition: bool, message: str) -> None:
    """Raises ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


def is_number(value: object) -> TypeGuard[float]:
    """A real, finite number that a float can hold; a bool is not one."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def is_within(value: object, low: float, high: float) -> TypeGuard[float]:
    """A number from low to high; a bool is not one, nor is NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and judged.

    temperature: of the target, and of the draft unless `draft_temperature` is set; below 1e-5 everything is greedy.
    top_p, top_k: applied to target and draft alike; 1.0 and 0 switch them off.
    rule: a key of `verify.RULES`.
    seed: of the position-keyed randomness, 0 … 2⁶³ − 1.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    draft_temperature: float | None = None
    rule: str = "match"
    seed: int = 0

    def __post_init__(self) -> None:
        from .verify import RULES

        for name in ("temperature", "draft_temperature"):
            value = getattr(self, name)
            if name == "draft_temperature" and value is None:
                continue
            require(is_number(value) and value >= 0, f"{name} must be a number of 0 or more, not {value!r}")
        require(is_number(self.top_p) and 0 < self.top_p <= 1, f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        require(
            is_whole(self.top_k) and self.top_k >= 0,
            f"top_k must be a whole number of 0 (off) or more, not {self.top_k!r}",
        )
        require(
            is_whole(self.seed) and 0 <= self.seed < 2**63,
            f"seed must be a whole number from 0 to 2⁶³ − 1, not {self.seed!r}",
        )
        require(self.rule in RULES, f"rule must be one of {', '.join(RULES)}, not {self.rule!r}")

    @property
    def effective_draft_temperature(self) -> float:
        return self.temperature if self.draft_temperature is None else self.draft_temperature


@dataclass(frozen=True, slots=True)
class JudgedToken:
    """One drafted token that the target judged, with the numbers of that position (after temperature, top-p and top-k).

    target_prob, draft_prob: p(x) and q(x) of the drafted token x.
    accept_prob: the rule's probability of accepting x, given x (of `block`: given the whole drafted block).
    target_entropy, draft_entropy: of p and q, in nats.
    table: the most likely tokens as (token, p, q), the largest max(p, q) first; what is missing to 1 is "the rest".
    """

    target_prob: float
    draft_prob: float
    accept_prob: float
    target_entropy: float
    draft_entropy: float
    table: tuple[tuple[int, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """One draft-verify cycle. Block 0 is the prefill: nothing drafted, one token.

    index: 0, 1, 2, …
    start: absolute position of the anchor, the last token known before the block.
    drafted: the γ = B − 1 drafted ids, at positions start + 1 … start + γ; empty in plain decoding.
    n_accepted: how many of them the rule kept (its verdict, before any cut).
    next_token, next_kind: the target's own token after them: resampled after a rejection, bonus after a full block.
    emitted: what the output grew by: accepted ids and next_token, cut at a stop token or at the cap.
    finish_reason: why the generation ended with this block, or None.
    judged: one entry for each token the rule looked at: n_accepted, plus one if it rejected. Empty if not recorded.
    next_target_prob: p(next_token). None if not recorded.
    draft_seconds, verify_seconds, other_seconds: wall time inside the loop; never includes the consumer's time.
    """

    index: int
    start: int
    anchor: int
    drafted: tuple[int, ...]
    n_accepted: int
    next_token: int
    next_kind: NextKind
    emitted: tuple[int, ...]
    finish_reason: FinishReason | None
    judged: tuple[JudgedToken, ...] = ()
    next_target_prob: float | None = None
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0

    @property
    def is_cut(self) -> bool:
        """A stop token or the cap ended the output before the block's own end."""
        return len(self.emitted) <= self.n_accepted

    @property
    def accepted(self) -> int:
        """Drafted tokens that became output."""
        return min(self.n_accepted, len(self.emitted))

    @property
    def rejected(self) -> int:
        """1 if a drafted token was rejected within the output, else 0."""
        return int(self.next_kind == "resampled" and not self.is_cut)

    @property
    def not_judged(self) -> int:
        """Drafted tokens that count in no statistic: after the rejection, or after the cut."""
        return len(self.drafted) - self.accepted - self.rejected

    @property
    def acceptance_length(self) -> int:
        """τ of this block: tokens the output grew by in this target pass."""
        return len(self.emitted)

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.other_seconds

    def to_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished (or stopped) generation: the prompt, how it was decoded, and its blocks in order."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    block_size: int
    blocks: tuple[Block, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The new tokens, without the prompt."""
        return tuple(token for block in self.blocks for token in block.emitted)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.blocks[-1].finish_reason if self.blocks else None


def is_whole(value: object) -> TypeGuard[int]:
    """An int; a bool is not one."""
    return isinstance(value, int) and not isinstance(value, bool)
