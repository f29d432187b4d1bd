"""When the page first paints, and what one more block costs it in a short and in a long text: `python benchmarks/page_cost.py`.

Runs the toy pair at B = 8 in a headless Chromium ($CHROMIUM, or one on the PATH) and reads the browser's own clocks:
main-thread time of scripts, style and layout, charts included; and the bytes that arrive from the server. Each window is
about half a second of a run; the figures are medians over the windows of all runs, with quartiles.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from playwright.sync_api import Browser, sync_playwright

from dflash_core.pairs import load_pair
from tests.served import BROWSER_OPTIONS, ENDED, ServedPage, Visitor

CLOCKS = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
PLACES = {"100": (40, 240), "2,000": (1900, 2100)}  # tokens on the page while a window lasts


@dataclass(frozen=True)
class Sample:
    """Totals since the page was opened."""

    tokens: int
    blocks: int
    main_thread_ms: float
    received: int


def watch_run(browser: Browser, page: ServedPage, seed: int, tokens: int) -> list[Sample]:
    """Samples of one run, half a second apart."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    cdp = tab.context.new_cdp_session(tab)
    cdp.send("Performance.enable")
    cdp.send("Network.enable")
    received = [0]
    streams = set()

    def answered(event: dict[str, Any]) -> None:
        if "/queue/data" in event["response"]["url"]:
            streams.add(event["requestId"])

    def arrived(event: dict[str, Any]) -> None:
        received[0] += event["dataLength"] if event["requestId"] in streams else 0

    cdp.on("Network.responseReceived", answered)
    cdp.on("Network.dataReceived", arrived)
    visitor = Visitor(tab, page.url).open(prompt="the cat", chat=0, t=1, b=8, n=tokens, seed=seed)
    visitor.press_run()
    samples = []
    while visitor.status() not in ENDED:
        tab.wait_for_timeout(500)
        clocks = {metric["name"]: metric["value"] for metric in cdp.send("Performance.getMetrics")["metrics"]}
        shown = tab.evaluate(
            "() => ['.output .tok:is(.s-plain, .s-accepted, .s-resampled, .s-bonus)', '.draft-block']"
            ".map((selector) => document.querySelectorAll(selector).length)"
        )
        samples.append(Sample(*shown, 1000 * sum(clocks[name] for name in CLOCKS), received[0]))
    tab.close()
    return samples


def first_paints(browser: Browser, page: ServedPage, visits: int) -> list[tuple[float, float]]:
    """Milliseconds to the first contentful paint, and to the recorded run on the stage; cold caches."""
    found = []
    for _ in range(visits):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        tab = context.new_page()
        tab.goto(page.url)
        tab.wait_for_selector(".output .tok")
        found.append(
            tab.evaluate("() => [performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.now()]")
        )
        context.close()
    return found


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:8.2f}  ({low:.2f} – {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2150)
    parser.add_argument("--pass-ms", type=float, default=20.0, help="time of a target pass; a real target takes longer")
    options = parser.parse_args()

    page = ServedPage(lambda name, progress: load_pair(name, progress=progress), "toy")
    page.toy.seconds_per_pass = options.pass_ms / 1000
    windows: dict[str, list[tuple[float, float]]] = {place: [] for place in PLACES}
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=BROWSER_OPTIONS)
        paints = first_paints(browser, page, options.visits)
        for seed in range(options.runs):
            samples = watch_run(browser, page, seed, options.tokens)
            for before, after in pairwise(samples):
                for place, (low, high) in PLACES.items():
                    if low <= before.tokens and after.tokens <= high and (blocks := after.blocks - before.blocks):
                        cost = (after.main_thread_ms - before.main_thread_ms) / blocks
                        windows[place].append((cost, (after.received - before.received) / blocks))
        print(f"Chromium {browser.version}, {options.runs} runs, B = 8, T = 1, {options.pass_ms:g} ms a target pass")
        browser.close()
    page.close()
    for name, times in zip(("first contentful paint", "recorded run on show"), zip(*paints, strict=True), strict=True):
        print(f"{name}, ms, {options.visits} visits: {quartiles(list(times))}")
    print("tokens    windows   main thread, ms a block        received, bytes a block")
    for place, values in windows.items():
        if len(values) < 2:
            print(f"{place:>6}    {len(values):7}   too few windows: more --runs, or a longer --pass-ms")
            continue
        costs, sizes = (list(column) for column in zip(*values, strict=True))
        print(f"{place:>6}    {len(values):7}   {quartiles(costs):28}   {quartiles(sizes)}")


if __name__ == "__main__":
    main()
