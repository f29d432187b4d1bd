// The legend: every state drawn as its tokens are, saying what it means, and hiding or showing its tokens on click.

import { el, setText } from "./dom.js";
import { words } from "./words.js";

const FILTERED = ["accepted", "resampled", "bonus", "rejected", "unjudged", "cut"];

export class Legend {
  /** states: {key: {label, explain}} from assets/states.json; onToggle(key, shown). */
  constructor(states, onToggle) {
    this.note = el("p", { class: "legend-note", id: "legend-note" }, words.legend.note);
    const buttons = FILTERED.map((key) => {
      const { label, explain } = states[key];
      const button = el(
        "button",
        { type: "button", class: "legend-item", "aria-pressed": "true", title: explain, "data-state": key },
        el("span", { class: `tok s-${key}` }, label),
      );
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        onToggle(key, shown);
      });
      for (const type of ["pointerenter", "focus"]) button.addEventListener(type, () => setText(this.note, `${label}: ${explain}`));
      for (const type of ["pointerleave", "blur"]) button.addEventListener(type, () => setText(this.note, words.legend.note));
      return button;
    });
    this.node = el("div", { class: "legend", role: "group", "aria-label": words.legend.title }, ...buttons, this.note);
  }
}
