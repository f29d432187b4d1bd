"""`python app.py` as a person starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import app
from dflash_core.pairs import PAIRS
from tests.served import Visitor

ROOT = Path(app.__file__).resolve().parent
NO_WEIGHTS = {"PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without weights and without a network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DFLASH_LAB")}
    return {**kept, **NO_WEIGHTS, "DFLASH_LAB_CACHE": str(tmp_path / "cache")}


def python(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


def test_help_lists_the_options(bare: dict[str, str]) -> None:
    done = python("app.py", "--help", env=bare)
    assert done.returncode == 0 and done.stderr == ""
    for option in ("--pair", "--target", "--draft", "--device", "--dtype", "--device-map", "--host", "--port", "--share"):
        assert option in done.stdout
    assert all(key in done.stdout for key in PAIRS)


def test_importing_it_starts_nothing(bare: dict[str, str], tmp_path: Path) -> None:
    script = """
import socket, sys, threading
def refuse(*_): raise AssertionError("the import opened a connection")
socket.socket.connect = refuse
import app
import gc, transformers
assert threading.active_count() == 1, threading.enumerate()
assert not any(issubclass(type(each), transformers.PreTrainedModel) for each in gc.get_objects()), "a model was loaded"
assert callable(app.main)
"""
    done = python("-c", script, env=bare)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "some/model"], "--target needs --draft"),
        (["--pair", "gpt"], "invalid choice: 'gpt'"),
        (["--dtype", "int3"], "invalid choice: 'int3'"),
        (["--port", "x"], "invalid int value"),
    ],
)
def test_arguments_that_cannot_work(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app.parse_arguments(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_usual_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DFLASH_LAB_PAIR", raising=False)
    options = app.parse_arguments([])
    assert (options.pair, options.target, options.draft, options.host, options.share) == ("embedded", None, None, None, False)
    monkeypatch.setenv("DFLASH_LAB_PAIR", "toy")
    assert app.parse_arguments([]).pair == "toy"
    assert app.parse_arguments(["--draft", "d"]).draft == "d"


@pytest.fixture
def served(bare: dict[str, str]) -> Iterator[str]:
    """The address of `python app.py` on that machine."""
    process = subprocess.Popen(
        [sys.executable, "app.py"], cwd=ROOT, env=bare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                break
        else:
            pytest.fail("the page was not served:\n" + "".join(said))
    finally:
        watchdog.cancel()
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.browser
def test_without_weights_the_page_opens_and_says_what_to_do(browser: Any, served: str) -> None:
    page = browser.new_page()
    visitor = Visitor(page, served)
    visitor.open()
    page.wait_for_selector("#model-status >> text=DFLASH_LAB_TARGET")
    visitor.press_run()
    visitor.wait_status("error")
    assert "DFLASH_LAB_TARGET" in visitor.text(".status-message")
    page.wait_for_selector("#run:enabled")
    assert not page.is_enabled("#stop")
    page.close()
    assert visitor.errors == []


def test_the_page_starts_without_the_library_of_models() -> None:
    """transformers takes seconds to import; the page is up before."""
    code = "import sys, app; sys.exit('transformers' in sys.modules or 'scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
