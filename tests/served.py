"""The page as visitors get it, the server's objects behind it, and a visitor with a browser."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import urlencode

from torch import Tensor

from dflash_core.pairs import Pair
from dflash_core.toy import ToyCache, ToyTarget
from dflash_core.weights import Progress
from dflash_ui.page import build_page, launch_options
from dflash_ui.run import Run
from dflash_ui.run_tab import RunTab
from dflash_ui.runs import Runs

# What a visitor does takes as long as a busy machine takes; this is for what does not happen at all.
PATIENCE = 60.0
ENDED = ("done", "stopped", "error")
BROWSER_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def free_port() -> int:
    """A port nobody listens on. Gradio's own search leaves a socket open for each one that is taken."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PacedTarget(ToyTarget):
    """The toy target, as slow as a test wants it: a run shall last until the test has done something to it."""

    seconds_per_pass = 0.0

    def forward(self, token_ids: Tensor, cache: ToyCache, *, taps: Sequence[int], last_only: bool) -> tuple[Tensor, Tensor]:
        time.sleep(self.seconds_per_pass)
        return super().forward(token_ids, cache, taps=taps, last_only=last_only)


class ServedPage:
    """A page on a free port of this machine. `toy`: the target of its toy pair."""

    def __init__(self, load: Callable[[str, Callable[[Progress], None]], Pair], pair: str) -> None:
        self.toy = PacedTarget()
        self._load = load
        self.page, self.shelf = build_page(self._loaded, pair=pair)
        self.tab: RunTab = self.handler("generate").__self__
        self.runs: Runs = self.tab._runs
        self.shelf.preload()
        _, url, _ = self.page.launch(prevent_thread_lock=True, quiet=True, server_port=free_port(), **launch_options())
        self.url = url.rstrip("/")

    def _loaded(self, name: str, progress: Callable[[Progress], None]) -> Pair:
        pair = self._load(name, progress)
        return dataclasses.replace(pair, target=self.toy) if name == "toy" else pair

    def handler(self, name: str) -> Any:
        return self.page.fns[self.fn_index(name)].fn

    def fn_index(self, name: str) -> int:
        """The number by which a browser calls an event."""
        return next(index for index, event in self.page.fns.items() if event.api_name == name)

    @property
    def n_waiting(self) -> int:
        """Runs at the device: the one on it, and those in the queue."""
        return len(self.runs._queue._tickets)

    def run(self, run_id: str) -> Run:
        run = self.runs.get(run_id)
        assert run is not None
        return run

    def close(self) -> None:
        self.page.close()


def until(condition: Callable[[], object], what: str, *, within: float = PATIENCE) -> None:
    """Waits for something on the server's side."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within:g} s"
        time.sleep(0.02)


class Visitor:
    """A browser tab on the page. Every complaint of the browser is kept in `errors`."""

    FIELDS = {  # noqa: RUF012
        "prompt": "#prompt textarea",
        "t": "#temperature input[type=number]",
        "b": "#block-size input[type=number]",
        "n": "#max-new-tokens input[type=number]",
        "seed": "#seed input",
        "top_p": "#top-p input[type=number]",
        "top_k": "#top-k input[type=number]",
        "dt": "#draft-temperature input[type=number]",
    }
    BOXES = {"unlock": "#unlock input", "chat": "#chat input"}  # noqa: RUF012

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.errors: list[str] = []
        page.set_default_timeout(PATIENCE * 1000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._console)
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location['url']})")

    def open(self, **query: Any) -> Visitor:
        """Opens the page with these controls in its address, and waits until they are shown."""
        self.page.goto(f"{self.url}/?{urlencode(query)}" if query else self.url)
        self.page.wait_for_selector(".stage", state="attached")
        for name, value in query.items():
            if name in self.FIELDS and name not in ("top_p", "top_k", "dt"):  # those are under "Advanced"
                self.wait("([field, value]) => document.querySelector(field)?.value === value", [self.FIELDS[name], str(value)])
        self.page.wait_for_selector("#run:enabled", state="attached" if "tab" in query else "visible")
        return self

    def wait(self, condition: str, arg: Any = None) -> None:
        self.page.wait_for_function(condition, arg=arg)

    def eval(self, script: str, arg: Any = None) -> Any:
        return self.page.evaluate(script, arg)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def set(self, name: str, value: object) -> None:
        """Types into a control's field and leaves it."""
        self.page.fill(self.FIELDS[name], str(value))
        self.page.press(self.FIELDS[name], "Tab")
        # What was typed is in the address as soon as Gradio knows of it.
        self.wait("([name, value]) => new URLSearchParams(location.search).get(name) === value", [name, str(value)])

    def controls(self) -> dict[str, Any]:
        """What every control shows. "Advanced" must be open."""
        read = "([fields, boxes]) => Object.fromEntries([...Object.entries(fields).map(([k, s]) => [k, document.querySelector(s).value]), ...Object.entries(boxes).map(([k, s]) => [k, document.querySelector(s).checked])])"  # noqa: E501
        rule = self.page.input_value("#rule input:checked")
        return {**self.eval(read, [self.FIELDS, self.BOXES]), "rule": rule, "pair": self.page.input_value("#pair input")}

    def advanced(self) -> None:
        self.page.click("#advanced button")
        self.page.wait_for_selector("#top-p input")

    def status(self) -> str:
        return str(self.page.get_attribute(".status", "data-status"))

    def press_run(self, button: str = "#run") -> str:
        """Presses Run and waits until the run is on the stage; returns its id."""
        before = self.shown_run()
        self.page.click(button)
        self.wait("(before) => document.querySelector('.stage').dataset.run !== before", before)
        return self.shown_run()

    def shown_run(self) -> str:
        return str(self.page.get_attribute(".stage", "data-run"))

    def wait_status(self, *expected: str) -> None:
        self.wait("(expected) => expected.includes(document.querySelector('.status').dataset.status)", list(expected))

    def run(self) -> str:
        """Runs to the end, until the buttons are back; returns the run's id."""
        run = self.press_run()
        self.wait_status(*ENDED)
        self.page.wait_for_selector("#run:enabled")
        assert self.status() == "done", self.text(".status-message")
        return run

    def wait_blocks(self, at_least: int) -> None:
        self.wait("(n) => Number(document.querySelector('.stage').dataset.blocks) >= n", at_least)

    def n_blocks(self) -> int:
        return int(self.page.get_attribute(".stage", "data-blocks"))

    def output(self) -> str:
        """What a person copies who selects the whole output; browsers may leave out a newline at its very end."""
        selected = self.eval("""() => {
            getSelection().selectAllChildren(document.querySelector('.output'));
            const text = getSelection().toString();
            getSelection().removeAllRanges();
            return text;
        }""")
        return str(selected).removesuffix("\n")

    def states(self) -> Collection[str]:
        """The states of the tokens that are visible."""
        found = self.eval("""() => [...document.querySelectorAll('.output .tok')]
            .filter((node) => node.checkVisibility({ contentVisibilityAuto: false }))
            .map((node) => [...node.classList].find((name) => name.startsWith('s-')).slice(2))""")
        return set(found)

    def message(self) -> str:
        """The text of the page's messages (Gradio's toasts), waited for."""
        self.page.wait_for_selector("[data-testid=toast-body]")
        return self.text("[data-testid=toast-body]")
