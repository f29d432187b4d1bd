"""Traces on the page, in a browser: opened, chosen, compared, handed out, and refused where they are no good."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from dflash_core.trace import parse_trace
from dflash_ui.opened import read_run
from dflash_ui.page import recorded_runs
from dflash_ui.run import Run
from tests.served import ServedPage, Visitor
from tests.test_runs import done_run, toy_runs

pytestmark = pytest.mark.browser
HOSTILE_MARKS = "() => document.querySelectorAll('.stage :is(img, script, iframe)').length + Number('hacked' in window)"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Run]]:
    """Two runs of the toy pair, whose vocabulary holds markup, as files."""
    folder = tmp_path_factory.mktemp("traces")
    runs = {"one": done_run(toy_runs(), rule="speculative"), "two": done_run(toy_runs(), rule="speculative", block_size=3)}
    files = {name: folder / f"{name} <b>.jsonl" for name in runs}
    for name, run in runs.items():
        files[name].write_text(run.trace(), encoding="utf-8")
    return {name: (files[name], run) for name, run in runs.items()}


def arrive(browser: Any, page: ServedPage, **query: Any) -> tuple[Any, Visitor]:
    tab = browser.new_page(viewport={"width": 1280, "height": 1000}, accept_downloads=True)
    return tab, Visitor(tab, page.url).open(**query)


def choose_files(visitor: Visitor, *paths: Path) -> None:
    visitor.page.set_input_files(".menu input[type=file]", list(paths))


def drop(visitor: Visitor, path: Path) -> None:
    """As a file manager does: over the page, then let go."""
    visitor.eval(
        """([text, name]) => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([text], name));
            const send = (type) => document.querySelector('#page-head').dispatchEvent(
                new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
            const overlay = getComputedStyle(document.querySelector('.drop-target'));
            window.seen = [overlay.display];
            send('dragover');
            window.seen.push(overlay.display);
            send('drop');
            window.seen.push(overlay.display);
        }""",
        [path.read_text(encoding="utf-8"), path.name],
    )


def show(visitor: Visitor, label: str) -> None:
    visitor.page.select_option(".menu .run-select", label=label)
    visitor.wait("(label) => document.querySelector('.status-message').textContent === label", label)


def shown_label(visitor: Visitor) -> str:
    return str(visitor.eval("() => document.querySelector('.menu .run-select').selectedOptions[0].textContent"))


def refusal(visitor: Visitor, path: Path) -> str:
    choose_files(visitor, path)
    visitor.wait("(name) => document.querySelector('.menu-said').textContent.includes(name)", path.name)
    return visitor.text(".menu-said")


def export(visitor: Visitor, button: str) -> str:
    with visitor.page.expect_download() as download:
        visitor.page.click(f".actions button:has-text('{button}')")
    return Path(download.value.path()).read_bytes().decode("utf-8")


def test_files_are_opened_compared_and_handed_on_without_any_model(
    browser: Any, unloaded_page: ServedPage, saved: dict[str, tuple[Path, Run]], tmp_path: Path
) -> None:
    tab, visitor = arrive(browser, unloaded_page)
    recorded = recorded_runs()[0]
    visitor.wait_blocks(len(recorded.blocks))
    assert shown_label(visitor) == recorded.message
    (one_file, one), (two_file, two) = saved["one"], saved["two"]

    choose_files(visitor, one_file)
    visitor.wait("(name) => document.querySelector('.status-message').textContent === name", one_file.name)
    visitor.wait_blocks(len(one.blocks))
    assert shown_label(visitor) == one_file.name and visitor.status() == "recorded"
    assert "recorded on" in visitor.text(".facts") and "<script>" in visitor.text(".output")

    drop(visitor, two_file)
    visitor.wait("(name) => document.querySelector('.status-message').textContent === name", two_file.name)
    assert visitor.eval("() => window.seen") == ["none", "grid", "none"]
    show(visitor, recorded.message)
    assert visitor.n_blocks() == len(recorded.blocks)
    show(visitor, one_file.name)
    tab.click("#tabs button[data-tab-id=block]")
    tab.wait_for_selector(".inspector .block-says li")
    assert visitor.text(".block-title") == f"Block 1 of {len(one.blocks) - 1}"

    tab.click("#tabs button[data-tab-id=compare]")
    tab.wait_for_selector(".comparison .js-plotly-plot .scatterlayer")
    selects = tab.locator(".comparison .run-select")
    assert [selects.nth(i).evaluate("(node) => node.selectedOptions[0].textContent") for i in (0, 1)] == [
        two_file.name,
        one_file.name,
    ]
    assert [row.split() for row in tab.locator(".compare-table tr.differs").all_inner_texts()] == [
        ["Block", "size", "B", "(differs)", "3", "5"]
    ]
    assert f"{two.stats().tau:.2f} (" in visitor.text(".compare-table >> nth=1")
    assert "then part" in visitor.text(".compare-says") and tab.locator(".compare-text .own").count() > 4
    tab.click(".comparison button[title='Swap A and B']")
    visitor.wait("(name) => document.querySelector('.compare-table tr.differs td').textContent === '5'")
    selects.nth(0).select_option(label=one_file.name)
    selects.nth(1).select_option(label=one_file.name)
    visitor.wait("() => document.querySelector('.compare-says')?.textContent.startsWith('Both texts are the same')")

    tab.click("#tabs button[data-tab-id=lossless]")
    tab.click("#law-run input")
    tab.click(f"#law-run [role=option]:has-text('{two_file.name}')")
    visitor.wait("() => document.querySelector('#law-position input').value.startsWith('block')")

    tab.click("#tabs button[data-tab-id=run]")
    assert export(visitor, "Download trace") == one.trace()
    table = list(csv.DictReader(io.StringIO(export(visitor, "CSV"), newline="")))
    assert len(table) == sum(len(block.judged) for block in one.blocks)
    summary = json.loads(export(visitor, "JSON"))
    assert summary["metrics"]["speculative_decoding"]["num_spec_steps"] == one.stats().n_blocks
    page = export(visitor, "Web page")
    with tab.expect_download() as download:
        tab.click(".chart-lengths .save-image:has-text('SVG')")
    assert Path(download.value.path()).read_text(encoding="utf-8").startswith("<svg")
    with tab.expect_download() as download:
        tab.click(".chart-positions .save-image:has-text('PNG')")
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
    assert visitor.eval(HOSTILE_MARKS) == 0 and visitor.errors == []
    assert unloaded_page.shelf.pair is None
    tab.close()
    opens_from_disk(browser, tmp_path / "run.html", page, read_run(one.trace(), one_file.name, "x"))


def opens_from_disk(browser: Any, path: Path, page: str, run: Run) -> None:
    """The web page of a run, without a server or a network."""
    path.write_text(page, encoding="utf-8")
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 900}, color_scheme="dark")
    tab = context.new_page()
    visitor = Visitor(tab, "")
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    visitor.wait("(n) => Number(document.querySelector('.stage')?.dataset.blocks) === n", len(run.blocks))
    tab.wait_for_selector(".chart-lengths .js-plotly-plot .bars")
    assert visitor.text("h1") == f"DFlash Lab: {run.message}" and "<b>" in run.message
    assert "<script>" in visitor.text(".output")
    assert visitor.text(".figure-tau .value") == f"{run.stats().tau:.2f}"
    block = next(view for view in run.views[1:] if view["kept"] < view["n_drafted"])
    tab.locator(f".draft-block[data-block='{block['i']}'] .tok.s-rejected").dblclick()
    assert visitor.text(".block-title") == f"Block {block['i']} of {len(run.blocks) - 1}"
    assert (
        visitor.eval("() => document.documentElement.classList.contains('dark') && document.documentElement.scrollWidth") == 390
    )
    assert visitor.eval(HOSTILE_MARKS) == 0 and visitor.errors == []
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    context.close()


def test_bad_files_give_a_message_and_the_page_goes_on(
    browser: Any, toy_page: ServedPage, saved: dict[str, tuple[Path, Run]], tmp_path: Path
) -> None:
    tab, visitor = arrive(browser, toy_page, prompt="the cat", chat=0, pair="toy", t=0.9, b=4, n=40, seed=3)
    before = visitor.shown_run()
    good_file, good = saved["one"]
    lines = [json.loads(line) for line in good.trace().split("\n")[:-1]]

    def file(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    def written(name: str, first: dict[str, Any], rest: list[dict[str, Any]]) -> Path:
        return file(name, "".join(json.dumps(line) + "\n" for line in [first, *rest]))

    hostile = json.loads(json.dumps(lines))
    hostile[3]["text"][0]["t"] = {"path": "app.py", "meta": {"_type": "gradio.FileData"}}
    for path, said in (
        (file("broken.jsonl", good.trace()[:-40]), f"line {len(lines)}: not valid JSON"),
        (file("picture <img src=x onerror=alert(1)>.jsonl", "\x89PNG\x00"), "line 1: not valid JSON"),
        (written("future.jsonl", lines[0] | {"version": 9}, lines[1:]), "version 9 cannot be read"),
        (written("hostile.jsonl", hostile[0], hostile[1:]), 'line 4: "text": must be text'),
        (written("bomb.jsonl", lines[0] | {"block_size": 10**9}, lines[1:]), 'line 1: "block_size"'),
        (file("nested.jsonl", "[" * 100_000), "line 1: not valid JSON"),
        (file("empty.jsonl", ""), "the file is empty"),
        (file("huge.jsonl", "x" * 50_000_000), "50.0 MB, and traces up to 24.0 MB"),
    ):
        assert said in refusal(visitor, path)
        assert visitor.shown_run() == before
    # A good one among bad ones is opened, the bad one named.
    choose_files(visitor, tmp_path / "broken.jsonl", good_file)
    visitor.wait("(name) => document.querySelector('.status-message').textContent === name", good_file.name)
    assert "broken.jsonl" in visitor.text(".menu-said") and good_file.name not in visitor.text(".menu-said")

    # The page still runs; and what it made stays within reach when the next run begins.
    first = visitor.run()
    visitor.set("seed", 4)
    second = visitor.run()
    assert shown_label(visitor).startswith("Run 2: match, T 0.9, B 4, seed 4")
    tab.select_option(".menu .run-select", value=first)
    visitor.wait("(id) => document.querySelector('.stage').dataset.run === id", first)
    assert visitor.n_blocks() == len(toy_page.run(first).blocks)
    assert parse_trace(export(visitor, "Download trace")).generation.params.seed == 3
    # Plain decoding is measured for the last run, which comes back on the stage for that.
    tab.click("#plain")
    visitor.wait("(id) => document.querySelector('.stage').dataset.run === id", second)
    visitor.wait("() => document.querySelector('.figure-speedup .value').textContent.endsWith('×')")
    # A run that the server has forgotten.
    del toy_page.runs._runs[first]
    tab.select_option(".menu .run-select", value=first)
    tab.wait_for_selector(".menu-said:has-text('no longer kept')")
    assert visitor.shown_run() == second and shown_label(visitor).startswith("Run 2")
    assert visitor.eval(HOSTILE_MARKS) == 0 and visitor.errors == []
    tab.close()
