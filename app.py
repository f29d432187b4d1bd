"""DFlash Lab: reads the arguments, builds the page and serves it. Importing this module loads no model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

with suppress(ImportError):
    import spaces  # noqa: F401 - on ZeroGPU it must be imported before anything touches CUDA

from dflash_core.pairs import CUSTOM, DTYPES, PAIRS, Pair, load_pair
from dflash_core.weights import Progress, print_progress
from dflash_ui.page import build_page, launch_options

ON_ZERO_GPU = os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="app.py",
        description="DFlash Lab: see and measure speculative decoding with a block-diffusion draft.",
        epilog="Pairs: " + "; ".join(f"{key}: {spec.label}, {spec.memory}" for key, spec in PAIRS.items()),
    )
    default_pair = os.environ.get("DFLASH_LAB_PAIR") or ("qwen3-4b" if ON_ZERO_GPU else "embedded")
    parser.add_argument("--pair", choices=PAIRS, default=default_pair, help="model pair to offer first (default: %(default)s)")
    parser.add_argument("--target", metavar="PATH_OR_ID", help="another target: a directory or a hub id; needs --draft")
    parser.add_argument("--draft", metavar="PATH_OR_ID", help="another draft, in the published DFlash format")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps … (default: cuda, else mps, else cpu)")
    parser.add_argument("--dtype", choices=["auto", *DTYPES], default="auto", help="default: float32 on cpu, else the pair's own")
    parser.add_argument("--device-map", metavar="MAP", help='spread the target over devices, such as "auto"')
    parser.add_argument(
        "--no-fast-path", dest="fast", action="store_false", help="run the target through transformers, without CUDA graphs"
    )
    parser.add_argument("--host", default=None, help="address to listen on (default: 127.0.0.1; 0.0.0.0 lets others in)")
    parser.add_argument("--port", type=int, default=None, help="default: 7860, or the next free one")
    parser.add_argument("--share", action="store_true", help="open a public tunnel to this page (off by default)")
    options = parser.parse_args(arguments)
    if options.target and not options.draft:
        parser.error("--target needs --draft: a draft fits only the target it was made for")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse_arguments(arguments)
    custom = bool(options.target or options.draft)

    def load(name: str, progress: Callable[[Progress], None]) -> Pair:
        def report(step: Progress) -> None:
            print_progress(step)
            progress(step)

        own = name == CUSTOM
        return load_pair(
            options.pair if own else name,
            target=options.target if own else None,
            draft=options.draft if own else None,
            device=options.device,
            dtype=options.dtype,
            device_map=options.device_map,
            fast=options.fast,
            progress=report,
        )

    label = f"{Path(options.target or options.pair).name} + {Path(options.draft).name}" if custom else None
    page, shelf = build_page(load, pair=CUSTOM if custom else options.pair, label=label, only=ON_ZERO_GPU)
    if ON_ZERO_GPU:
        shelf.load_now()
    else:
        shelf.preload()
    page.launch(server_name=options.host, server_port=options.port, share=options.share, **launch_options())


if __name__ == "__main__":
    main()
