"""Replayed passes: on a GPU a pass over a block is launched as one CUDA graph instead of hundreds of kernels, one by one.

A graph holds the addresses of all that it reads and writes. So it is recorded over one cache, which is lent to one run at a
time; a second run at the same time, a batch of rows, a prefill, or a pass of a kind that has come only once goes the plain way,
and so does everything after a recording has failed. The first pass of a kind (block size, room in the cache) is plain, the
second one is recorded.

Memory beyond the plain path: the lent cache, kept between runs, and what one pass needs for each graph.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import static_pass
from .draft_model import DFlashDraftModel, RowMap
from .generate import Draft, dflash_generate
from .kv_cache import FIRST_CAPACITY, KeyValueCache
from .target import DecoderTarget

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Qwen3Config

LENT_CAPACITY = 2048  # positions of the lent cache at first: when it grows, all graphs are recorded again
MOST_GRAPHS = 32  # of one model
MOST_TOKENS = 64  # of a pass that is recorded

Outputs = tuple[Tensor, ...]
Recording = tuple[Callable[[], object], Outputs]  # replays it, and where its outputs then lie
Record = Callable[[Callable[[], Outputs], torch.device], Recording]

_ONE_RECORDING = threading.Lock()  # at a time: torch's rule
_log = logging.getLogger(__name__)


def record_cuda(compute: Callable[[], Outputs], device: torch.device) -> Recording:
    """A CUDA graph of the pass, which must do the same thing whenever it is repeated."""
    with _ONE_RECORDING, torch.cuda.device(device):
        current, side = torch.cuda.current_stream(), _side_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):  # libraries set themselves up in their first calls, which must not be recorded
            for _ in range(2):
                compute()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):  # other threads go on
                outputs = compute()
        finally:
            torch.cuda.set_stream(current)  # a recording that failed leaves its own stream behind
        return graph.replay, outputs


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings: cuBLAS keeps a workspace for each stream."""
    return torch.cuda.Stream(device)


class Replays:
    """The lent cache of one model, and the recordings over it.

    reason: why nothing is recorded any more; "" while all is well. enabled: may be set to False for a comparison.
    """

    def __init__(self, record: Record = record_cuda, capacity: int = LENT_CAPACITY) -> None:
        self.enabled, self.reason = True, ""
        self._record, self._capacity = record, capacity
        self._buffers: list[Tensor] = []
        self._borrower: Callable[[], KeyValueCache | None] = lambda: None
        self._lock = threading.Lock()
        self._recorded: dict[Hashable, _Recorded | None] = {}  # None: has come once. The least recently used first
        self._recorded_at = 0  # capacity

    def lend(self, new_cache: Callable[[], KeyValueCache]) -> KeyValueCache:
        """The cache, empty, for a run, which gives it back by forgetting it; a new one if it is lent already."""
        with self._lock:
            if not self.enabled or self._borrower() is not None:
                return new_cache()
            if not self._buffers:
                with torch.inference_mode(False):  # so that it can be written to in any mode
                    first = new_cache()
                    first.reserve(self._capacity)
                self._buffers = first.buffers
            with torch.inference_mode():
                for buffer in self._buffers:
                    buffer.zero_()  # nothing of the last run is left, not even behind a mask
            cache = KeyValueCache(self._buffers, [0])
            self._borrower = weakref.ref(cache)
            return cache

    @torch.inference_mode()
    def run(
        self, cache: KeyValueCache, n: int, key: Hashable, compute: Callable[..., Outputs], *inputs: Tensor | int
    ) -> Outputs | None:
        """The outputs of compute(cache, end, *inputs), replayed; None if it has to be done the plain way.

        n: positions that the pass needs room for, beyond the cache's length. key: all else that the pass depends on.
        compute is given tensors of its own in place of the inputs, of shape (1,) for whole numbers, and a cache without a length,
        in which it may look at the first `end` positions.
        """
        if not self.enabled or self._borrower() is not cache:
            return None
        end = _bucket(cache.length + n)
        cache.reserve(end)
        if cache.capacity != self._recorded_at:  # other buffers than those of the recordings
            self._recorded, self._recorded_at = {}, cache.capacity
        key = (end, key)
        recorded = self._recorded.pop(key, None) if (is_known := key in self._recorded) else None
        if is_known and recorded is None:
            recorded = self._new_recording(functools.partial(compute, KeyValueCache(cache.buffers, []), end), inputs)
        if self.enabled:
            self._recorded[key] = recorded
            if len(self._recorded) > MOST_GRAPHS:
                del self._recorded[next(iter(self._recorded))]
        if recorded is None:
            return None
        recorded.take(inputs)
        recorded.replay()
        return tuple(output.clone() for output in recorded.outputs)

    def _new_recording(self, compute: Callable[..., Outputs], inputs: tuple[Tensor | int, ...]) -> _Recorded | None:
        """None if it fails, and then nothing is recorded any more."""
        device = self._buffers[0].device
        try:
            own = tuple(
                torch.empty_like(value) if isinstance(value, Tensor) else torch.empty(1, dtype=torch.long, device=device)
                for value in inputs
            )
            recorded = _Recorded(own)
            recorded.take(inputs)
            recorded.replay, recorded.outputs = self._record(functools.partial(compute, *own), device)
            return recorded
        except Exception as error:  # whatever it is, the plain way is there; and if that fails too, it says so itself
            self.enabled, self.reason = False, str(error).partition("\n")[0]
            self._recorded = {}
            _log.warning("CUDA graphs are off, and all passes go the plain way: %s", self.reason)
            return None


@dataclass(slots=True)
class _Recorded:
    inputs: Outputs
    replay: Callable[[], object] = lambda: None
    outputs: Outputs = ()

    def take(self, values: tuple[Tensor | int, ...]) -> None:
        for own, value in zip(self.inputs, values, strict=True):
            if isinstance(value, Tensor):
                own.copy_(value)
            else:
                own.fill_(value)


class GraphedTarget(DecoderTarget):
    """A target whose passes over a block of a single run are replayed."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.replays = Replays()

    def new_cache(self, rows: int = 1) -> KeyValueCache:
        return self.replays.lend(super().new_cache) if rows == 1 else super().new_cache(rows)

    def forward(self, token_ids: Tensor, cache: KeyValueCache, *, taps: Sequence[int], last_only: bool) -> tuple[Tensor, Tensor]:
        rows, n = token_ids.shape
        if rows == 1 and n <= MOST_TOKENS and not last_only:

            def compute(cache: KeyValueCache, end: int, token_ids: Tensor, start: Tensor) -> Outputs:
                return static_pass.verify(self, cache, end, taps, token_ids, start)

            outputs = self.replays.run(cache, n, (n, tuple(taps)), compute, token_ids, cache.length)
            if outputs is not None:
                cache.lengths[0] += n
                return outputs[0], outputs[1]
        return super().forward(token_ids, cache, taps=taps, last_only=last_only)


class GraphedDraft(DFlashDraftModel):
    """A draft whose passes of a single run are replayed, but for the first, whose context is the prompt."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.replays = Replays()

    def new_cache(self, rows: int = 1) -> KeyValueCache:
        return self.replays.lend(super().new_cache) if rows == 1 else super().new_cache(rows)

    def propose(
        self,
        cache: KeyValueCache,
        target_features: Tensor,
        anchor: Tensor,
        block_size: int,
        embed: RowMap,
        head: RowMap,
        *,
        n_new: Sequence[int] | None = None,
    ) -> Tensor:
        n = target_features.shape[1]
        if len(anchor) == 1 and 1 <= n <= block_size <= MOST_TOKENS:

            def compute(
                cache: KeyValueCache, end: int, features: Tensor, n_new: Tensor, anchor: Tensor, start: Tensor
            ) -> Outputs:
                return static_pass.propose(self, cache, end, embed, head, features, n_new, anchor, start)

            features = torch.nn.functional.pad(target_features, (0, 0, 0, block_size - n))
            key = (block_size, embed, head, self._words)
            outputs = self.replays.run(cache, n + block_size, key, compute, features, n, anchor, cache.length)
            if outputs is not None:
                cache.lengths[0] += n
                return outputs[0]
        return super().propose(cache, target_features, anchor, block_size, embed, head, n_new=n_new)


def warm_up(draft: Draft, target: GraphedTarget) -> None:
    """Records the passes of plain decoding and of the draft's own block size, so that no run's first blocks pay for it."""
    for block_size in (1, draft.block_size):
        dflash_generate(draft, target, torch.tensor([[0]]), max_new_tokens=4 * block_size, block_size=block_size, seed=0)


def _bucket(n: int) -> int:
    """Room for n positions, in steps of a factor of two: the passes of a run are of few shapes."""
    room = FIRST_CAPACITY
    while room < n:
        room *= 2
    return room
