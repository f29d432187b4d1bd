"""The look of the page, once: the colours and marks of each token state, the neutral colours, and the Gradio theme.

The style sheet, the charts and the script all read from here; none of them holds a colour of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradio.themes import Base

ASSETS = Path(__file__).resolve().parent.parent / "assets"

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Noto Sans", "Arial", "sans-serif")
FONT_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


@dataclass(frozen=True, slots=True)
class Neutrals:
    """The colours of everything that is not a token. `soft` and `faint` are text; both stay above 4.5:1 on `panel`."""

    paper: str
    panel: str
    line: str
    ink: str
    soft: str
    faint: str
    accent: str
    on_accent: str
    warning: str
    warning_panel: str
    good: str


LIGHT = Neutrals(
    paper="#FFFFFF",
    panel="#F5F7FA",
    line="#D8DEE6",
    ink="#16202B",
    soft="#4A5663",
    faint="#626D79",
    accent="#0072B2",
    on_accent="#FFFFFF",
    warning="#9A4200",
    warning_panel="#FFF4E8",
    good="#00664B",
)
DARK = Neutrals(
    paper="#11161D",
    panel="#1A212B",
    line="#364150",
    ink="#E9EDF2",
    soft="#B4BFCB",
    faint="#98A4B1",
    accent="#56B4E9",
    on_accent="#0C1117",
    warning="#F0B35A",
    warning_panel="#2B2216",
    good="#5CCBA5",
)


def neutrals(dark: bool) -> Neutrals:
    return DARK if dark else LIGHT


def blend(colour: str, ground: str, share: float) -> str:
    """`colour` laid over `ground` at opacity `share`, as #RRGGBB."""
    mixed = (round(share * int(colour[i : i + 2], 16) + (1 - share) * int(ground[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{value:02X}" for value in mixed)


@dataclass(frozen=True, slots=True)
class Look:
    """Colours of one state; None where it has none.

    `edge` draws the second cue (underline, box, border) on the light theme. On the dark one `mark` draws it, and the
    chip is a tint of `mark`. `ghost`: on the page, but not part of the text.
    """

    fill: str | None = None
    edge: str | None = None
    chip: str | None = None
    mark: str | None = None
    pattern: str = ""
    ghost: bool = False

    @property
    def chip_dark(self) -> str | None:
        return None if self.chip is None or self.mark is None else blend(self.mark, DARK.paper, 0.30)

    def chart_fill(self, dark: bool) -> str:
        """Colour of the state's areas in a chart."""
        return (self.mark if dark else self.fill) or neutrals(dark).faint


@dataclass(frozen=True, slots=True)
class TokenState:
    """One state of a token: how it looks, and its words (assets/states.json)."""

    key: str
    look: Look
    label: str
    aloud: str
    mark: str
    explain: str


_LOOKS = {
    "accepted": Look(fill="#0072B2", edge="#0072B2", chip="#9CCBEA", mark="#56B4E9"),
    "resampled": Look(fill="#D55E00", edge="#D55E00", chip="#F6B27A", mark="#E69F00"),
    "bonus": Look(fill="#F0E442", edge="#6B6100", chip="#F5EC8A", mark="#F0E442"),
    "rejected": Look(fill="#999999", edge="#7A7A7A", chip="#E3E3E3", mark="#9A9A9A", pattern="/", ghost=True),
    "unjudged": Look(edge="#7A7A7A", mark="#9A9A9A", ghost=True),
    "cut": Look(edge="#7A7A7A", mark="#9A9A9A", pattern="x", ghost=True),
    "plain": Look(),
    "prompt": Look(),
}


@cache
def states() -> dict[str, TokenState]:
    """Every token state by key, in the order of the legend."""
    words = json.loads((ASSETS / "states.json").read_text(encoding="utf-8"))
    if words.keys() != _LOOKS.keys():
        odd = sorted(words.keys() ^ _LOOKS.keys())
        raise ValueError(f"assets/states.json and theme.py must name the same token states; they differ in {odd}")
    return {key: TokenState(key=key, look=_LOOKS[key], **entry) for key, entry in words.items()}


@dataclass(frozen=True, slots=True)
class RuleLook:
    """Colours of a rule's lines on either theme, after Okabe-Ito, and its marker: never told apart by colour alone."""

    light: str
    dark: str
    symbol: str


def rule_looks() -> dict[str, RuleLook]:
    """How each verification rule is drawn where rules are compared."""
    return {
        "match": RuleLook("#0072B2", "#56B4E9", "circle"),
        "greedy-match": RuleLook("#B88600", "#E69F00", "square"),
        "speculative": RuleLook("#00815E", "#5CCBA5", "diamond"),
        "coupled": RuleLook("#B5568C", "#E09CC4", "triangle-up"),
        "block": RuleLook("#C24E00", "#F08A4B", "cross"),
        "naive": RuleLook("#626D79", "#B4BFCB", "x"),
    }


def css_properties() -> str:
    """The colours as CSS custom properties, light on :root and dark under Gradio's `.dark`.

    `--lab-<neutral>`, `--tok-<state>-chip`, `--tok-<state>-edge`, `--tok-<state>-fill` (areas of a chart),
    `--tok-<state>-mark` (the mark as a CSS string),
    `--lab-font`, `--lab-font-mono`.
    """
    light, dark = ([f"--lab-{f.name.replace('_', '-')}: {getattr(n, f.name)};" for f in fields(n)] for n in (LIGHT, DARK))
    light += [f"--lab-font: {_font_list(FONT)};", f"--lab-font-mono: {_font_list(FONT_MONO)};"]
    for key, state in states().items():
        look = state.look
        light += [
            f"--tok-{key}-chip: {look.chip or 'transparent'};",
            f"--tok-{key}-edge: {look.edge or 'transparent'};",
            f"--tok-{key}-fill: {look.chart_fill(False)};",
        ]
        light += [f"--tok-{key}-mark: {json.dumps(state.mark, ensure_ascii=False)};"]
        dark += [f"--tok-{key}-chip: {look.chip_dark or 'transparent'};"]
        dark += [f"--tok-{key}-edge: {look.mark or 'transparent'};", f"--tok-{key}-fill: {look.chart_fill(True)};"]
    return ":root {\n  " + "\n  ".join(light) + "\n}\n.dark {\n  " + "\n  ".join(dark) + "\n}\n"


def _font_list(fonts: tuple[str, ...]) -> str:
    return ", ".join(f'"{font}"' if " " in font else font for font in fonts)


def gradio_theme() -> Base:
    """The Gradio theme in the same colours. System fonts only: nothing is fetched from anywhere."""
    from gradio.themes import Default, colors, sizes

    theme = Default(
        primary_hue=colors.blue,
        secondary_hue=colors.blue,
        neutral_hue=colors.slate,
        radius_size=sizes.radius_md,
        font=list(FONT),
        font_mono=list(FONT_MONO),
    )
    return theme.set(
        body_background_fill=LIGHT.paper,
        body_background_fill_dark=DARK.paper,
        body_text_color=LIGHT.ink,
        body_text_color_dark=DARK.ink,
        body_text_color_subdued=LIGHT.faint,
        body_text_color_subdued_dark=DARK.faint,
        background_fill_primary=LIGHT.paper,
        background_fill_primary_dark=DARK.paper,
        background_fill_secondary=LIGHT.panel,
        background_fill_secondary_dark=DARK.panel,
        border_color_primary=LIGHT.line,
        border_color_primary_dark=DARK.line,
        color_accent=LIGHT.accent,
        block_background_fill=LIGHT.paper,
        block_background_fill_dark=DARK.panel,
        block_border_color=LIGHT.line,
        block_border_color_dark=DARK.line,
        block_info_text_color=LIGHT.faint,
        block_info_text_color_dark=DARK.faint,
        block_label_text_color=LIGHT.soft,
        block_label_text_color_dark=DARK.soft,
        block_title_text_color=LIGHT.ink,
        block_title_text_color_dark=DARK.ink,
        block_title_text_weight="600",
        block_shadow="none",
        block_shadow_dark="none",
        input_background_fill=LIGHT.paper,
        input_background_fill_dark=DARK.paper,
        input_border_color=LIGHT.line,
        input_border_color_dark=DARK.line,
        input_border_color_focus=LIGHT.accent,
        input_border_color_focus_dark=DARK.accent,
        slider_color=LIGHT.accent,
        slider_color_dark=DARK.accent,
        link_text_color=LIGHT.accent,
        link_text_color_dark=DARK.accent,
        button_primary_background_fill=LIGHT.accent,
        button_primary_background_fill_hover=blend("#000000", LIGHT.accent, 0.15),
        button_primary_background_fill_dark=DARK.accent,
        button_primary_background_fill_hover_dark=blend("#FFFFFF", DARK.accent, 0.2),
        button_primary_text_color=LIGHT.on_accent,
        button_primary_text_color_dark=DARK.on_accent,
        button_secondary_background_fill=LIGHT.panel,
        button_secondary_background_fill_hover=LIGHT.line,
        button_secondary_background_fill_dark=DARK.panel,
        button_secondary_background_fill_hover_dark=DARK.line,
        button_secondary_text_color=LIGHT.ink,
        button_secondary_text_color_dark=DARK.ink,
    )
