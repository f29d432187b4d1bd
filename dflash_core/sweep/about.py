"""What a reader of the results needs beside the numbers: models, hardware, versions, and the command that repeats them."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..pairs import Pair

ENDS = 1 << 20  # bytes at either end of a weight file that go into a fingerprint: reading all of a large model takes minutes


def describe(pair: Pair, command: str) -> dict[str, Any]:
    """`about` of a sweep: pair, revisions of its models, device, dtype, hardware, versions, date, and the command."""
    return {
        "pair": pair.label,
        "pair_key": pair.key,
        "sources": [revision(source) for source in pair.sources],
        "device": pair.device,
        "dtype": pair.dtype,
        "trained_block_size": pair.draft.block_size,
        "hardware": hardware(pair.device),
        "versions": {name: _version(name) for name in ("torch", "transformers", "numpy", "tokenizers")}
        | {"python": platform.python_version()},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command,
    }


def revision(source: str) -> str:
    """Name and revision of a model: the commit of a hub id, or a fingerprint of the files in a directory."""
    path = Path(source)
    if path.is_dir():
        return f"{path.name} (sha256 of its files' ends {_fingerprint(path)})"
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source, "config.json")
    return f"{source}@{Path(found).parent.name}" if isinstance(found, str) else source


def hardware(device: str) -> str:
    """The device and the processor in words."""
    threads = torch.get_num_threads()
    processor = f"{_processor()}, {os.cpu_count()} logical cores, torch with {threads} thread{'s' * (threads != 1)}"
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)}; {processor}"
    return processor


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a processor that has no name there
        return platform.processor() or platform.machine()


def _fingerprint(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name != "config.json" and path.suffix not in (".safetensors", ".bin"):
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(ENDS))
            file.seek(max(0, size - ENDS))
            digest.update(file.read(ENDS))
    return digest.hexdigest()[:16]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
