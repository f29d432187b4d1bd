"""The benchmark that says how far a draft can go, against all continuations of a tiny target, enumerated."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dflash_core.decoder import Decoder
from dflash_core.sampling import probabilities

from .conftest import VOCAB, tiny_target

PATHS = 20_000


@torch.inference_mode()
def test_survival_is_that_of_all_continuations() -> None:
    path = Path(__file__).parent.parent / "benchmarks" / "perfect_draft.py"
    spec = importlib.util.spec_from_file_location("perfect_draft", path)
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    model, context, temperature = tiny_target("qwen3").eval(), torch.tensor([3, 5, 7, 9]), 0.2

    def law(ids: Tensor) -> Tensor:
        return probabilities(model(ids).logits[:, -1], temperature=temperature).double()

    p = law(context[None])[0]  # of the first token
    after = law(torch.cat([context.expand(VOCAB, -1), torch.arange(VOCAB)[:, None]], dim=1))  # of the second, after each first
    q = p @ after
    drafted = (law(torch.tensor([[2, 4], [6, 8]])) + torch.stack([p, q])) / 2  # of some draft, at the two positions
    survived = torch.minimum(p, drafted[0]) @ torch.minimum(after, drafted[1]).sum(-1)
    exact = torch.tensor(
        [
            [1.0, p @ torch.minimum(after, q).sum(-1)],
            [p @ p, p**2 @ (after * q).sum(-1)],
            [p.max(), p.max() * after[p.argmax(), q.argmax()]],
            [torch.minimum(p, drafted[0]).sum(), survived],
        ]
    )
    for share in (exact[0, 1], exact[3, 0], exact[3, 1] / exact[3, 0]):
        assert 0.05 < share < 0.95  # else it would show nothing

    options = argparse.Namespace(block_size=3, paths=PATHS)
    decoder = Decoder(tiny_target("qwen3").eval())
    found = benchmark.survival(decoder, context, drafted, temperature, (VOCAB,), options, torch.Generator().manual_seed(0))
    # A mean of values in 0 … 1: 0.02 is more than five standard errors; a false alarm in under one in a million.
    assert found.tolist() == [pytest.approx(row, abs=0.02) for row in exact.tolist()]
