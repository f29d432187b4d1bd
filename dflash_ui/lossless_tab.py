"""The Lossless? tab: many verifications of one recorded position under a rule, laid over the target's distribution."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from dflash_core.blocks import JudgedToken, is_number, require
from dflash_core.lossless import LawCheck, distributions_of, redraw_bias, verify_law
from dflash_core.verify import RULES

from . import charts, theme
from .controls import rule_summaries, told
from .lossless_charts import law_figure
from .opened import MAX_NAME, MAX_PER_PAGE
from .render import visible
from .requests import MAX_SEED
from .run import Run
from .runs import Runs
from .stage import encode, scripted
from .text import text

MIN_DRAWS, MAX_DRAWS, DRAWS = 1000, 100_000, 40_000
MAX_POSITIONS = 40  # on offer
MY_RUN = "mine"
# What stage.js wrote down of the runs opened from files.
OPENED = "(run, place) => [run, place, document.querySelector('.stage[data-opened]')?.dataset.opened ?? '[]']"
SMALLEST = 1e-300  # p-value that is told


@dataclass(frozen=True, slots=True)
class Place:
    """A judged token of a run: the k-th drafted one (from 1) of a block."""

    run: Run
    block: int
    k: int

    @property
    def judged(self) -> JudgedToken:
        return self.run.blocks[self.block].judged[self.k - 1]

    @property
    def token(self) -> str:
        """The drafted token as it was shown."""
        position = self.run.blocks[self.block].start + self.k
        for chip in self.run.views[self.block]["chips"]:
            if chip["s"] in ("accepted", "rejected", "cut") and chip["pos"] <= position < chip["pos"] + len(chip["ids"]):
                return visible(chip["t"])
        return text("lossless", "unknown_token").format(id=self.run.blocks[self.block].drafted[self.k - 1])

    @property
    def key(self) -> str:
        return f"{self.run.id}/{self.block}/{self.k}"


@dataclass(frozen=True, slots=True)
class LawRequest:
    """One check as asked for. Raises ValueError, saying what would be right, for anything else."""

    place: Place
    rule: str
    n: int

    @classmethod
    def parse(cls, place: object, rule: object, n: object, *, runs: Runs) -> LawRequest:
        require(isinstance(place, str) and bool(place), "choose a position first")
        run_id, *numbers = str(place).split("/")
        run = runs.get(run_id)
        require(run is not None, "this run is no longer kept on the server: run it again, or choose a recorded one")
        assert run is not None
        known = {found.key: found for found in places(run)}
        require(str(place) in known, f"this run has no judged position {' / '.join(numbers)[:40]}: choose one of the list")
        require(isinstance(rule, str) and rule in RULES, f"the rule must be one of {', '.join(RULES)}")
        if not is_number(n) or not MIN_DRAWS <= n <= MAX_DRAWS or n != int(n):
            raise ValueError(f"draws must be a whole number from {MIN_DRAWS:,} to {MAX_DRAWS:,}")
        return cls(known[str(place)], str(rule), int(n))


class LosslessTab:
    """Builds the tab inside the current gr.Tab."""

    def __init__(self, tab: gr.Tab, runs: Runs, recorded: Sequence[Run]) -> None:
        self._runs = runs
        self._choices = [(run.message or run.id, run.id) for run in recorded] + [(text("lossless", "my_run"), MY_RUN)]
        offered = position_choices(recorded[0]) if recorded else []
        gr.Markdown(text("lossless", "lead"), elem_id="law-lead")
        with gr.Row(equal_height=False, elem_id="law-tab"):
            with gr.Column(scale=0, min_width=340, elem_id="law-controls"):
                self._run = gr.Dropdown(self._choices, label=text("lossless", "run"), elem_id="law-run")
                # The runs opened from files: which ones only the page knows, see OPENED.
                opened = gr.Textbox(visible=False)
                self._place = gr.Dropdown(
                    offered,
                    value=offered[0][1] if offered else None,
                    label=text("lossless", "position"),
                    info=text("lossless", "position_info"),
                    elem_id="law-position",
                )
                self._rule = gr.Radio(
                    [(rule.label, key) for key, rule in RULES.items()],
                    value="speculative",
                    label=text("lossless", "rule"),
                    elem_id="law-rule",
                )
                summary = gr.Markdown(rule_summaries()["speculative"], elem_id="law-rule-summary")
                self._draws = gr.Slider(
                    MIN_DRAWS,
                    MAX_DRAWS,
                    DRAWS,
                    step=1000,
                    label=text("lossless", "draws"),
                    info=text("lossless", "draws_info"),
                    elem_id="law-draws",
                )
                draw = gr.Button(text("lossless", "draw"), variant="primary", elem_id="law-draw")
            with gr.Column(scale=1, min_width=320):
                boot = {"theme": theme.css_properties(), "config": charts.config(), "empty": text("lossless", "empty")}
                view = scripted("lossless.js", boot, "", elem_id="law")
        private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        summaries = json.dumps(rule_summaries(), ensure_ascii=False)
        js = f"(rule) => ({summaries})[rule] ?? ''"
        self._rule.change(None, [self._rule], [summary], js=js, queue=False, **private)
        self._run.input(self.on_choose, [self._run], [self._place], concurrency_limit=None, **private)
        both = [self._run, self._place]
        tab.select(self.on_open, [*both, opened], both, js=OPENED, queue=False, **private)
        draw.click(self.on_draw, [self._place, self._rule, self._draws], [view], **private)

    def on_choose(self, chosen: Any, request: gr.Request) -> Any:
        """Another run: its positions."""
        run = self._runs.of_session(request.session_hash) if chosen == MY_RUN else self._runs.get(chosen)
        offered = position_choices(run) if run else []
        if not offered:
            gr.Warning(text("lossless", "no_positions" if run else "no_run"))
        return gr.update(choices=offered, value=offered[0][1] if offered else None)

    def on_open(self, chosen: Any, place: Any, opened: Any, request: gr.Request) -> tuple[Any, Any]:
        """The tab comes into view: other files may be open by now, and "my last run" may be another one."""
        choices = self._choices + opened_choices(opened, self._runs)
        if chosen not in [key for _, key in choices]:
            chosen = choices[0][1]
        run = self._runs.of_session(request.session_hash) if chosen == MY_RUN else self._runs.get(chosen)
        menu = gr.update(choices=choices, value=chosen)
        if run is None or (isinstance(place, str) and place.startswith(f"{run.id}/")):
            return menu, gr.skip()
        offered = position_choices(run)
        return menu, gr.update(choices=offered, value=offered[0][1] if offered else None)

    def on_draw(self, place: Any, rule: Any, n: Any) -> str:
        """The check, as the view takes it."""
        try:
            asked = LawRequest.parse(place, rule, n, runs=self._runs)
            return encode(payload(asked, seed=random.randint(0, MAX_SEED)))
        except ValueError as error:
            raise told(error, text("lossless", "error_title")) from error


def opened_choices(opened: object, runs: Runs) -> list[tuple[str, str]]:
    """(label, id) of the runs that a page says it opened from files, as far as there are such runs."""
    try:
        found = json.loads(opened) if isinstance(opened, str) else []
    except (ValueError, RecursionError):
        return []
    entries = [entry for entry in found if isinstance(entry, list) and len(entry) == 2] if isinstance(found, list) else []
    return [(str(label)[:MAX_NAME], str(key)) for label, key in entries[:MAX_PER_PAGE] if runs.get(key) is not None]


def places(run: Run) -> list[Place]:
    """The run's judged positions that have a table, in order. A run may be going on: its views come last."""
    blocks = run.blocks[: len(run.views)]
    return [Place(run, block.index, k) for block in blocks for k, judged in enumerate(block.judged, 1) if judged.table]


def position_choices(run: Run) -> list[tuple[str, str]]:
    """(label, key) of the positions where it matters most what follows a rejection."""
    found = []
    for place in places(run):
        _, p, q = distributions_of(place.judged)
        found.append((float(redraw_bias(p, q)), float((p - q).abs().sum() / 2), place))
    found.sort(key=lambda entry: entry[:2], reverse=True)
    label = text("lossless", "position_label")
    return [
        (label.format(block=place.block, place=place.k, token=place.token, tv=tv), place.key)
        for _, tv, place in found[:MAX_POSITIONS]
    ]


def payload(asked: LawRequest, *, seed: int) -> dict[str, Any]:
    """Does the check and words it: {"about", "verdict", "numbers", "why", "labels", "table", "figure"}, plain text throughout."""
    place, rule = asked.place, RULES[asked.rule]
    ids, p, q = distributions_of(place.judged)
    check = verify_law(rule, p.expand(2, -1), q[None], n=asked.n, seed=seed)
    names = token_names(place.run)
    unknown = text("lossless", "unknown_token")
    labels = [names.get(token) or unknown.format(id=token) for token in ids] + [text("lossless", "rest")]
    about = text("lossless", "about").format(
        rule=rule.label, run=place.run.message, block=place.block, place=place.k, token=place.token, n=check.n, seed=seed
    )
    columns = ("token", "p", "q", "drawn", "kept")
    rows = zip(labels, check.target_probs, check.draft_probs, check.counts, check.kept_counts, strict=True)
    return {
        "about": about,
        "badge": {"good": rule.lossless, "text": text("badges", "lossless" if rule.lossless else "wrong").strip("*")},
        "verdict": _verdict(check, float(redraw_bias(p, q))),
        "numbers": _numbers(check),
        "why": {"title": text("lossless", "why"), "text": text("lossless_why", rule.key)},
        "table": {
            "title": text("lossless", "numbers"),
            "head": [text("lossless", name) for name in columns],
            "rows": [[name, f"{p:.5f}", f"{q:.5f}", f"{drawn:,}", f"{kept:,}"] for name, p, q, drawn, kept in rows],
        },
        "figure": {look: json.loads(law_figure(check, labels, dark=look == "dark").to_json()) for look in ("light", "dark")},
    }


def token_names(run: Run) -> dict[int, str]:
    """Texts of the single tokens that the run is about, by id. An older trace has only those that it showed."""
    names = {int(token): visible(word) for token, word in run.words.items() if word}
    for view in run.views[:]:
        for chip in view["chips"]:
            if len(chip["ids"]) == 1 and chip["t"]:
                names.setdefault(chip["ids"][0], visible(chip["t"]))
    return names


def _verdict(check: LawCheck, bias: float) -> dict[str, str]:
    rule = RULES[check.rule]
    kind = "bad" if check.differs else "good" if rule.lossless else "missed"
    values = {
        "level": scientific(check.level),
        "n": check.n,
        "odds": round(1 / check.level),
        "p_value": _p_value(check),
        "bias": scientific(bias) if 0 < bias < 1e-3 else f"{bias:.3f}",
    }
    return {"kind": kind, "title": text("lossless", kind), "note": text("lossless", f"{kind}_note").format(**values)}


def _numbers(check: LawCheck) -> list[dict[str, str]]:
    outside = check.total_variation > check.null_band
    values = {
        "total_variation": (f"{check.total_variation:.4f}", text("lossless", "outside" if outside else "inside")),
        "p_value": (_p_value(check), text("lossless", "p_value_note")),
        "acceptance": (f"{check.accepted / check.n:.4f}", text("lossless", "acceptance_note")),
    }
    words = {
        "band": f"{check.null_band:.4f}",
        "low": check.acceptance_low,
        "high": check.acceptance_high,
        "expected": check.acceptance,
    }
    return [
        {"name": text("lossless", key), "value": value, "note": note.format(**words)} for key, (value, note) in values.items()
    ]


def _p_value(check: LawCheck) -> str:
    return scientific(check.p_value) if check.p_value > SMALLEST else f"< {scientific(SMALLEST)}"


def scientific(x: float) -> str:
    """A probability to read: 0.41, 0.0031, 2 × 10⁻⁹; 10⁻⁶ for a power of ten."""
    if x == 0 or x >= 1e-3:
        return f"{x:.2g}"
    digits, exponent = f"{x:.1e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if digits == "1.0" else f"{digits} × {power}"
