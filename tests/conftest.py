"""What the tests share: tiny pairs, hostile drafts, and the chi-square test."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from dflash_core.draft_model import DFlashDraftModel
from dflash_core.pairs import Pair, load_pair
from dflash_core.weights import WeightsUnavailable

if TYPE_CHECKING:
    from tests.served import ServedPage  # brings gradio, which most tests do without

torch.set_num_threads(1)  # tiny models; more threads only wait for each other

# The suite makes fewer than 1,000 chi-square tests: below 1e-9 each, all of them together raise a false alarm once in a
# million runs.
FALSE_ALARM = 1e-9

VOCAB = 97
MASK = 3


def tiny_target(kind: str, seed: int = 0) -> PreTrainedModel:
    """A random Llama or Qwen3 of about 30,000 parameters in float32; a new one each time: a `Decoder` takes its model apart."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        # Large weights: the next token then depends strongly on the context, and a fault in the cache shows.
        "initializer_range": 0.4,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(**shape)) if kind == "llama" else Qwen3ForCausalLM(Qwen3Config(**shape))
    return model.eval()


def tiny_draft(seed: int = 0, **changes: Any) -> DFlashDraftModel:
    """A random draft that fits `tiny_target`."""
    torch.manual_seed(seed)
    config: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.4,
        "num_target_layers": 4,
        "block_size": 8,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2]},
    }
    return DFlashDraftModel(Qwen3Config(**{**config, **changes})).eval()


class OracleDraft:
    """Drafts what it is told to: `choose(position)` gives the id for an absolute position; used to force any verdict."""

    block_size = 8

    def __init__(self, choose: Callable[[int], int], vocab_size: int = VOCAB, taps: tuple[int, ...] = (0,)) -> None:
        self.choose, self.vocab_size, self.target_layer_ids = choose, vocab_size, list(taps)
        self.calls = 0

    def new_cache(self) -> list[int]:
        self.calls += 1
        return []

    def propose(
        self, cache: list[int], target_features: Tensor, anchor: Tensor, block_size: int, embed: Any, head: Any
    ) -> Tensor:
        cache.append(target_features.shape[1])
        start = sum(cache)
        ids = torch.tensor([self.choose(start + i) for i in range(1, block_size)])
        return 50.0 * torch.nn.functional.one_hot(ids, self.vocab_size).float()[None]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the tests, one of them has all that drive a browser: pages and browsers are started once."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(params=["llama", "qwen3"])
def target(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_target(request.param)


@pytest.fixture(scope="session")
def draft() -> DFlashDraftModel:
    return tiny_draft()


def missing(what: str) -> NoReturn:
    """Skips the test; in CI nothing may be skipped unseen, so there it fails."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def embedded_pair() -> Pair:
    try:
        return load_pair("embedded")
    except WeightsUnavailable as error:
        missing(f"the embedded pair cannot be had: {error}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        missing("the page is tested in a real browser, and there is no chromium on this machine")
    from playwright.sync_api import sync_playwright

    from tests.served import BROWSER_OPTIONS

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=BROWSER_OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def toy_page() -> Iterator[ServedPage]:
    from tests.served import ServedPage

    page = ServedPage(lambda name, progress: load_pair(name, progress=progress), "toy")
    yield page
    page.close()


@pytest.fixture(scope="session")
def embedded_page(embedded_pair: Pair) -> Iterator[ServedPage]:
    from tests.served import ServedPage

    page = ServedPage(lambda name, _: embedded_pair if name == "embedded" else load_pair(name), "embedded")
    yield page
    page.close()


@pytest.fixture(scope="session")
def unloaded_page() -> Iterator[ServedPage]:
    """A page whose models never arrive."""
    from tests.served import ServedPage

    closing = threading.Event()

    def load(name: str, progress: object) -> Pair:
        closing.wait()
        raise ValueError("the test is over")

    page = ServedPage(load, "embedded")
    yield page
    closing.set()
    page.close()
