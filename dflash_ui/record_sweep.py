"""Makes the sweep that ships with the page from a sweep's directory. It was measured, and is measured again, by

    python -m dflash_core.sweep --out sweep --prompts assets/sweep_prompts.jsonl --temperatures 0 0.3 0.6 0.9 1.2 1.5 \\
        --block-sizes 2 4 8 16 --rules match greedy-match speculative coupled --tokens 32 --rows 12 --timed-prompts 3
    python -m dflash_ui.record_sweep sweep
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import shlex
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_core.pairs import load_pair
from dflash_core.sweep.lines import dump_run
from dflash_core.sweep.outputs import write_results
from dflash_core.sweep.runs import CellRun
from dflash_core.sweep.store import SweepDirectory, write_file

from .recorded_sweep import COPIED, LINES, RUNS, TOKENIZER
from .sweeps import RunLine
from .theme import ASSETS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_BYTES = 1_300_000  # of the runs, compressed; the figures come to about half a megabyte more


def main() -> None:
    parser = argparse.ArgumentParser("dflash_ui.record_sweep", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path, help="of a finished sweep")
    parser.add_argument("--out", type=Path, default=ASSETS / "sweep", help="default: where the page looks for it")
    options = parser.parse_args()
    try:
        directory = SweepDirectory.open(options.directory)
        tokenizer = load_pair(str(directory.about["pair_key"])).tokenizer
        record(directory, options.out, tokenizer)
    except ValueError as error:
        raise SystemExit(f"record_sweep: {error}") from error
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{options.out}: {size:,} bytes")


def record(directory: SweepDirectory, out: Path, tokenizer: PreTrainedTokenizerBase, *, most_bytes: int = MOST_BYTES) -> None:
    """Writes the recorded sweep. Raises ValueError if the sweep has no run or cannot be written."""
    runs = directory.runs()
    if not runs:
        raise ValueError(f"{directory.path} has no finished run yet")
    write_results(directory)
    out.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copyfile(directory.path / name, out / name)
    command = str(directory.about["command"])
    for name in ("sweep.json", "summary.json"):
        text = (out / name).read_text(encoding="utf-8").replace(json.dumps(command), json.dumps(_anywhere(command)))
        write_file(out / name, _compact(json.loads(text)))
    write_file(out / LINES, _compact([_line(RunLine.of(run)) for run in runs]))
    kept, packed = _fitting(directory, runs, most_bytes)
    (out / RUNS).write_bytes(packed)
    ids = {token for run in kept for block in run.blocks for token in (*block.drafted, *block.emitted, block.anchor)}
    ids |= {token for run in kept for token in directory.prompt_ids[run.key.prompt]}
    write_file(out / TOKENIZER, _compact(decoding_part(tokenizer, ids)))


def decoding_part(tokenizer: PreTrainedTokenizerBase, ids: Collection[int]) -> dict[str, Any]:
    """A tokenizer.json that decodes these ids, and the letter that token texts are read after, as the whole one does."""
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    wanted = sorted({*ids, *tokenizer("a", add_special_tokens=False).input_ids})
    vocabulary = {str(tokenizer.convert_ids_to_tokens(token)): token for token in wanted}
    # An added token that the vocabulary does not have would be given another id.
    vocabulary |= {token["content"]: token["id"] for token in whole["added_tokens"]}
    unknown = str(tokenizer.unk_token or next(iter(vocabulary)))
    return whole | {
        "normalizer": None,
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown},
    }


def _fitting(directory: SweepDirectory, runs: list[CellRun], most_bytes: int) -> tuple[list[CellRun], bytes]:
    """The runs of as many prompts, from the first on, as fit; at least of one. With their lines, compressed."""
    kept: list[CellRun] = []
    packed = b""
    for prompt in range(len(directory.plan.prompts)):
        more = [*kept, *(run for run in runs if run.key.prompt == prompt)]
        lines = "".join(dump_run(run, directory.plan) for run in more)
        size = gzip.compress(lines.encode("utf-8"), mtime=0)
        if kept and len(size) > most_bytes:
            break
        kept, packed = more, size
    return kept, packed


def _anywhere(command: str) -> str:
    """The command with a directory that any machine can have."""
    words = shlex.split(command)
    words[words.index("--out") + 1] = "sweep"
    return shlex.join(words)


def _line(line: RunLine) -> list[Any]:
    return [list(dataclasses.astuple(line.key.cell)), line.key.prompt, line.key.seed, *dataclasses.astuple(line)[1:]]


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    main()
