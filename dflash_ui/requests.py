"""What a visitor asks for, checked. Nothing that comes from a browser or a script is trusted to have been checked there."""

from __future__ import annotations

from dataclasses import dataclass
from reprlib import repr as shortened  # a wrong value can be of any size

from dflash_core.blocks import SamplingParams, require
from dflash_core.verify import RULES

MAX_PROMPT = 20_000  # characters
MAX_NEW_TOKENS = 4096
MAX_BLOCK_SIZE = 32
MAX_TEMPERATURE = 2.0
MAX_TOP_K = 1000
MAX_SEED = 2**31 - 1  # exact in a browser too


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run as asked for. Raises ValueError, saying what would be right, for anything out of range or of a wrong type."""

    prompt: str
    pair: str
    params: SamplingParams
    block_size: int
    max_new_tokens: int
    chat: bool

    @classmethod
    def parse(
        cls,
        prompt: object,
        temperature: object,
        block_size: object,
        max_new_tokens: object,
        seed: object,
        rule: object,
        pair: object,
        top_p: object,
        top_k: object,
        draft_temperature: object,
        chat: object,
        *,
        pairs: tuple[str, ...],
    ) -> RunRequest:
        """Values as they arrive; `pairs` are those on offer. draft_temperature: None locks it to the temperature."""
        require(isinstance(prompt, str), f"the prompt must be text, not {shortened(prompt)}")
        assert isinstance(prompt, str)
        require(bool(prompt.strip()), "the prompt is empty: type something, or choose a preset")
        require(len(prompt) <= MAX_PROMPT, f"the prompt has {len(prompt):,} characters; at most {MAX_PROMPT:,} are taken")
        # Half of a surrogate pair can be pasted into a browser; no tokenizer takes it.
        prompt = prompt.encode("utf-8", "replace").decode("utf-8")
        require(
            isinstance(pair, str) and pair in pairs, f"the model pair must be one of {', '.join(pairs)}, not {shortened(pair)}"
        )
        require(isinstance(chat, bool), f"chat must be true or false, not {shortened(chat)}")
        require(isinstance(rule, str), f"the rule must be a name, not {shortened(rule)}")
        require(rule in RULES, f"the rule must be one of {', '.join(RULES)}, not {shortened(rule)}")
        if draft_temperature is not None:
            draft_temperature = _number("draft temperature", draft_temperature, 0.0, MAX_TEMPERATURE)
        params = SamplingParams(
            temperature=_number("temperature", temperature, 0.0, MAX_TEMPERATURE),
            top_p=_number("top-p", top_p, 0.0, 1.0),
            top_k=_whole("top-k", top_k, 0, MAX_TOP_K),
            draft_temperature=draft_temperature,
            rule=str(rule),
            seed=_whole("seed", seed, 0, MAX_SEED),
        )
        return cls(
            prompt=prompt,
            pair=str(pair),
            params=params,
            block_size=_whole("block size", block_size, 1, MAX_BLOCK_SIZE),
            max_new_tokens=_whole("max new tokens", max_new_tokens, 1, MAX_NEW_TOKENS),
            chat=bool(chat),
        )


def _number(name: str, value: object, low: float, high: float) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, not {shortened(value)}")
    return float(value)


def _whole(name: str, value: object, low: int, high: int) -> int:
    # A browser sends 8 as 8 or 8.0.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high or value != int(value):
        raise ValueError(f"{name} must be a whole number from {low:,} to {high:,}, not {shortened(value)}")
    return int(value)
