"""The controls of a run: what they are, what they start with, and how the page's address carries them."""

from __future__ import annotations

import html
import json
import random
from typing import Any

import gradio as gr

from dflash_core.verify import RULES

from .requests import MAX_BLOCK_SIZE, MAX_NEW_TOKENS, MAX_SEED, MAX_TEMPERATURE, MAX_TOP_K, RunRequest
from .text import presets, text
from .theme import ASSETS

USUAL_BLOCK_SIZE = 16
MAX_ADDRESS_PROMPT = 1500  # characters; a longer prompt stays out of the address

# The controls by their names in the address, with the value a visitor finds. In the order of `RunRequest.parse`, where
# the draft temperature counts as None while it is locked.
DEFAULTS: dict[str, Any] = {
    "prompt": presets()["List of facts"]["prompt"],
    "t": 0.7,
    "b": 8,
    "n": 128,
    "seed": 0,
    "rule": "match",
    "pair": "",
    "top_p": 1.0,
    "top_k": 0,
    "unlock": False,
    "dt": 0.7,
    "chat": True,
}


class Controls:
    """Builds the controls inside the current layout. `inputs`: the components by their names in `DEFAULTS`."""

    def __init__(self, pairs: dict[str, str], first_pair: str) -> None:
        """pairs: key → label of the model pairs on offer."""
        self._pairs = pairs
        self._defaults = {**DEFAULTS, "pair": first_pair}
        value = self._defaults
        self.preset = gr.Dropdown(list(presets()), value=None, **_named("preset"))
        prompt = gr.Textbox(value["prompt"], lines=3, max_lines=10, **_named("prompt"))
        with gr.Row():
            self.run = gr.Button(text("controls", "run"), variant="primary", elem_id="run", min_width=120)
            self.stop = gr.Button(text("controls", "stop"), interactive=False, elem_id="stop", min_width=80)
        temperature = gr.Slider(0, MAX_TEMPERATURE, value["t"], step=0.05, **_named("temperature"))
        block_size = gr.Slider(1, USUAL_BLOCK_SIZE, value["b"], step=1, **_named("block_size"))
        rule = gr.Radio([(rule.label, key) for key, rule in RULES.items()], value=value["rule"], **_named("rule"))
        self.rule_summary = gr.Markdown(rule_summaries()[value["rule"]], elem_id="rule-summary")
        max_new_tokens = gr.Slider(1, MAX_NEW_TOKENS, value["n"], step=1, **_named("max_new_tokens"))
        with gr.Row(elem_id="seed-row"):
            seed = gr.Number(value["seed"], precision=0, minimum=0, maximum=MAX_SEED, min_width=120, **_named("seed"))
            self.dice = gr.Button(text("controls", "dice"), elem_id="dice", scale=0, min_width=110)
        choices = [(label, key) for key, label in pairs.items()]
        pair = gr.Dropdown(choices, value=first_pair, **_named("pair"))
        self.plain = gr.Button(text("controls", "plain"), elem_id="plain")
        with gr.Accordion(text("controls", "advanced"), open=False, elem_id="advanced"):
            top_p = gr.Slider(0.05, 1, value["top_p"], step=0.05, **_named("top_p"))
            top_k = gr.Slider(0, MAX_TOP_K, value["top_k"], step=1, **_named("top_k"))
            unlock = gr.Checkbox(value["unlock"], **_named("unlock"))
            draft_temperature = gr.Slider(
                0, MAX_TEMPERATURE, value["dt"], step=0.05, interactive=False, **_named("draft_temperature")
            )
            chat = gr.Checkbox(value["chat"], **_named("chat"))
            self.large_blocks = gr.Checkbox(False, **_named("large_blocks"))
        inputs = (
            prompt, temperature, block_size, max_new_tokens, seed, rule, pair, top_p, top_k, unlock, draft_temperature, chat
        )  # fmt: skip
        self.inputs: dict[str, Any] = dict(zip(DEFAULTS, inputs, strict=True))
        self._connect()

    def _connect(self) -> None:
        """What the controls do to each other and to the address."""
        instant: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
        c = self.inputs
        self.preset.input(_preset, [self.preset], [c["prompt"], c["chat"]], **instant)
        self.dice.click(_dice, None, [c["seed"]], **instant)
        summaries = json.dumps(rule_summaries(), ensure_ascii=False)
        c["rule"].change(None, [c["rule"]], [self.rule_summary], js=f"(rule) => ({summaries})[rule] ?? ''", **instant)
        # While it is locked the draft's temperature is the target's, and shows it.
        # Unlocked it is left alone: writing back what it was would undo a value that just came from the address.
        locked = "(t, unlocked) => (unlocked ? {__type__: 'update'} : t)"
        both = [c["t"], c["unlock"]]
        gr.on([c["t"].change, c["unlock"].change], None, both, [c["dt"]], js=locked, **instant)
        c["unlock"].change(_unlock, [c["unlock"]], [c["dt"]], **instant)
        self.large_blocks.input(_large_blocks, [self.large_blocks, c["b"]], [c["b"]], **instant)
        address = (ASSETS / "js" / "address.js").read_text(encoding="utf-8")
        names = json.dumps([list(DEFAULTS), MAX_ADDRESS_PROMPT])
        write = f"(...values) => ({address})({names}, values)"
        gr.on([control.change for control in c.values()], None, list(c.values()), None, js=write, **instant)

    def parse(self, *values: Any) -> RunRequest:
        """The inputs' values as a request; gr.Error, to be shown on the page, for what cannot be run."""
        named = dict(zip(DEFAULTS, values, strict=True))
        if not named.pop("unlock"):
            named["dt"] = None
        try:
            return RunRequest.parse(*named.values(), pairs=tuple(self._pairs))
        except ValueError as error:
            raise told(error, "This cannot be run") from error

    def label(self, pair: str) -> str:
        """The name of a pair on offer, without what it needs."""
        return self._pairs[pair].partition(" · ")[0]

    def restore(self, request: gr.Request) -> list[Any]:
        """Values of the inputs, then of `large_blocks`, from the page's address; what is missing there keeps its default."""
        asked = dict(request.query_params)
        values = {name: _from_address(asked.get(name), default) for name, default in self._defaults.items()}
        try:
            self.parse(*values.values())
        except gr.Error as error:
            gr.Warning(f"The address holds something that cannot be run, so the usual settings are shown. {error.message}")
            values = dict(self._defaults)
        large = values["b"] > USUAL_BLOCK_SIZE
        updates = {
            "b": gr.update(value=values["b"], maximum=MAX_BLOCK_SIZE if large else USUAL_BLOCK_SIZE),
            "dt": gr.update(value=values["dt"], interactive=values["unlock"]),
        }
        return [*(values | updates).values(), large]


def told(error: Exception, title: str) -> gr.Error:
    """An error to raise for the page to show."""
    # Gradio's messages are HTML: cleaned of scripts, but an image in one would be loaded.
    return gr.Error(html.escape(sentence(error), quote=False), title=title, print_exception=False)


def sentence(error: Exception) -> str:
    """An error's message as a sentence."""
    said = str(error)
    return said[:1].upper() + said[1:] + ("" if said.endswith(".") else ".")


def _named(key: str) -> dict[str, Any]:
    return {"label": text("controls", key), "info": text("controls", f"{key}_info"), "elem_id": key.replace("_", "-")}


def _preset(name: Any) -> tuple[Any, Any]:
    preset = presets().get(name) if isinstance(name, str) else None
    return (preset["prompt"], preset["chat"]) if preset else (gr.skip(), gr.skip())


def _dice() -> int:
    return random.randint(0, MAX_SEED)


def _unlock(unlocked: Any) -> Any:
    return gr.update(interactive=bool(unlocked))


def _large_blocks(large: Any, block_size: Any) -> Any:
    maximum = MAX_BLOCK_SIZE if large else USUAL_BLOCK_SIZE
    return gr.update(maximum=maximum, value=min(block_size, maximum))


def rule_summaries() -> dict[str, str]:
    return {
        key: f"{text('badges', 'lossless' if rule.lossless else 'wrong')} · {rule.summary} _Used by: {rule.source}._"
        for key, rule in RULES.items()
    }


def _from_address(value: str | None, default: Any) -> Any:
    """A value of the address in the type of its default; the text itself if it is not of that type, to be refused later."""
    if value is None:
        return default
    if isinstance(default, bool):
        return {"1": True, "0": False}.get(value, value)
    try:
        return type(default)(value)
    except ValueError:
        return value
