"""Conversations of a target and the states that training needs of them, in files ("shards") that are written whole or not at all.

A shard holds C conversations end to end, N tokens in all, as safetensors:

    token_ids (N,) int32, lengths (C,) and prompt_lengths (C,) int32, temperatures (C,) float32,
    states (N, k + 1, D) bfloat16: the outputs of the k tapped layers at each token, then the final hidden state, which the
    target's head turns into its logits for the next token.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..blocks import require

WORDS_IN_COMMON = 8  # a held-out prompt and training text that share a run of so many words are too alike


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """One conversation. token_ids: (L,), the first `prompt_length` being the prompt. states: (L, k + 1, D)."""

    token_ids: Tensor
    prompt_length: int
    temperature: float
    states: Tensor


def write_shard(path: Path, conversations: Sequence[Conversation], **metadata: Any) -> None:
    """Stores the conversations, atomically. metadata: what describes them all (taps, target, seed, …), JSON-able."""
    assert all(len(c.states) == len(c.token_ids) for c in conversations)
    tensors = {
        "token_ids": torch.cat([c.token_ids for c in conversations]).int(),
        "lengths": torch.tensor([len(c.token_ids) for c in conversations], dtype=torch.int32),
        "prompt_lengths": torch.tensor([c.prompt_length for c in conversations], dtype=torch.int32),
        "temperatures": torch.tensor([c.temperature for c in conversations], dtype=torch.float32),
        "states": torch.cat([c.states for c in conversations]).to(torch.bfloat16),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".partial{os.getpid()}")
    save_file(tensors, partial, {key: json.dumps(value) for key, value in metadata.items()})
    partial.replace(path)


def count_response_tokens(path: Path) -> int:
    """Response tokens in a shard."""
    with safe_open(path, "pt") as file:
        return int((file.get_tensor("lengths") - file.get_tensor("prompt_lengths")).sum())


class Shards:
    """The conversations of all shards in some directories, read as they are asked for.

    taps: the tapped layers that every shard holds. prompts: the token ids of each conversation's prompt.
    Raises ValueError if there are none, or if they hold different layers.
    """

    def __init__(self, directories: Iterable[Path]) -> None:
        self._files: list[Any] = []
        self._index: list[tuple[int, int, int, int, float]] = []  # file, first token, length, prompt length, temperature
        self.taps: list[int] = []
        self.prompts: list[tuple[int, ...]] = []
        paths = [path for directory in directories for path in sorted(Path(directory).glob("*.safetensors"))]
        require(
            bool(paths), f"there is no training data in {', '.join(map(str, directories))}: run dflash_core.training.synthesise"
        )
        for path in paths:
            file = safe_open(path, "pt")
            taps = json.loads(file.metadata()["taps"])
            require(not self.taps or taps == self.taps, f"{path} has states of layers {taps}, the files before it of {self.taps}")
            self.taps = taps
            ids, start = file.get_tensor("token_ids").tolist(), 0
            columns = (file.get_tensor(name).tolist() for name in ("lengths", "prompt_lengths", "temperatures"))
            for length, prompt_length, temperature in zip(*columns, strict=True):
                # Stored in float32, where 0.8 is a little more than 0.8.
                self._index.append((len(self._files), start, length, prompt_length, round(temperature, 4)))
                self.prompts.append(tuple(ids[start : start + prompt_length]))
                start += length
            self._files.append(file)

    def __len__(self) -> int:
        return len(self._index)

    def response_length(self, index: int) -> int:
        return self._index[index][2] - self._index[index][3]

    def temperature(self, index: int) -> float:
        return self._index[index][4]

    def token_counts(self, vocab_size: int) -> Tensor:
        """How often each token occurs, (V,)."""
        counts = torch.zeros(vocab_size, dtype=torch.long)
        for file in self._files:
            counts += torch.bincount(file.get_tensor("token_ids").long(), minlength=vocab_size)
        return counts

    def __getitem__(self, index: int) -> Conversation:
        number, start, length, prompt_length, temperature = self._index[index]
        file = self._files[number]
        ids = file.get_slice("token_ids")[start : start + length].long()
        return Conversation(ids, prompt_length, temperature, file.get_slice("states")[start : start + length])


def seed_of(seed: int, number: int) -> int:
    """A generator's seed for a numbered part of a job (a step, a shard), different for every seed of the job."""
    require(0 <= seed < 1 << 12, f"seed must be 0 to {(1 << 12) - 1:,}, not {seed}")
    require(0 <= number < 1 << 20, f"there are at most {1 << 20:,} steps or shards, not {number:,}")
    return (seed << 20) + number  # torch's generator on the CPU looks at 32 bits only


def word_runs(text: str) -> set[tuple[str, ...]]:
    """All runs of `WORDS_IN_COMMON` words in the text, without case and punctuation."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + WORDS_IN_COMMON]) for i in range(len(words) - WORDS_IN_COMMON + 1)}
