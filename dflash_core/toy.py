"""A tiny pair without weights, for tests and for looking around without a download.

The target is a Markov chain over a few dozen words: its logits depend on the last token only. The draft is the best that a
one-pass block draft can be for it, the chain's exact k-step marginal at position k, mixed with a little uniform noise. So
acceptance falls along the block for the reason it does in a real block draft: it cannot see what it drafted before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Ġ is the byte-level alphabet's space, Ċ its newline. Some words are there to be awkward: markup that a page must not run,
# and an emoji in two tokens.
EMOJI_HALVES = ("ĠðŁ", "Įį")
_WORDS = r"""
<unk> <stop> Ċ Ġthe Ġa Ġcat Ġdog Ġbird Ġfox Ġsaw Ġheard Ġchased Ġfollowed Ġred Ġold Ġquick Ġquiet Ġand Ġbut Ġthen
Ġran Ġslept Ġsang Ġover Ġunder Ġpast Ġhill Ġriver Ġhouse Ġgarden Ġagain Ġsoon . , Ġ<b>bold</b> Ġ${1+1} Ġ&amp;
Ġ<img/src=x/onerror=window.hacked=1> Ġ</script><script>window.hacked=1</script> Ġ\n Ġna Ã¯ ve Ġ1 2 3 Ġ( Ġ) Ġ" ' -
"""
WORDS = [*_WORDS.split(), *EMOJI_HALVES]


@dataclass
class ToyCache:
    """Tokens seen so far: all the state that the chain has."""

    token_ids: list[int] = field(default_factory=list)


class ToyTarget:
    """The Markov chain as a `Target`. `sharpness` is the standard deviation of its logits."""

    max_positions = 8192
    device = torch.device("cpu")
    dtype = torch.float32
    hidden_size = 1
    num_layers = 1

    def __init__(self, seed: int = 0, sharpness: float = 2.5) -> None:
        self.vocab_size = len(WORDS)
        generator = torch.Generator().manual_seed(seed)
        self.logits = sharpness * torch.randn(self.vocab_size, self.vocab_size, generator=generator)
        self.logits[:, :2] = -20.0  # <unk> and <stop> do not come up by themselves
        first, second = (WORDS.index(half) for half in EMOJI_HALVES)
        self.logits[:, second] = -20.0
        self.logits[first, second] = 20.0

    def new_cache(self) -> ToyCache:
        return ToyCache()

    def forward(self, token_ids: Tensor, cache: ToyCache, *, taps: Sequence[int], last_only: bool) -> tuple[Tensor, Tensor]:
        cache.token_ids += token_ids[0].tolist()
        scored = token_ids[:, -1:] if last_only else token_ids
        return self.logits[scored], torch.zeros(1, token_ids.shape[1], len(taps))

    def roll_back(self, cache: ToyCache, length: int) -> None:
        del cache.token_ids[length:]

    def cache_length(self, cache: ToyCache) -> int:
        return len(cache.token_ids)

    def embed(self, token_ids: Tensor) -> Tensor:
        return token_ids[..., None].float()

    def head(self, hidden: Tensor) -> Tensor:
        return self.logits[hidden[..., 0].long()]


class ToyDraft:
    """The chain's k-step marginals as a draft; `noise` is the share of uniform noise mixed in."""

    block_size = 8
    target_layer_ids = [0]  # noqa: RUF012 - same type as in DFlashDraftModel
    mask_token_id = 0

    def __init__(self, target: ToyTarget, noise: float = 0.02) -> None:
        self._step = target.logits.double().softmax(-1)
        self._noise = noise

    def new_cache(self) -> ToyCache:
        return ToyCache()

    def propose(
        self,
        cache: ToyCache,
        target_features: Tensor,
        anchor: Tensor,
        block_size: int,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
    ) -> Tensor:
        cache.token_ids += [0] * target_features.shape[1]
        row = self._step[anchor[0]]
        rows = [row := row if k == 0 else row @ self._step for k in range(block_size - 1)]
        marginals = torch.cat(rows) * (1 - self._noise) + self._noise / self._step.shape[0]
        return marginals.log().float()[None]


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer over `WORDS`; what it does not know becomes <unk>."""
    from transformers import PreTrainedTokenizerFast  # here: it takes its time to import

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<stop>", clean_up_tokenization_spaces=False
    )
