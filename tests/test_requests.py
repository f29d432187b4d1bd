"""What a visitor asks for: taken if it can be run, refused with the field's name and what would be right if not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dflash_core import RULES, SamplingParams
from dflash_ui.requests import MAX_BLOCK_SIZE, MAX_NEW_TOKENS, MAX_PROMPT, MAX_SEED, MAX_TEMPERATURE, MAX_TOP_K, RunRequest

GOOD: dict[str, Any] = {
    "prompt": "Why?",
    "temperature": 0.7,
    "block_size": 8,
    "max_new_tokens": 128,
    "seed": 3,
    "rule": "match",
    "pair": "toy",
    "top_p": 0.9,
    "top_k": 40,
    "draft_temperature": None,
    "chat": True,
}
HUGE = 10**400


def parse(**changes: Any) -> RunRequest:
    return RunRequest.parse(**{**GOOD, **changes}, pairs=("embedded", "toy"))


def test_a_good_request_is_taken_as_it_is() -> None:
    request = parse(draft_temperature=0.4)
    assert request == RunRequest(
        "Why?", "toy", SamplingParams(0.7, 0.9, 40, 0.4, "match", 3), block_size=8, max_new_tokens=128, chat=True
    )
    assert parse().params.draft_temperature is None  # locked to the temperature


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 0.0, 1e-9, 1, MAX_TEMPERATURE]),
        ("draft_temperature", [None, 0, 1.5, MAX_TEMPERATURE]),
        ("block_size", [1, MAX_BLOCK_SIZE]),
        ("max_new_tokens", [1, MAX_NEW_TOKENS]),
        ("seed", [0, MAX_SEED]),
        ("rule", list(RULES)),
        ("pair", ["embedded", "toy"]),
        ("top_p", [1e-3, 1, 1.0]),
        ("top_k", [0, MAX_TOP_K]),
        ("chat", [True, False]),
        ("prompt", ["x", " x ", "x" * MAX_PROMPT, "👩‍🏫 שלום \u202e <b> \x00 {{x}}"]),
    ],
)
def test_the_ends_of_every_range_are_taken(field: str, values: list[Any]) -> None:
    for value in values:
        request = parse(**{field: value})
        taken = getattr(request, field) if hasattr(request, field) else getattr(request.params, field)
        assert taken == value


@pytest.mark.parametrize("field", ["block_size", "max_new_tokens", "seed", "top_k"])
def test_a_browsers_whole_number_may_come_as_a_float(field: str) -> None:
    request = parse(**{field: 8.0})
    value = getattr(request, field) if hasattr(request, field) else getattr(request.params, field)
    assert value == 8 and type(value) is int


WRONG_TYPES: list[Any] = [None, "8", "", [], [8], {}, True, False, b"8", 8j]
WRONG_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, -1, HUGE, -HUGE, 1e300]


@pytest.mark.parametrize(
    ("field", "message", "outside"),
    [
        ("temperature", "temperature must be a number from 0 to 2, not ", [-0.01, 2.01]),
        ("draft_temperature", "draft temperature must be a number from 0 to 2, not ", [-0.01, 2.01]),
        ("top_p", "top[-_]p must be ", [0, -0.1, 1.01]),
        ("top_k", "top-k must be a whole number from 0 to 1,000, not ", [1001, 2.5]),
        ("seed", "seed must be a whole number from 0 to 2,147,483,647, not ", [2**31, 0.5]),
        ("block_size", "block size must be a whole number from 1 to 32, not ", [0, 33, 7.5]),
        ("max_new_tokens", "max new tokens must be a whole number from 1 to 4,096, not ", [0, 4097, 1.5]),
    ],
)
def test_numbers_out_of_range_or_of_a_wrong_type(field: str, message: str, outside: list[Any]) -> None:
    types = [value for value in WRONG_TYPES if value is not None or field != "draft_temperature"]
    for value in [*outside, *types, *WRONG_NUMBERS]:
        with pytest.raises(ValueError, match=f"^{message}"):
            parse(**{field: value})


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("prompt", [None, 3, [], ["x"], {}, True, b"x"], "the prompt must be text"),
        ("prompt", ["", " ", "\n\t ", "\u2003"], "the prompt is empty: type something, or choose a preset"),
        ("prompt", ["x" * (MAX_PROMPT + 1)], "has 20,001 characters; at most 20,000 are taken"),
        ("pair", [None, "", "other", 3, [], ["toy"], {}, True], "the model pair must be one of embedded, toy, not "),
        ("chat", [None, 0, 1, "true", [], {}], "chat must be true or false, not "),
        ("rule", [None, 3, [], ["match"], {}, True], "the rule must be a name, not "),
        ("rule", ["", "lucky", "MATCH", "match "], "rule must be one of match, "),
    ],
)
def test_everything_else_of_a_wrong_kind(field: str, values: list[Any], message: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=message):
            parse(**{field: value})


def test_half_a_surrogate_pair_becomes_something_that_can_be_encoded() -> None:
    prompt = parse(prompt="a\ud83cb\udf0d").prompt
    assert prompt == "a?b?"
    assert parse(prompt="a🌍b").prompt == "a🌍b"
