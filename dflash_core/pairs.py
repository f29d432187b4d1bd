"""Pairs of target and draft: the registry, loading them, and the checks that they fit each other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .blocks import require
from .decoder import supports
from .fast_linear import pack_linears
from .generate import Draft
from .target import DecoderTarget, Target, TransformersTarget
from .toy import ToyDraft, ToyTarget, toy_tokenizer
from .weights import Progress, ensure_target

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .draft_model import DFlashDraftModel

EMBEDDED_DRAFT = Path(__file__).parent.parent / "assets" / "draft"
CUSTOM = "custom"  # key of a pair whose target or draft was given by path or hub id
REPLAYED_ON = {"cuda"}  # types of devices on which passes are recorded and replayed
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class PairSpec:
    """A pair that can be loaded by name.

    target, draft: hub ids or paths; empty for the pairs that bring their own.
    dtype: what it runs in off the CPU; on the CPU every pair runs in float32, which is exact.
    memory: what the weights of both take, in words.
    chat_options: passed to the chat template.
    """

    key: str
    label: str
    target: str
    draft: str
    dtype: str
    memory: str
    chat_options: dict[str, Any] = field(default_factory=dict)


PAIRS: dict[str, PairSpec] = {
    spec.key: spec
    for spec in (
        PairSpec("embedded", "SmolLM2-135M-Instruct + embedded draft", "", str(EMBEDDED_DRAFT), "float32", "0.6 GB (float32)"),
        PairSpec(
            "qwen3-4b",
            "Qwen3-4B + DFlash-b16",
            "Qwen/Qwen3-4B",
            "z-lab/Qwen3-4B-DFlash-b16",
            "bfloat16",
            "9 GB (bfloat16)",
            {"enable_thinking": False},
        ),
        PairSpec(
            "qwen3-8b",
            "Qwen3-8B + DFlash-b16",
            "Qwen/Qwen3-8B",
            "z-lab/Qwen3-8B-DFlash-b16",
            "bfloat16",
            "19 GB (bfloat16)",
            {"enable_thinking": False},
        ),
        PairSpec(
            "llama3.1-8b",
            "Llama-3.1-8B-Instruct + DFlash-UltraChat",
            "meta-llama/Llama-3.1-8B-Instruct",
            "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
            "bfloat16",
            "18 GB (bfloat16)",
        ),
        PairSpec("toy", "Toy word chain (no weights)", "", "", "float32", "nothing"),
    )
}


class PairError(ValueError):
    """A pair that cannot be loaded or does not fit; the message says why and what would fit."""


@dataclass(frozen=True, eq=False, slots=True)
class Pair:
    """A loaded pair. It holds no state of any run. sources: paths or hub ids that target and draft were loaded from."""

    key: str
    label: str
    target: Target
    draft: Draft
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]
    device: str
    dtype: str
    chat_options: dict[str, Any]
    sources: tuple[str, ...] = ()

    def encode(self, prompt: str | Sequence[tuple[str, str]], *, chat: bool = True) -> Tensor:
        """Token ids (1, L) of the prompt: as one user turn of the chat template, or as raw text to be continued.

        prompt: the text, or for a chat also its messages as (role, content).

        Raises ValueError if that leaves no token, or if a chat is asked of a model without a chat template.
        """
        if chat:
            require(
                bool(self.tokenizer.chat_template),
                f"{self.label} has no chat template: switch to the raw prompt",
            )
            messages = [("user", prompt)] if isinstance(prompt, str) else prompt
            text = self.tokenizer.apply_chat_template(
                [{"role": role, "content": content} for role, content in messages],
                tokenize=False,
                add_generation_prompt=True,
                **self.chat_options,
            )
            ids = self.tokenizer(text, add_special_tokens=False).input_ids
        else:
            ids = self.tokenizer(prompt).input_ids
        require(len(ids) > 0, "the prompt is empty: type something to continue")
        return torch.tensor([ids])


def load_pair(
    name: str = "embedded",
    *,
    target: str | None = None,
    draft: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    fast: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Pair:
    """Loads a pair of `PAIRS`, with target or draft (a path or a hub id) replaced if given.

    device: "auto" takes cuda, then mps, then cpu. dtype: "auto" takes float32 on the CPU, elsewhere
        the pair's own, or bfloat16 for a target that was given.
    fast: run a Llama or Qwen3 target, and the draft, through our own forward pass: on the CPU with reordered weights, on CUDA
        with replayed graphs. The mathematics is the same; logits differ by rounding.
    device_map: handed to transformers for the target instead of `device`, such as "auto" to spread it over GPUs.
    progress: told what is going on. Raises PairError, or `weights.WeightsUnavailable` for the embedded target.
    """
    if name not in PAIRS:
        raise PairError(f"there is no pair {name!r}; choose one of {', '.join(PAIRS)}, or give a target and a draft")
    spec = PAIRS[name]
    report = progress or (lambda _: None)
    if name == "toy":
        toy = ToyTarget()
        return Pair("toy", spec.label, toy, ToyDraft(toy), toy_tokenizer(), (1,), "cpu", "float32", {})
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16" if target else spec.dtype
    if dtype not in DTYPES:
        raise PairError(f"dtype must be auto, {', '.join(DTYPES)}, not {dtype!r}")
    place: dict[str, Any] = {"device_map": device_map} if device_map else {"device_map": {"": device}}

    target_source = target or spec.target
    if not target_source:
        target_source = str(ensure_target(report))
    report(Progress("Loading the target", None, None))
    # Here, because they take seconds, and the page is up before.
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from .cuda_graphs import GraphedDraft, GraphedTarget, warm_up
    from .draft_model import DFlashDraftModel

    disable_progress_bar()  # the page and the terminal show ours
    try:
        tokenizer = AutoTokenizer.from_pretrained(target_source)
        model, info = AutoModelForCausalLM.from_pretrained(target_source, dtype=DTYPES[dtype], output_loading_info=True, **place)
    except (OSError, ValueError, RuntimeError, AssertionError) as error:  # the last is how torch says "built without CUDA"
        raise PairError(
            f"the target {target_source} cannot be loaded on {device_map or device}; it must be a directory with a model and "
            f"its tokenizer, or a hub id: {_reason(error)}"
        ) from error
    if info["missing_keys"]:  # transformers would leave them at random
        raise PairError(f"the target {target_source} lacks weights: {', '.join(sorted(info['missing_keys'])[:3])}")
    stops = stop_token_ids(model, tokenizer)
    fast = fast and model.device.type in ("cpu", *REPLAYED_ON) and supports(model)
    graphed = fast and model.device.type in REPLAYED_ON
    make_target = GraphedTarget if graphed else DecoderTarget if fast else TransformersTarget
    make_draft = GraphedDraft if graphed else DFlashDraftModel
    wrapped = _fitting(functools.partial(make_target, model.eval()))
    del model  # the fast path has taken its weights over
    report(Progress("Loading the draft", None, None))
    draft_model = _fitting(
        lambda: make_draft.from_pretrained(draft or spec.draft, dtype=DTYPES[dtype], device_map={"": str(wrapped.device)}).eval()
    )
    check_pair(wrapped, draft_model, tokenizer, stops)
    if draft_model.draft_token_ids:
        words = torch.tensor(draft_model.draft_token_ids, device=wrapped.device)
        draft_model.narrow(words, wrapped.head_of(words))
    if fast:
        pack_linears(draft_model)
    if graphed:
        report(Progress("Recording the passes", None, None))
        warm_up(draft_model, wrapped)
    custom = bool(target or draft)
    label = f"{Path(target_source).name} + {Path(draft or spec.draft).name}" if custom else spec.label
    return Pair(
        CUSTOM if custom else name, label, wrapped, draft_model, tokenizer, stops,
        str(wrapped.device), dtype, {"enable_thinking": False} if target else spec.chat_options,
        (target_source, str(draft or spec.draft)),
    )  # fmt: skip


def stop_token_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Where generation ends: the stop ids of the generation config and of the tokenizer."""
    configured = model.generation_config.eos_token_id
    ids = list(configured) if isinstance(configured, (list, tuple)) else [configured]
    return tuple(sorted({token for token in (*ids, tokenizer.eos_token_id) if token is not None}))


def check_pair(
    target: DecoderTarget | TransformersTarget,
    draft: DFlashDraftModel,
    tokenizer: PreTrainedTokenizerBase,
    stops: tuple[int, ...],
) -> None:
    """Raises PairError for what would make a draft useless or wrong, silently, with this target."""
    config = draft.config
    problems = []
    if config.hidden_size != target.hidden_size:
        problems.append(f"the draft's hidden size is {config.hidden_size}, the target's {target.hidden_size}")
    if config.vocab_size != target.vocab_size:
        problems.append(f"the draft was made for a vocabulary of {config.vocab_size}, the target has {target.vocab_size}")
    layers = getattr(config, "num_target_layers", target.num_layers)
    if layers != target.num_layers:
        problems.append(f"the draft was made for a target of {layers} layers, this one has {target.num_layers}")
    outside = [tap for tap in draft.target_layer_ids if not 0 <= tap < target.num_layers]
    if outside:
        problems.append(f"the draft taps layers {outside}, the target's end at {target.num_layers - 1}")
    if not 0 <= draft.mask_token_id < target.vocab_size:
        problems.append(f"the mask token {draft.mask_token_id} lies outside the target's vocabulary of {target.vocab_size}")
    if draft.mask_token_id in stops:
        problems.append(f"the mask token {draft.mask_token_id} is a stop token")
    if len(tokenizer) > target.vocab_size:
        problems.append(f"the tokenizer has {len(tokenizer)} tokens, the target's vocabulary {target.vocab_size}")
    if problems:
        raise PairError("this target and this draft do not fit: " + "; ".join(problems) + ". Use a draft made for this target.")


def _fitting(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ValueError as error:
        raise PairError(str(error)) from error


def _reason(error: Exception) -> str:
    """The first line of a library's error: it says what, the rest says where to read on."""
    return str(error).strip().partition("\n")[0]
