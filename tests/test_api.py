"""What answers requests from outside: the endpoint for scripts, and whatever else can be reached, with values meant badly."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from dflash_core.pairs import EMBEDDED_DRAFT, load_pair
from dflash_core.trace import parse_trace
from dflash_ui import theme
from tests.served import ServedPage, until

ROOT = Path(theme.ASSETS).parent
DEFAULTS: dict[str, Any] = {
    "prompt": "the cat",
    "temperature": 0.7,
    "block_size": 4,
    "max_new_tokens": 12,
    "seed": 1,
    "rule": "match",
    "pair": "",
    "top_p": 1.0,
    "top_k": 0,
    "draft_temperature": None,
    "chat": False,
}
LONG = "x" * 25_000

# (argument, value, what the message must say)
BAD: list[tuple[str, Any, str]] = [
    ("prompt", "", "prompt is empty"),
    ("prompt", " \n\t", "prompt is empty"),
    ("prompt", None, "prompt must be text"),
    ("prompt", 5, "prompt must be text"),
    ("prompt", ["a"] * 10_000, "prompt must be text"),
    ("prompt", LONG, "25,000 characters"),
    ("temperature", -0.1, "from 0 to 2"),
    ("temperature", 2.01, "from 0 to 2"),
    ("temperature", math.nan, "from 0 to 2"),
    ("temperature", math.inf, "from 0 to 2"),
    ("temperature", 10**400, "from 0 to 2"),
    ("temperature", "hot", "from 0 to 2"),
    ("temperature", None, "from 0 to 2"),
    ("temperature", True, "from 0 to 2"),
    ("temperature", LONG, "from 0 to 2"),
    ("block_size", 0, "from 1 to 32"),
    ("block_size", 33, "from 1 to 32"),
    ("block_size", 2.5, "whole number"),
    ("block_size", math.nan, "whole number"),
    ("max_new_tokens", 0, "from 1 to 4,096"),
    ("max_new_tokens", 10**9, "from 1 to 4,096"),
    ("max_new_tokens", [], "from 1 to 4,096"),
    ("seed", -1, "whole number from 0"),
    ("seed", 2**64, "whole number from 0"),
    ("rule", "lucky", "must be one of match"),
    ("rule", {"a": 1}, "rule must be"),
    ("rule", LONG, "must be one of match"),
    ("pair", "gpt", "must be one of toy"),
    ("pair", ["toy"], "must be one of toy"),
    ("top_p", 0, "must be above 0"),
    ("top_p", 1.5, "from 0 to 1"),
    ("top_k", -1, "from 0 to 1,000"),
    ("draft_temperature", -1, "from 0 to 2"),
    ("draft_temperature", "x", "from 0 to 2"),
    ("chat", "yes", "true or false"),
    ("chat", None, "true or false"),
    ("chat", True, "no chat template"),
]


@pytest.fixture(scope="module")
def http(toy_page: ServedPage) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{toy_page.url}/gradio_api/", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(toy_page: ServedPage) -> Iterator[Client]:
    client = Client(toy_page.url, verbose=False)
    yield client
    client.close()


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()  # NaN and Infinity go through, as a hostile client would have it


def call(http: httpx.Client, **changes: Any) -> tuple[str, Any]:
    """Asks `generate` by hand. Returns the kind of the answer, complete or error, and its data."""
    data = as_json({"data": list({**DEFAULTS, **changes}.values())})
    asked = http.post("call/generate", content=data, headers={"content-type": "application/json"})
    assert asked.status_code == 200, asked.text
    lines = http.get(f"call/generate/{asked.json()['event_id']}").text.strip().splitlines()
    answer = dict(line.split(": ", 1) for line in lines[-2:])
    return answer["event"], json.loads(answer["data"])


def event(http: httpx.Client, page: ServedPage, name: str, values: list[Any]) -> dict[str, Any]:
    """Calls one of the page's own events by its number, as a browser does; the last message about it."""
    session = uuid4().hex
    body = as_json({"data": values, "fn_index": page.fn_index(name), "session_hash": session})
    asked = http.post("queue/join", content=body, headers={"content-type": "application/json"})
    assert asked.status_code == 200, asked.text
    with http.stream("GET", "queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                message = json.loads(line.removeprefix("data:"))
                if message["msg"] == "process_completed":
                    return dict(message)
    raise AssertionError("no answer")


def server_function(http: httpx.Client, page: ServedPage, name: str, value: Any) -> httpx.Response:
    body = {"data": value, "component_id": page.tab.stage._id, "fn_name": name, "session_hash": "anyone"}
    return http.post("component_server", content=as_json(body), headers={"content-type": "application/json"})


def test_a_script_gets_text_ids_figures_and_trace(client: Client) -> None:
    result = client.predict(**{**DEFAULTS, "max_new_tokens": 60}, api_name="/generate")
    pair = load_pair("toy")
    assert result["text"] == pair.tokenizer.decode(result["token_ids"]) and len(result["token_ids"]) == 60
    assert result["finish_reason"] == "length"
    assert result["stats"]["n_tokens"] == 60 and result["stats"]["tau"] > 1
    trace = parse_trace(result["trace"])
    assert list(trace.generation.token_ids) == result["token_ids"]
    assert trace.generation.params.temperature == 0.7 and trace.about["prompt"] == "the cat"
    again = client.predict(**{**DEFAULTS, "max_new_tokens": 60, "block_size": 1}, api_name="/generate")
    assert again["token_ids"] == result["token_ids"]  # the rule's promise


def test_only_generate_is_offered(client: Client) -> None:
    assert list(client.view_api(return_format="dict", print_info=False)["named_endpoints"]) == ["/generate"]


@pytest.mark.parametrize(("name", "value", "said"), BAD, ids=lambda part: repr(part)[:24])
def test_bad_values_are_named(http: httpx.Client, name: str, value: Any, said: str) -> None:
    kind, data = call(http, **{name: value})
    assert kind == "error"
    message = data["error"]
    assert said in message and "Traceback" not in message and len(message) < 300


def test_the_client_gets_the_same_messages(client: Client) -> None:
    for name, value, said in BAD:
        if isinstance(value, float) and not math.isfinite(value):
            continue  # the client itself refuses these
        with pytest.raises(AppError) as error:
            client.predict(**{**DEFAULTS, name: value}, api_name="/generate")
        assert said in str(error.value)
    assert client.predict(**DEFAULTS, api_name="/generate")["token_ids"]


def test_other_shapes_of_a_request_break_nothing(http: httpx.Client) -> None:
    for body in (b"{", b'{"data": {"prompt": 1}}', b"[]", b"null"):
        assert http.post("call/generate", content=body, headers={"content-type": "application/json"}).status_code == 422
    kind, _ = call(http, prompt={"path": str(ROOT / "app.py"), "meta": {"_type": "gradio.FileData"}})
    assert kind == "error"
    kind, data = call(http, prompt="\ud800 the \u2028 \0 \U0001f34e")
    assert kind == "complete" and parse_trace(data[0]["trace"])


def test_the_pages_own_events_check_what_they_get(http: httpx.Client, toy_page: ServedPage) -> None:
    good = ["the cat", 0.7, 8, 12, 0, "match", "toy", 1.0, 0, False, 0.7, False]
    answer = event(http, toy_page, "on_run", good)
    assert answer["success"]
    for place, value in (
        (0, ""),
        (0, LONG),
        (1, math.nan),
        (1, 99),
        (1, None),
        (1, "x"),
        (2, 2.5),
        (2, 99),
        (3, 10**9),
        (4, -1),
        (4, None),
        (5, "lucky"),
        (6, "../app.py"),
        (7, math.nan),
        (8, 0.5),
        (11, "no"),
    ):
        answer = event(http, toy_page, "on_run", [value if i == place else kept for i, kept in enumerate(good)])
        assert not answer["success"], (place, value)
        assert "Traceback" not in str(answer)
    assert not event(http, toy_page, "on_plain", [])["success"]  # this session has no run
    assert event(http, toy_page, "on_stop", [])["success"]
    assert event(http, toy_page, "on_run", good)["success"]
    assert toy_page.n_waiting == 0


def test_server_functions_give_nothing_away(http: httpx.Client, toy_page: ServedPage) -> None:
    _, data = call(http)
    assert data[0]["token_ids"]
    known = next(reversed(toy_page.runs._runs))
    hostile: list[Any] = [None, 0, -1, 1.5, True, "", "x", "../app.py", [], [known], {}, {"run": known}]
    for value in (*hostile, {"run": known, "start": -1}, {"run": known, "start": "0"}, {"run": known, "start": None}):
        answer = server_function(http, toy_page, "get_run", value)
        assert (answer.status_code, answer.json()) == (200, None), value
    for value in (*hostile, {"run": [known], "start": 0}, {"run": {"a": known}, "start": 0}):
        answer = server_function(http, toy_page, "get_trace", value)
        assert (answer.status_code, answer.json()) == (200, None), value
    beyond = json.loads(server_function(http, toy_page, "get_run", {"run": known, "start": 10**30}).json())
    assert beyond["w"] == [] and beyond["head"] is None
    whole = json.loads(server_function(http, toy_page, "get_run", {"run": known, "start": 0}).json())
    assert len(whole["w"]) == whole["n"] > 0 and whole["head"]["prompt_tokens"] == 2
    assert parse_trace(server_function(http, toy_page, "get_trace", known).json())
    for name in ("postprocess", "__init__", "stage_functions", ""):
        assert server_function(http, toy_page, name, known).status_code == 404


def test_nothing_but_scripts_and_styles_is_served(http: httpx.Client) -> None:
    for path in ("app.py", "dflash_core/weights.py", "assets/text.json", "assets/js/../text.json", "README.md"):
        assert http.get(f"file={path}").status_code == 403
        assert http.get(f"file={ROOT / path}").status_code == 403
    assert http.get(f"file={EMBEDDED_DRAFT / 'model.safetensors'}").status_code == 403
    assert http.get("file=assets/js/..%2f..%2fapp.py").status_code == 403
    assert http.get("file=/etc/passwd").status_code == 403
    assert http.get(f"file={theme.ASSETS / 'js' / 'stage.js'}").status_code == 200


def test_many_scripts_leave_the_page_usable(http: httpx.Client, toy_page: ServedPage) -> None:
    toy_page.toy.seconds_per_pass = 0.03
    try:
        data = as_json({"data": list({**DEFAULTS, "max_new_tokens": 8}.values())})
        for _ in range(40):
            http.post("call/generate", content=data, headers={"content-type": "application/json"})
        assert toy_page.n_waiting < 20
        asked = http.get("../config")
        assert asked.status_code == 200
        assert event(http, toy_page, "on_run", ["the cat", 0.7, 8, 4, 0, "match", "toy", 1.0, 0, False, 0.7, False])["success"]
    finally:
        toy_page.toy.seconds_per_pass = 0.0
    until(lambda: toy_page.n_waiting == 0, "the scripts are served")
