"""Records the runs that the page opens on: `python -m dflash_ui.record`. Real runs of the embedded pair."""

from __future__ import annotations

import time

from dflash_core.pairs import load_pair

from .models import Shelf, make_decode
from .requests import RunRequest
from .runs import Runs
from .text import presets, recordings
from .theme import ASSETS


def main() -> None:
    shelf = Shelf(lambda name, progress: load_pair(name, progress=progress), "embedded")
    runs = Runs(shelf.steps, make_decode(shelf))
    (ASSETS / "traces").mkdir(exist_ok=True)
    for name, recording in recordings().items():
        preset = presets()[recording["preset"]]
        request = RunRequest.parse(
            preset["prompt"],
            recording["temperature"],
            recording["block_size"],
            recording["max_new_tokens"],
            recording["seed"],
            recording["rule"],
            "embedded",
            1.0,
            0,
            None,
            preset["chat"],
            pairs=("embedded",),
        )
        run = runs.start(request)
        for _ in runs.payloads(run):
            pass
        if run.status != "done":
            raise SystemExit(f"{name}: {run.message}")
        run.about |= {"recorded": time.strftime("%Y-%m-%d"), "title": recording["title"]}
        path = ASSETS / "traces" / f"{name}.jsonl"
        path.write_text(run.trace(), encoding="utf-8")
        stats = run.stats()
        print(f"{path.name}: τ = {stats.tau:.2f} over {stats.n_blocks} blocks, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
