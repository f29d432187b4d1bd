"""From blocks to what the page shows of them: chips of text, each with its state and its numbers. Pure: no gradio import.

Tokens are decoded in the context of what came before them, never alone, so that a character split over several tokens
becomes one chip. Chips are plain JSON values; the page turns their text into text nodes and never into markup.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dflash_core.blocks import Block, JudgedToken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chip = dict[str, Any]
TEXT_STATES = ("plain", "accepted", "resampled", "bonus")  # of the chips that are output; all others are ghosts

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
MAX_LABEL = 18  # characters of a token that is named
LONGEST_CHARACTER = 4  # bytes in UTF-8, so at most as many tokens
# Tokens decoded along as context: enough for a tokenizer that treats a leading space specially, and for the tokens of all
# characters that may still be incomplete.
CONTEXT = 3 * LONGEST_CHARACTER


class TokenText:
    """Turns the blocks of one run, in order, into chips. The work for a block does not grow with the text before it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._context = list(prompt_ids[-CONTEXT:])
        self._known: set[int] = set()
        self._letter: list[int] = tokenizer("a", add_special_tokens=False).input_ids
        self._letter_length = len(_read(tokenizer, self._letter))
        self._open = 0  # characters at the context's end without a chip yet: the next tokens may complete them

    def words(self, block: Block) -> dict[str, str]:
        """Texts of the single tokens that the block's numbers are about and that no block before had, by id.

        A token of a vocabulary, not a stretch of text: read after a letter, and without those that share a character with it.
        """
        tables = (token for judged in block.judged for token, _, _ in judged.table)
        fresh = {*block.drafted, *block.emitted, block.anchor, *tables} - self._known
        self._known |= fresh
        return {str(token): _read(self._tokenizer, [*self._letter, token])[self._letter_length :] for token in sorted(fresh)}

    def block_chips(self, block: Block) -> list[Chip]:
        """The chips of a block in the order of display, ghosts included."""
        chips = self._emitted([_emitted_chip(block, k) for k in range(1, block.accepted + 1)])
        ghosts = self._ghosts(block)
        if not block.is_cut:
            last = _emitted_chip(block, len(block.emitted))
            rejected, ghosts = ghosts[: block.rejected], ghosts[block.rejected :]
            if rejected:
                last["r"] = rejected[0]["t"]
            chips += rejected + self._emitted([last])
        if block.finish_reason:
            # An output that ends inside a character: nothing will complete it any more.
            chips[-1]["t"] += INCOMPLETE * self._open
        return chips + ghosts

    def _emitted(self, tokens: list[Chip]) -> list[Chip]:
        # A character may go on in the next block: until then its first tokens are on show without text.
        chips, self._context, self._open = self._decode(tokens, self._context, self._open)
        return chips

    def _ghosts(self, block: Block) -> list[Chip]:
        first = len(block.emitted) if block.is_cut else block.n_accepted
        tokens = [_ghost_chip(block, k) for k in range(first + 1, len(block.drafted) + 1)]
        ghosts: list[Chip] = []
        context, n_open = self._context, self._open
        for part in (tokens[: block.rejected], tokens[block.rejected :]):  # one chip never holds tokens of two states
            chips, context, n_open = self._decode(part, context, n_open)
            if chips:
                chips[-1]["t"] += INCOMPLETE * n_open
            ghosts += [chip for chip in chips if chip["ids"]]
        return ghosts

    def _decode(self, tokens: Iterable[Chip], context: list[int], n_open: int) -> tuple[list[Chip], list[int], int]:
        """Gives each of `tokens` its text, merging those that share a character. Returns also the new context and n_open."""
        chips: list[Chip] = []
        group: list[Chip] = []
        text = ""
        for token in tokens:
            (token_id,) = token["ids"]
            if token_id in self._special:
                if n_open:  # a character that nothing completes
                    chips.append(_merged(group or [_without_token(token)], text + INCOMPLETE * n_open))
                chips.append({**token, "t": _read(self._tokenizer, [token_id]), "special": True})
                context, n_open, group, text = [*context, token_id][-CONTEXT:], 0, [], ""
                continue
            shown = len(_read(self._tokenizer, context)) - n_open
            added = _read(self._tokenizer, [*context, token_id])[shown:]
            n_open = min(len(added) - len(added.rstrip(INCOMPLETE)), LONGEST_CHARACTER - 1)
            context = [*context, token_id][-CONTEXT:]
            group.append(token)
            text += added[: len(added) - n_open]
            if not n_open or len(group) == LONGEST_CHARACTER:
                chips.append(_merged(group, text))
                group, text = [], ""
        if group:
            chips.append(_merged(group, text))
        return chips, context, n_open


def tokens_shown(block: Block) -> list[Chip]:
    """The block's tokens in the order of display, ghosts included: a chip for each, without its text."""
    accepted = [_emitted_chip(block, k) for k in range(1, block.accepted + 1)]
    first = len(block.emitted) if block.is_cut else block.n_accepted
    ghosts = [_ghost_chip(block, k) for k in range(first + 1, len(block.drafted) + 1)]
    if block.is_cut:
        return accepted + ghosts
    last = _emitted_chip(block, len(block.emitted))
    return [*accepted, *ghosts[: block.rejected], last, *ghosts[block.rejected :]]


def prompt_chips(tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int]) -> list[Chip]:
    """The prompt: one chip for each stretch of text, one for each special token."""
    special = set(tokenizer.all_special_ids)
    chips: list[Chip] = []
    for position, token_id in enumerate(prompt_ids):
        if token_id in special or not chips or "special" in chips[-1]:
            chips.append({"s": "prompt", "ids": [], "pos": position} | ({"special": True} if token_id in special else {}))
        chips[-1]["ids"].append(token_id)
    return [chip | {"t": _read(tokenizer, chip["ids"]), "ids": []} for chip in chips]


def _read(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def visible(token: str) -> str:
    """A token's text with white space and control characters made visible, shortened: to be read, not copied."""
    glyphs = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "→"}
    shown = "".join(
        glyphs.get(c) or (f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c)
        for c in token[: MAX_LABEL + 1]
    )
    return shown if len(token) <= MAX_LABEL else f"{shown[:MAX_LABEL]}…"


def _emitted_chip(block: Block, k: int) -> Chip:
    """The k-th token that the block added to the output, without its text."""
    own = block.next_kind if block.drafted else "plain"
    state = "accepted" if k <= block.n_accepted else own
    chip: Chip = {"s": state, "ids": [block.emitted[k - 1]], "pos": block.start + k, "k": k}
    if state == "accepted":
        return chip | _numbers(block.judged, k)
    position = {name: value for name, value in _numbers(block.judged, k).items() if name in ("hp", "hq")}
    return chip | position | ({} if block.next_target_prob is None else {"p": block.next_target_prob})


def _ghost_chip(block: Block, k: int) -> Chip:
    """The k-th drafted token, which did not make it into the output, without its text."""
    state = "cut" if block.is_cut else "rejected" if k == block.n_accepted + 1 else "unjudged"
    chip: Chip = {"s": state, "ids": [block.drafted[k - 1]], "pos": block.start + k, "k": k}
    return chip if state == "unjudged" else chip | _numbers(block.judged, k)


def _numbers(judged: Sequence[JudgedToken], k: int) -> Chip:
    if k > len(judged):
        return {}
    token = judged[k - 1]
    return {
        "p": token.target_prob,
        "q": token.draft_prob,
        "a": token.accept_prob,
        "hp": token.target_entropy,
        "hq": token.draft_entropy,
    }


def _merged(group: list[Chip], text: str) -> Chip:
    """One chip for tokens that share a character. Probabilities belong to single tokens, so several have none."""
    if len(group) == 1:
        return group[0] | {"t": text}
    first = {name: group[0][name] for name in ("s", "pos", "k")}
    return first | {"t": text, "ids": [chip["ids"][0] for chip in group]}


def _without_token(chip: Chip) -> Chip:
    """A chip for text that belongs to no token of this block."""
    return {name: chip[name] for name in ("s", "pos", "k")} | {"ids": []}


def inside(block: Block, uniforms: Sequence[float] | None) -> list[dict[str, Any]]:
    """Of each judged token: its numbers, the most likely tokens as [id, p, q], and the uniform number that decided, if any."""
    found = []
    for i, judged in enumerate(block.judged):
        numbers: dict[str, Any] = {"p": judged.target_prob, "q": judged.draft_prob, "a": judged.accept_prob}
        top = [[token, _short(p), _short(q)] for token, p, q in judged.table]
        found.append(numbers | {"top": top, "u": uniforms[i] if uniforms else None})
    return found


def _short(x: float) -> float:
    """Six significant digits: what the page draws, in fewer bytes."""
    return float(f"{x:.6g}")


def shortened(value: Any) -> Any:
    """A JSON value with every number at six significant digits."""
    if isinstance(value, dict):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner) for inner in value]
    return _short(value) if isinstance(value, float) else value


def view(
    block: Block,
    chips: list[Chip],
    running_tau: float | None,
    *,
    words: dict[str, str],
    uniforms: Sequence[float] | None,
    tokens: int,
    clock: float,
) -> dict[str, Any]:
    """What the page is sent of one block. words: `TokenText.words`. uniforms: as for `inside`.

    tokens, clock: new tokens and seconds of the loop up to and with this block, as in the run's figures.
    """
    return {
        "i": block.index,
        "start": block.start,
        "n_drafted": len(block.drafted),
        "tau": block.acceptance_length,
        "mean": running_tau if block.index else None,
        "cut": block.is_cut,
        "finish": block.finish_reason,
        "chips": chips,
        "anchor": block.anchor,
        "drafted": list(block.drafted),
        "kept": block.n_accepted,
        "emitted": list(block.emitted),
        "next": block.next_kind,
        "p_next": block.next_target_prob,
        "judged": inside(block, uniforms),
        "words": words,
        "tokens": tokens,
        "clock": clock,
        "sec": [block.draft_seconds, block.verify_seconds, block.other_seconds],
    }
