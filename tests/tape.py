"""A CUDA graph as far as a CPU can imitate one: torch's operations with the memory they were called on, and nothing of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Records the operations called within it. Replayed, each writes its result to where the first one lay.

    So a number that came from Python stays what it was, and a tensor that has been replaced since is still the old one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.n_replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, _tensors(result)))
        return result

    def replay(self) -> None:
        self.n_replays += 1
        for func, args, kwargs, results in self.calls:
            for old, new in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():  # else it is a view, or was written in place
                    old.copy_(new)


def _tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


class Recorder:
    """Stands in for `cuda_graphs.record_cuda`; keeps its tapes, to be counted."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []

    def __call__(self, compute: Callable[[], tuple[Tensor, ...]], device: torch.device) -> Any:
        tape = Tape()
        with tape:
            outputs = compute()
        self.tapes.append(tape)
        for output in outputs:
            output.fill_(torch.nan)  # recording computes nothing
        return tape.replay, outputs
