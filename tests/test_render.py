"""Chips: their text is the tokenizer's own, each token has its state and its numbers, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash_core import RULES, Block, JudgedToken, dflash_generate
from dflash_core.toy import EMOJI_HALVES, WORDS, ToyDraft, ToyTarget, toy_tokenizer
from dflash_ui.render import CONTEXT, TokenText, inside, prompt_chips, view

TOKENIZER = toy_tokenizer()
STOP, THE, CAT, DOG, DOT = (WORDS.index(word) for word in ("<stop>", "Ġthe", "Ġcat", "Ġdog", "."))
HALF, OTHER_HALF = (WORDS.index(half) for half in EMOJI_HALVES)
GHOSTS = ("rejected", "unjudged", "cut")
PROMPT = [THE, CAT]


def judged(n: int) -> JudgedToken:
    """Numbers that tell which token they belong to."""
    return JudgedToken(n + 0.1, n + 0.2, n + 0.3, n + 0.4, n + 0.5)


def block(
    drafted: list[int], n_accepted: int, next_token: int, *, emitted: int | None = None, index: int = 1, start: int = 2
) -> Block:
    """A block of which `emitted` tokens came out (None: all), with `judged(k)` at the k-th drafted token."""
    out = (*drafted[:n_accepted], next_token)[:emitted]
    kind: Literal["resampled", "bonus"] = "resampled" if n_accepted < len(drafted) else "bonus"
    numbers = tuple(judged(k) for k in range(1, min(n_accepted + 1, len(drafted)) + 1))
    finish: Literal["stop"] | None = "stop" if emitted is not None or out[-1] == STOP else None
    return Block(index, start, THE, tuple(drafted), n_accepted, next_token, kind, out, finish, numbers, 0.75, 0.1, 0.2, 0.3)


def shown(chips: Iterable[dict[str, Any]]) -> str:
    return "".join(chip["t"] for chip in chips if chip["s"] not in GHOSTS and not chip.get("special"))


def states(chips: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(chip["s"], chip["t"]) for chip in chips]


def in_context(tokenizer: Any, prompt: list[int], output: list[int]) -> str:
    """What the output adds to the prompt's text, without special tokens."""
    special = set(tokenizer.all_special_ids)
    kept = [token for token in output if token not in special]
    return str(tokenizer.decode([*prompt, *kept])[len(tokenizer.decode(prompt)) :])


# Real runs


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("block_size", [1, 2, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.8, 2.0])
def test_text_states_and_positions_of_real_runs(rule: str, block_size: int, temperature: float) -> None:
    target = ToyTarget(seed=1)
    # The emoji comes often, and sometimes its second half does not: it is split across blocks, verdicts and the end.
    target.logits[:, HALF] += 2.0
    target.logits[HALF] = target.logits[DOT]
    target.logits[HALF, OTHER_HALF] = 4.0
    target.logits[::3, STOP] = -2.0
    draft = ToyDraft(target, noise=0.05)
    for seed in range(8 if temperature else 2):
        generation = dflash_generate(
            draft, target, torch.tensor([PROMPT]), max_new_tokens=30 + seed, stop_token_ids=[STOP], temperature=temperature,
            block_size=block_size, rule=rule, seed=seed, on_block=lambda block: None,
        )  # fmt: skip
        text = TokenText(TOKENIZER, PROMPT)
        output = ""
        for each in generation.blocks:
            chips = text.block_chips(each)
            output += shown(chips)
            check_states(each, chips)
        assert output == in_context(TOKENIZER, PROMPT, list(generation.token_ids))


def check_states(block: Block, chips: list[dict[str, Any]]) -> None:
    """Every token of the block is in one chip of its state, at its place."""
    count: Counter[str] = Counter()
    for chip in chips:
        count[chip["s"]] += len(chip["ids"])
    assert count["accepted"] == block.accepted
    assert count["rejected"] == block.rejected
    assert count["unjudged"] + count["cut"] == block.not_judged
    assert count["cut"] == (block.not_judged if block.is_cut else 0)
    own = "plain" if not block.drafted else block.next_kind
    assert count[own] == (0 if block.is_cut else 1)
    assert set(count) <= {"accepted", "rejected", "unjudged", "cut", own}
    output = [(chip["pos"] + i, token) for chip in chips if chip["s"] not in GHOSTS for i, token in enumerate(chip["ids"])]
    assert output == [(block.start + k, token) for k, token in enumerate(block.emitted, start=1)]
    ghosts = [(chip["k"] + i, token) for chip in chips if chip["s"] in GHOSTS for i, token in enumerate(chip["ids"])]
    assert ghosts == list(enumerate(block.drafted, start=1))[len(block.drafted) - len(ghosts) :]
    assert all(chip["pos"] == block.start + chip["k"] for chip in chips)
    for chip in chips:
        if chip["s"] in ("accepted", "rejected", "cut") and len(chip["ids"]) == 1 and chip["k"] <= len(block.judged):
            token = block.judged[chip["k"] - 1]
            expected = (token.target_prob, token.draft_prob, token.accept_prob, token.target_entropy, token.draft_entropy)
            assert tuple(chip[name] for name in ("p", "q", "a", "hp", "hq")) == expected


# One block at a time


def test_order_and_numbers_of_a_block_with_a_rejection() -> None:
    chips = TokenText(TOKENIZER, PROMPT).block_chips(block([DOG, DOT, CAT, CAT], 1, THE))
    assert states(chips) == [
        ("accepted", " dog"), ("rejected", "."), ("resampled", " the"), ("unjudged", " cat"), ("unjudged", " cat")
    ]  # fmt: skip
    accepted, rejected, resampled, *unjudged = chips
    assert accepted == {
        "s": "accepted", "t": " dog", "ids": [DOG], "pos": 3, "k": 1, "p": 1.1, "q": 1.2, "a": 1.3, "hp": 1.4, "hq": 1.5
    }  # fmt: skip
    assert rejected == {
        "s": "rejected", "t": ".", "ids": [DOT], "pos": 4, "k": 2, "p": 2.1, "q": 2.2, "a": 2.3, "hp": 2.4, "hq": 2.5
    }  # fmt: skip
    assert resampled == {
        "s": "resampled", "t": " the", "ids": [THE], "pos": 4, "k": 2, "p": 0.75, "hp": 2.4, "hq": 2.5, "r": "."
    }  # fmt: skip
    assert unjudged[0] == {"s": "unjudged", "t": " cat", "ids": [CAT], "pos": 5, "k": 3}
    assert unjudged[1]["pos"] == 6 and unjudged[1]["k"] == 4


def test_a_full_block_ends_with_its_bonus() -> None:
    chips = TokenText(TOKENIZER, PROMPT).block_chips(block([DOG, DOT], 2, THE))
    assert states(chips) == [("accepted", " dog"), ("accepted", "."), ("bonus", " the")]
    assert chips[2] == {"s": "bonus", "t": " the", "ids": [THE], "pos": 5, "k": 3, "p": 0.75}


def test_a_block_without_drafts_is_plain() -> None:
    assert TokenText(TOKENIZER, PROMPT).block_chips(block([], 0, DOG)) == [
        {"s": "plain", "t": " dog", "ids": [DOG], "pos": 3, "k": 1, "p": 0.75}
    ]


def test_without_recorded_numbers_chips_have_none() -> None:
    bare = Block(1, 2, THE, (DOG, CAT), 1, DOT, "resampled", (DOG, DOT), None)
    for chip in TokenText(TOKENIZER, PROMPT).block_chips(bare):
        assert set(chip) <= {"s", "t", "ids", "pos", "k", "r"}


def test_a_stop_token_inside_a_block_shows_what_it_cut_off() -> None:
    """Four accepted, the second is the stop: it is a pill, and what follows is shown as cut, with its numbers."""
    chips = TokenText(TOKENIZER, PROMPT).block_chips(block([DOG, STOP, CAT, DOT, THE], 4, DOG, emitted=2))
    assert states(chips) == [
        ("accepted", " dog"), ("accepted", "<stop>"), ("cut", " cat"), ("cut", "."), ("cut", " the")
    ]  # fmt: skip
    assert [chip.get("special") for chip in chips] == [None, True, None, None, None]
    assert [chip.get("p") for chip in chips] == [1.1, 2.1, 3.1, 4.1, 5.1]
    assert "special" not in chips[0] and chips[1]["ids"] == [STOP]


def test_what_was_never_judged_and_is_cut_has_no_numbers() -> None:
    chips = TokenText(TOKENIZER, PROMPT).block_chips(block([STOP, CAT, DOT, THE], 2, DOG, emitted=1))
    assert [chip["s"] for chip in chips] == ["accepted", "cut", "cut", "cut"]
    assert [chip.get("p") for chip in chips] == [1.1, 2.1, 3.1, None]


def test_a_stop_token_as_the_targets_own_keeps_the_ghosts_apart() -> None:
    chips = TokenText(TOKENIZER, PROMPT).block_chips(block([DOG, CAT, DOT], 1, STOP))
    assert states(chips) == [("accepted", " dog"), ("rejected", " cat"), ("resampled", "<stop>"), ("unjudged", ".")]
    assert chips[2]["special"] is True and chips[2]["r"] == " cat"
    rejected_stop = TokenText(TOKENIZER, PROMPT).block_chips(block([STOP, CAT], 0, DOG))
    assert states(rejected_stop) == [("rejected", "<stop>"), ("resampled", " dog"), ("unjudged", " cat")]
    assert rejected_stop[0]["special"] is True and rejected_stop[1]["r"] == "<stop>"


# Characters in several tokens


def test_a_character_in_two_accepted_tokens_is_one_chip_without_probabilities() -> None:
    chips = TokenText(TOKENIZER, PROMPT).block_chips(block([DOG, HALF, OTHER_HALF, DOT], 4, THE))
    assert states(chips) == [("accepted", " dog"), ("accepted", " 🌍"), ("accepted", "."), ("bonus", " the")]
    assert chips[1] == {"s": "accepted", "t": " 🌍", "ids": [HALF, OTHER_HALF], "pos": 4, "k": 2}
    assert chips[2]["p"] == 4.1  # the numbers of the next chip did not slip


def test_a_character_whose_second_half_is_resampled() -> None:
    chips = TokenText(TOKENIZER, PROMPT).block_chips(block([HALF, DOG, CAT], 1, OTHER_HALF))
    accepted, rejected, resampled, unjudged = chips
    assert (accepted["s"], accepted["ids"]) == ("accepted", [HALF])
    assert (rejected["s"], rejected["ids"]) == ("rejected", [DOG])
    assert (resampled["s"], resampled["ids"], resampled["p"]) == ("resampled", [OTHER_HALF], 0.75)
    assert unjudged["t"] == " cat"
    assert shown(chips) == " 🌍"


def test_a_character_split_across_blocks() -> None:
    text = TokenText(TOKENIZER, PROMPT)
    first = text.block_chips(block([DOG], 1, HALF))
    second = text.block_chips(block([OTHER_HALF, CAT], 1, DOT, index=2, start=4))
    assert states(first) == [("accepted", " dog"), ("bonus", " ")]  # what is sure is shown, half a character is not
    assert states(second) == [("accepted", "🌍"), ("rejected", " cat"), ("resampled", ".")]


def test_a_character_whose_halves_are_rejected_and_unjudged_keeps_both_states() -> None:
    chips = TokenText(TOKENIZER, PROMPT).block_chips(block([HALF, OTHER_HALF, CAT], 0, DOG))
    assert [(chip["s"], chip["ids"]) for chip in chips] == [
        ("rejected", [HALF]), ("resampled", [DOG]), ("unjudged", [OTHER_HALF]), ("unjudged", [CAT])
    ]  # fmt: skip
    assert chips[0]["p"] == 1.1 and chips[1]["r"] == chips[0]["t"] == " �"
    assert shown(chips) == " dog"


def test_ghosts_leave_the_output_alone() -> None:
    """A half among the ghosts must not swallow or complete anything of the output."""
    text = TokenText(TOKENIZER, PROMPT)
    blocks = [
        block([HALF, HALF], 0, DOG),
        block([HALF, STOP, OTHER_HALF], 1, OTHER_HALF, index=2, start=3),
        block([CAT, HALF], 0, CAT, index=3, start=5),
    ]
    assert "".join(shown(text.block_chips(each)) for each in blocks) == " dog 🌍 cat"


def test_an_output_that_ends_inside_a_character_shows_that() -> None:
    for last in (block([DOG, HALF, OTHER_HALF], 3, CAT, emitted=2), block([DOG], 1, HALF, emitted=2)):
        chips = TokenText(TOKENIZER, PROMPT).block_chips(last)
        assert shown(chips) == in_context(TOKENIZER, PROMPT, [DOG, HALF]) == " dog �"


def test_an_unfinished_character_before_a_stop_token_is_not_lost() -> None:
    text = TokenText(TOKENIZER, PROMPT)
    first = text.block_chips(block([DOG], 1, HALF))
    last = text.block_chips(block([STOP, CAT], 2, DOT, emitted=1, index=2, start=4))
    assert shown(first) + shown(last) == " dog �"
    assert [(chip["s"], chip["ids"]) for chip in last if chip.get("special")] == [("accepted", [STOP])]
    inside = TokenText(TOKENIZER, PROMPT).block_chips(block([HALF, STOP], 2, DOT, emitted=2))
    assert shown(inside) == " �"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose tokens are single bytes, words, and pieces that end and start inside characters."""
    alphabet = dict(zip(range(256), bytes_to_unicode(), strict=True))
    pieces = [bytes([b]) for b in range(256)]
    pieces += [
        b" a",
        b"foo\xf0\x9f",
        b"\x8d\x8d",
        b"\xe0\xa4",
        b"\x95\xe0",
        b"\xa4\x95\xe0",
        "\ufffd".encode(),
        "क".encode(),
        b"\n",
    ]
    words = ["".join(alphabet[b] for b in piece) for piece in pieces]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    vocabulary["<end>"] = len(vocabulary)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", clean_up_tokenization_spaces=False)


def bytes_to_unicode() -> list[str]:
    """The printable stand-ins of GPT-2's byte-level alphabet, in the order of the bytes."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(b if b in printable else next(spare)) for b in range(256)]


def plain_blocks(tokens: list[int], start: int) -> list[Block]:
    last = len(tokens) - 1
    return [Block(i, start + i, 0, (), 0, t, "bonus", (t,), "length" if i == last else None) for i, t in enumerate(tokens)]


@pytest.mark.parametrize(
    "data",
    [
        "नमस्ते दुनिया 👩‍🏫 naïve 🇫🇷 你好".encode(),
        b"\xf0\xf0\xf0\xf0\xf0\x9f\x8d\x8d!",  # garbage, then a character
        b"\xf0\x9f\x8d" * 9 + b"a",
        b"\x8d" * 40,
        b"\xf0\x9f\x8d\xf0\x9f\x8d\x8d",
        "\ufffd\ufffd\ufffd\ufffd\ufffd🌍\ufffd".encode(),
        b"\xff\xfe\xc3",
    ],
    ids=str,
)
def test_byte_by_byte_the_text_is_still_exact(data: bytes) -> None:
    tokenizer = byte_tokenizer()
    tokens = list(data)
    text = TokenText(tokenizer, [65])
    output = "".join(shown(text.block_chips(each)) for each in plain_blocks(tokens, 0))
    assert output == tokenizer.decode([65, *tokens])[1:] == data.decode("utf-8", "replace")


def test_tokens_that_end_one_character_and_begin_the_next() -> None:
    """As in the words of many scripts: no token boundary is a character's, for as long as the word lasts."""
    tokenizer = byte_tokenizer()
    begin, end_begin, all_but = (tokenizer.convert_tokens_to_ids(word) for word in ("à¤", "ķà", "¤ķà"))
    tokens = [begin, end_begin, *[all_but] * 20, *b"\xa4\x95"]
    chips = TokenText(tokenizer, [65]).block_chips(block(tokens, len(tokens), 66, start=0))
    assert shown(chips) == "क" * 22 + "B"
    assert max(len(chip["ids"]) for chip in chips) <= 4
    assert [token for chip in chips for token in chip["ids"]] == [*tokens, 66]


@pytest.mark.parametrize("seed", range(40))
def test_random_bytes_in_random_blocks_are_exact(seed: int) -> None:
    rng = random.Random(seed)
    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id
    tempting = [0xF0, 0x9F, 0x8D, 0xC3, 0xA9, 65, *range(256, end), end]
    text = TokenText(tokenizer, [65])
    output: list[int] = []
    position = 0
    pieces = []
    for index in range(30):
        drafted = rng.choices(tempting, k=rng.randrange(6))
        n_accepted = rng.randint(0, len(drafted))
        n_emitted = rng.randint(1, n_accepted + 1) if index == 29 else n_accepted + 1
        each = block(drafted, n_accepted, rng.choice(tempting), emitted=n_emitted, index=index, start=position)
        if index < 29:
            each = replace(each, finish_reason=None)
        chips = text.block_chips(each)
        check_states(each, chips)
        pieces += [chip for chip in chips if chip["s"] not in GHOSTS]
        output += each.emitted
        position += len(each.emitted)
    assert "".join(chip["t"] for chip in pieces) == tokenizer.decode([65, *output])[1:]


# The cost of a block


def test_the_work_for_a_block_does_not_grow() -> None:
    longest: list[int] = []

    class Watched(PreTrainedTokenizerFast):
        def decode(self, token_ids: Any, *args: Any, **options: Any) -> Any:
            longest.append(len(token_ids))
            return super().decode(token_ids, *args, **options)

    tokenizer = Watched(tokenizer_object=toy_tokenizer().backend_tokenizer, unk_token="<unk>", eos_token="<stop>")
    text = TokenText(tokenizer, PROMPT * 500)
    calls = []
    for index in range(300):
        before = len(longest)
        text.block_chips(block([DOG, HALF, OTHER_HALF, CAT], 2, DOT, index=index, start=999 + 3 * index))
        calls.append(len(longest) - before)
    assert max(longest) <= CONTEXT + 1
    assert max(calls[1:]) == min(calls[1:]) <= 2 * 5 + 2


# The prompt, and the view


def test_prompt_chips_keep_special_tokens_apart() -> None:
    chips = prompt_chips(TOKENIZER, [STOP, THE, CAT, HALF, OTHER_HALF, STOP, STOP, DOG])
    assert [(chip["t"], chip["pos"], chip.get("special")) for chip in chips] == [
        ("<stop>", 0, True), (" the cat 🌍", 1, None), ("<stop>", 5, True), ("<stop>", 6, True), (" dog", 7, None)
    ]  # fmt: skip
    assert {chip["s"] for chip in chips} == {"prompt"}
    assert prompt_chips(TOKENIZER, [THE, DOT])[0]["t"] == TOKENIZER.decode([THE, DOT])


def test_the_first_token_continues_the_prompts_text() -> None:
    """A space that belongs to the first word of the output is there, and what the prompt ends with is not repeated."""
    for prompt in ([THE], [THE] * 40, [STOP]):
        chips = TokenText(TOKENIZER, prompt).block_chips(block([], 0, DOG, start=len(prompt) - 1))
        assert shown(chips) == " dog"


def test_view_of_a_block() -> None:
    chips = [{"s": "plain", "t": "x"}]
    cut = block([DOG, STOP, CAT], 3, THE, emitted=2, index=4, start=30)
    found = view(cut, chips, 2.5, words={"7": " x"}, uniforms=None, tokens=12, clock=0.5)
    told = found.pop("judged")
    assert found == {
        "i": 4, "start": 30, "n_drafted": 3, "tau": 2, "mean": 2.5, "cut": True, "finish": "stop", "chips": chips,
        "anchor": cut.anchor, "drafted": [DOG, STOP, CAT], "kept": 3, "emitted": [DOG, STOP], "next": "bonus",
        "p_next": cut.next_target_prob, "words": {"7": " x"}, "tokens": 12, "clock": 0.5,
        "sec": [0.1, 0.2, 0.3],
    }  # fmt: skip
    assert [entry["p"] for entry in told] == [entry.target_prob for entry in cut.judged]
    assert view(block([], 0, DOG, index=0), chips, None, words={}, uniforms=None, tokens=1, clock=0.0)["mean"] is None


def test_words_are_told_once_and_as_they_stand_in_a_text() -> None:
    text = TokenText(TOKENIZER, [THE])
    first, second = block([DOG, CAT], 1, THE), block([DOG, DOT], 0, CAT)
    found = text.words(first)
    assert found == {str(token): TOKENIZER.decode([token]) for token in {DOG, CAT, THE, first.anchor}}
    assert set(text.words(second)) == {str(DOT)}


def test_the_numbers_inside_a_block_are_those_recorded() -> None:
    numbers = JudgedToken(0.25, 0.5, 0.5, 1.0, 2.0, ((DOG, 0.6666666666, 0.25), (CAT, 1e-9, 0.123456789)))
    one = replace(block([DOG], 0, CAT), judged=(numbers,))
    assert inside(one, [0.75]) == [
        {"p": 0.25, "q": 0.5, "a": 0.5, "u": 0.75, "top": [[DOG, 0.666667, 0.25], [CAT, 1e-9, 0.123457]]}
    ]
    assert inside(one, None)[0]["u"] is None
