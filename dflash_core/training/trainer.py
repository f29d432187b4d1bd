"""One training run of a draft: its batches, its steps, its figures on held-out conversations, its state on disk."""

from __future__ import annotations

import copy
import math
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..blocks import require
from ..draft_model import DFlashDraftModel
from ..intervals import cluster_interval, ratio
from .batches import Batch, make_batch
from .data import Shards, seed_of
from .loss import ROWS_AT_ONCE, GuessLoss, LossMix
from .parallel import block_hidden

AVERAGE_EVERY = 8  # steps
HALF_ROOM = 2.0**13  # the draft's largest value on held-out text, when saved in float16: an eighth of what that holds
# Mostly small: that is where nearly all tokens are accepted, and more anchors fit into a step.
BLOCK_SIZES = (2, 3, 3, 3, 4, 4, 4, 4, 4, 5, 6, 8, 16)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """conversations: in a step. block_tokens: anchors × block size in a conversation. decay: γ of the loss weight
    exp(−(k − 1)/γ) of position k. words: the most frequent tokens, which take part in every step's loss, with a quarter as many
    others at random; in the last `full_head` of the steps the whole vocabulary does. averaging: share of the past that the
    averaged weights keep at each step. held_out_one_in: of so many prompts, one is kept back. autocast: bfloat16 arithmetic.
    draft_words: the finished draft says only the most frequent so many (`DFlashDraftModel.narrow`); 0 for all.
    block_sizes: one is drawn for each step. temperatures: lowest and highest of the conversations that are trained on.
    """

    steps: int = 10_000
    conversations: int = 8
    block_tokens: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    averaging: float = 0.999
    decay: float = 4.0
    mix: LossMix = field(default_factory=LossMix)
    words: int = 8192
    full_head: float = 0.05
    held_out_one_in: int = 50
    seed: int = 0
    autocast: bool = True
    draft_words: int = 16_384
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    temperatures: tuple[float, float] = (0.0, math.inf)

    def __post_init__(self) -> None:
        require(self.steps >= 1 and self.conversations >= 1, "steps and conversations must be at least 1")
        require(bool(self.block_sizes) and min(self.block_sizes) >= 2, "block sizes must be at least 2: an anchor and a guess")
        largest = max(self.block_sizes)
        require(self.block_tokens >= largest, f"block_tokens must be at least {largest}: one block")
        require(self.temperatures[0] <= self.temperatures[1], "temperatures must be the lowest and the highest, in this order")
        require(self.mix != LossMix(0, 0, 0), "the mix of the loss is 0 throughout: there is nothing to learn from")
        require(self.decay > 0, f"decay must be above 0, not {self.decay}")
        seed_of(self.seed, self.steps)


class Trainer:
    """The draft in training, the running average of its weights, the optimiser, and the step it is at."""

    def __init__(
        self,
        draft: DFlashDraftModel,
        embedding: Tensor,
        head: Tensor,
        shards: Shards,
        options: TrainingOptions,
        device: str = "cpu",
    ) -> None:
        """embedding, head: the target's, (V, D) each. Raises ValueError if the data lacks a tap or is too little."""
        missing = sorted(set(draft.target_layer_ids) - set(shards.taps))
        require(not missing, f"the data has states of layers {shards.taps}, not of {missing}: synthesise with other --taps")
        self.options, self.shards, self.device = options, shards, torch.device(device)
        self.draft = draft.to(self.device).train()
        dtype = torch.bfloat16 if options.autocast else torch.float32
        self.embedding, self.head = embedding.to(self.device, dtype), head.to(self.device, dtype)
        self.average = {name: value.detach().clone() for name, value in draft.state_dict().items()}
        groups = [
            {"params": [p for p in draft.parameters() if p.ndim > 1], "weight_decay": options.weight_decay},
            {"params": [p for p in draft.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95), fused=True)
        self.step = 0
        # All conversations with one prompt are on the same side.
        held_out = [zlib.crc32(repr(prompt).encode()) % options.held_out_one_in == 0 for prompt in shards.prompts]
        usable = [i for i in range(len(shards)) if shards.response_length(i) >= 2]
        lowest, highest = options.temperatures
        self.training = [i for i in usable if not held_out[i] and lowest <= shards.temperature(i) <= highest]
        self.held_out = [i for i in usable if held_out[i]]
        require(
            bool(self.training and self.held_out),
            f"there is too little data: some hundred conversations are needed, of temperatures {lowest:g} to {highest:g}",
        )
        self.chances = torch.tensor([float(shards.response_length(i)) for i in self.training])
        counts = shards.token_counts(len(self.embedding))
        by_count = counts.argsort(descending=True, stable=True)  # ties by id: tokenizers number frequent words first
        self.frequent = by_count[: options.words]
        self.spoken = by_count[: options.draft_words or len(counts)].sort().values

    def batch(self, step: int) -> Batch:
        """The batch of a step depends on the seed, the step and the data alone."""
        options, generator = self.options, self._generator(step)
        block_size = options.block_sizes[int(torch.randint(len(options.block_sizes), (1,), generator=generator))]
        chosen = self.chances.multinomial(options.conversations, replacement=True, generator=generator)
        indices = [self.training[i] for i in chosen.tolist()]
        n_anchors = options.block_tokens // block_size
        return make_batch(self.shards, indices, self.draft.target_layer_ids, block_size, n_anchors, generator)

    def train_step(self, batch: Batch) -> float:
        """One step of the optimiser; returns the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        full_head = self.step >= self.options.steps * (1 - self.options.full_head)
        loss = self.loss(batch, None if full_head else self.words(batch, self._generator(self.step)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.step % AVERAGE_EVERY == 0 or self.step == self.options.steps:
            with torch.no_grad():
                pull = 1 - min(self.options.averaging, (1 + self.step) / (10 + self.step)) ** AVERAGE_EVERY
                values = self.draft.state_dict()
                torch._foreach_lerp_([self.average[name] for name in values], list(values.values()), pull)
        return float(loss.detach())

    def learning_rate(self, step: int) -> float:
        """Warm-up over 4 % of the steps, then a cosine down to a twentieth."""
        options, warm = self.options, max(1, self.options.steps // 25)
        share = min(1.0, max(0.0, (step - warm) / max(1, options.steps - warm)))
        cosine = 0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2
        return options.learning_rate * min(1.0, (step + 1) / warm) * cosine

    def loss(self, batch: Batch, words: Tensor | None) -> Tensor:
        """Weighted loss of the guesses, a block. words: ids that take part, every label among them; None for all."""
        hidden = self.guesses(batch)
        known = batch.known
        labels = batch.labels[known].to(self.device)
        head = self.head
        if words is not None:
            place_of = torch.zeros(len(head), dtype=torch.long, device=self.device)
            place_of[words] = torch.arange(len(words), device=self.device)
            head, labels = head[words], place_of[labels]
        places = torch.arange(known.shape[-1]).expand_as(known)[known].to(self.device)
        weights = torch.exp(-places / self.options.decay) / batch.anchors.numel()
        target_hidden = batch.target_hidden[known].to(self.device)
        loss: Tensor = GuessLoss.apply(hidden, target_hidden, labels, weights, head, self.options.mix)
        return loss

    def words(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Ids of the words that take part in a step's loss: the frequent ones, the labels, and some at random."""
        extra = torch.randint(len(self.head), (self.options.words // 4,), generator=generator)
        return torch.cat([self.frequent, batch.labels[batch.known], extra]).unique().to(self.device)

    def guesses(self, batch: Batch) -> Tensor:
        """Final hidden states (M, D) of the draft at the M known positions after the anchors."""
        ids = torch.full((*batch.anchors.shape, batch.labels.shape[-1] + 1), self.draft.mask_token_id, device=self.device)
        ids[..., 0] = batch.anchor_ids.to(self.device)
        blocks = self.embedding[ids]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.autocast):
            hidden = block_hidden(self.draft, batch.features.to(self.device, blocks.dtype), blocks, batch.anchors.to(self.device))
        return hidden[..., 1:, :][batch.known.to(self.device)].to(self.head.dtype)

    @torch.no_grad()
    def evaluate(self, indices: Sequence[int], *, block_size: int = 16, n_anchors: int = 8) -> dict[str, Any]:
        """Figures of the averaged draft on some conversations, with anchors that are always the same.

        loss (−log q of the text's token), agreement (same most likely token) and overlap (Σ min(p, q), temperature 1): lists by
        position. agreement_at_1, overlap_at_1: with their 95 % intervals over prompts, (value, low, high). tau_greedy: 1 +
        accepted tokens on the conversations of temperature 0. tau_speculative: 1 + Σₖ mean of Πⱼ≤ₖ min(1, q/p) of the text's own
        tokens on those of temperature 1, the expectation under `speculative` for text drawn from p. Both are of random anchors:
        in decoding an anchor often stands where a guess has just failed, and τ is lower.
        """
        training = {name: value.clone() for name, value in self.draft.state_dict().items()}
        self.draft.load_state_dict(self.average)
        self.draft.eval()
        sums = torch.zeros(4, block_size - 1, dtype=torch.float64)  # loss, agreement, overlap, count
        first: dict[tuple[int, ...], list[Tensor]] = {}  # by prompt: agreement, overlap and count at position 1
        lengths: dict[float, list[Tensor]] = {0.0: [], 1.0: []}
        generator = torch.Generator().manual_seed(1)
        for start in range(0, len(indices), 8):
            some = indices[start : start + 8]
            batch = make_batch(self.shards, some, self.draft.target_layer_ids, block_size, n_anchors, generator)
            figures = torch.zeros(4, *batch.known.shape)
            figures[:, batch.known] = self._figures(batch)
            sums[:3] += figures[:3].sum((1, 2))
            sums[3] += batch.known.sum((0, 1))
            for i, index in enumerate(some):
                here = [figures[1, i, :, 0].sum(), figures[2, i, :, 0].sum(), batch.known[i, :, 0].sum()]
                first.setdefault(self.shards.prompts[index], []).append(torch.stack(here))
                temperature = self.shards[index].temperature
                if temperature in lengths:
                    kept = figures[1 if temperature == 0 else 3, i]
                    lengths[temperature].append(kept.cumprod(-1).sum(-1))
        self.draft.load_state_dict(training)
        self.draft.train()
        loss, agreement, overlap = (sums[:3] / sums[3].clamp(min=1)).tolist()
        names = {"tau_greedy": lengths[0.0], "tau_speculative": lengths[1.0]}
        taus = {name: 1 + float(torch.cat(values).mean()) for name, values in names.items() if values}
        of_prompts = torch.stack([torch.stack(some).sum(0) for some in first.values()]).double().numpy()
        at_1 = {f"{name}_at_1": cluster_interval(of_prompts[:, [i, 2]], ratio) for i, name in enumerate(("agreement", "overlap"))}
        return {**taus, **at_1, "loss": loss, "agreement": agreement, "overlap": overlap}

    def _figures(self, batch: Batch) -> Tensor:
        """(4, M): −log q(y), agreement, overlap, and min(1, q(y)/p(y)) of each guess, y being the text's token."""
        hidden = self.guesses(batch)
        target_hidden = batch.target_hidden[batch.known].to(self.device, self.head.dtype)
        labels = batch.labels[batch.known].to(self.device)
        parts = []
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            log_q = (hidden[part] @ self.head.T).float().log_softmax(-1)
            log_p = (target_hidden[part] @ self.head.T).float().log_softmax(-1)
            q_y, p_y = (log.gather(-1, labels[part, None])[:, 0] for log in (log_q, log_p))
            agreement = (log_q.argmax(-1) == log_p.argmax(-1)).float()
            overlap = torch.minimum(log_q.exp(), log_p.exp()).sum(-1)
            parts.append(torch.stack([-q_y, agreement, overlap, (q_y - p_y).clamp(max=0).exp()]))
        return torch.cat(parts, dim=1).cpu()

    def save(self, directory: Path) -> None:
        """The whole state and the averaged draft in the published format, float16; no file is ever half written."""
        directory.mkdir(parents=True, exist_ok=True)
        state = {
            "draft": self.draft.state_dict(),
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "options": asdict(self.options),
        }
        atomically(directory / "state.pt", lambda path: torch.save(state, path))
        config = copy.deepcopy(self.draft.config)
        config.dtype = torch.float16
        # Set in any case: a draft that training began with (--init) may have been narrowed to other words.
        config.draft_token_ids = self.spoken.tolist() if len(self.spoken) < len(self.head) else []
        half = DFlashDraftModel(config).half()
        weights = {**self.average, "fc.weight": self.average["fc.weight"] / self._excess()}
        half.load_state_dict({name: value.half() for name, value in weights.items()})
        # File by file, each whole: a run may be killed at any moment, and what it left be used.
        partial, finished = directory / "draft.partial", directory / "draft"
        half.save_pretrained(partial)
        finished.mkdir(exist_ok=True)
        for path in partial.iterdir():
            path.replace(finished / path.name)
        partial.rmdir()

    def _excess(self) -> float:
        """What fc is divided by for float16, a power of two: some targets' states are huge. The norm behind fc undoes it."""
        batch = make_batch(self.shards, self.held_out[:8], self.draft.target_layer_ids, 2, 1, torch.Generator())
        fc = self.average["fc.weight"].to("cpu", torch.float32)
        largest = max(float((some.float() @ fc.T).abs().max()) for some in batch.features)
        return 2.0 ** max(0, math.ceil(math.log2(max(largest, 1.0) / HALF_ROOM)))

    def resume(self, directory: Path) -> list[str]:
        """Goes on from a saved state; returns the options that it had otherwise. Raises ValueError if it is of another draft."""
        state = torch.load(directory / "state.pt", map_location=self.device, weights_only=True)
        shapes = {name: value.shape for name, value in state["draft"].items()}
        require(
            shapes == {name: value.shape for name, value in self.draft.state_dict().items()},
            f"{directory} holds a run with a draft of another shape: choose another --out, or the same options",
        )
        self.draft.load_state_dict(state["draft"])
        self.average = state["average"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        now = asdict(self.options)
        return [
            f"{name} = {value}, now {now[name]}" for name, value in state.get("options", {}).items() if value != now.get(name)
        ]

    def _generator(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed_of(self.options.seed, step))


def atomically(path: Path, write: Callable[[Path], None]) -> None:
    """The file appears whole, or not at all."""
    partial = path.with_name(f"{path.name}.partial{os.getpid()}")
    write(partial)
    partial.replace(path)
