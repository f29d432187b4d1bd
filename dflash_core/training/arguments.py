"""Kinds of values on the command lines of training's tools, for argparse: it says what was wrong before anything runs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def whole(lowest: int) -> Callable[[str], int]:
    """A whole number that is not below the lowest."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, not {value}")
        return value

    return parse


def number(lowest: float, highest: float = math.inf) -> Callable[[str], float]:
    """A finite number within these bounds, both included."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (lowest <= value <= highest and math.isfinite(value)):
            bounds = f"at least {lowest:g}" if highest == math.inf else f"{lowest:g} to {highest:g}"
            raise argparse.ArgumentTypeError(f"must be a number, {bounds}, not {text!r}")
        return value

    return parse


def output_directory(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a file; a directory is needed, which need not be there yet")
    return path


def existing_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def model_source(text: str) -> str:
    """A directory, or else an id on the hub; what can only be a path has to be there."""
    if text.startswith(("/", ".", "~")) and not Path(text).expanduser().is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {text}")
    return str(Path(text).expanduser()) if text.startswith("~") else text


def device(text: str) -> str:
    try:
        kind = torch.device(text).type
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"must be cpu or cuda, or a device such as cuda:1, not {text!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("there is no CUDA device here: use cpu")
    return text


def add_part(parser: argparse.ArgumentParser, what: str, default: tuple[int, int] | None = (0, 1)) -> None:
    """--part I N: this process does every N-th of them from the I-th on."""
    text = f"do every N-th {what} from the I-th on (I from 0 to N − 1), so that N processes share the work"
    parser.add_argument("--part", type=whole(0), nargs=2, metavar=("I", "N"), default=default, action=_Part, help=text)


class _Part(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        part, of = values
        if part >= of:
            parser.error(f"--part I N: I must be 0 to N − 1, not {part} of {of}")
        setattr(namespace, self.dest, (part, of))
