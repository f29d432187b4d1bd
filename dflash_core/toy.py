"""A tiny pair without weights, for tests and for looking around without a download.

The target is a Markov chain over a few dozen words: its logits depend on the last token only. The draft is the best that a
one-pass block draft can be for it, the chain's exact k-step marginal at position k, mixed with a little uniform noise. So
acceptance falls along the block for the reason it does in a real block draft: it cannot see what it drafted before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class ToyCache:
    """Tokens seen so far in each row: all the state that the chain has."""

    def __init__(self, rows: int = 1) -> None:
        self.rows: list[list[int]] = [[] for _ in range(rows)]

    def put(self, row: int, other: ToyCache, other_row: int = 0) -> None:
        self.rows[row] = list(other.rows[other_row])


class ToyTarget:
    """The Markov chain as a `Target`. `sharpness` is the standard deviation of its logits."""

    batches = True
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

    def new_cache(self, rows: int = 1) -> ToyCache:
        return ToyCache(rows)

    def forward(self, token_ids: Tensor, cache: ToyCache, *, taps: Sequence[int], last_only: bool) -> tuple[Tensor, Tensor]:
        for seen, new in zip(cache.rows, token_ids.tolist(), strict=False):
            seen += new
        scored = token_ids[:, -1:] if last_only else token_ids
        return self.logits[scored], torch.zeros(*token_ids.shape, len(taps))

    def roll_back(self, cache: ToyCache, *lengths: int) -> None:
        for seen, length in zip(cache.rows, lengths, strict=False):
            del seen[length:]

    def cache_length(self, cache: ToyCache) -> int:
        return len(cache.rows[0])

    def embed(self, token_ids: Tensor) -> Tensor:
        return token_ids[..., None].float()

    def head(self, hidden: Tensor) -> Tensor:
        return self.logits[hidden[..., 0].long()]


class ToyDraft:
    """The chain's k-step marginals as a draft; `noise` is the share of uniform noise mixed in."""

    batches = True
    block_size = 8
    target_layer_ids = [0]  # noqa: RUF012 - same type as in DFlashDraftModel
    mask_token_id = 0

    def __init__(self, target: ToyTarget, noise: float = 0.02) -> None:
        self._step = target.logits.double().softmax(-1)
        self._noise = noise

    def new_cache(self, rows: int = 1) -> ToyCache:
        return ToyCache(rows)

    def propose(
        self,
        cache: ToyCache,
        target_features: Tensor,
        anchor: Tensor,
        block_size: int,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        *,
        n_new: Sequence[int] | None = None,
    ) -> Tensor:
        for seen, n in zip(cache.rows, n_new or [target_features.shape[1]], strict=False):
            seen += [0] * n
        marginal = self._step[anchor[:, 0]]
        steps = [marginal := marginal if k == 0 else marginal @ self._step for k in range(block_size - 1)]
        marginals = torch.stack(steps, dim=1) * (1 - self._noise) + self._noise / self._step.shape[0]
        return marginals.log().float()


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer over `WORDS`; what it does not know becomes <unk>."""
    from transformers import PreTrainedTokenizerFast  # here: it takes its time to import

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<stop>", clean_up_tokenization_spaces=False
    )
