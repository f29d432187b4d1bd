// The card with everything known about one token.

import { el, fixed, probability, visible } from "./dom.js";
import { words } from "./words.js";

const ID = "token-card";

export class Card {
  constructor(stage, states) {
    this.stage = stage;
    this.states = states;
    this.node = el("div", { class: "card", id: ID, role: "tooltip", "aria-label": words.card.label });
    this.node.hidden = true;
    this.described = null;
    this.node.addEventListener("mousedown", (event) => event.preventDefault()); // the token keeps the focus, and so the card
  }

  hide() {
    this.node.hidden = true;
    this.described?.removeAttribute("aria-describedby");
    this.described = null;
  }

  /** onOpen(view, k): for a card that stays, opens the block; null for one that comes and goes with the pointer. */
  show(token, chip, view, head, onOpen) {
    this.hide();
    const state = this.states[chip.s];
    const rows = this.rows(chip, view, head).filter(([, value]) => value !== null);
    const parts = [
      el("p", { class: "card-state" }, el("span", { class: `tok s-${chip.s}` }, state.label)),
      el("p", { class: "card-text" }, visible(chip.t)),
      el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      el("p", { class: "card-explain" }, state.explain),
      onOpen && view?.n_drafted ? this.opener(() => onOpen(view, chip.k ?? null)) : null,
    ];
    this.node.replaceChildren(...parts.filter(Boolean));
    this.node.classList.toggle("pinned", onOpen !== null);
    this.node.setAttribute("role", onOpen ? "group" : "tooltip");
    this.node.hidden = false;
    token.setAttribute("aria-describedby", ID);
    this.described = token;
    this.place(token);
  }

  /** For fingers and mice: with a key, Enter on the token does the same. */
  opener(act) {
    const button = el("button", { type: "button", class: "action card-open", tabindex: -1 }, words.card.open);
    button.addEventListener("click", act);
    return button;
  }

  rows(chip, view, head) {
    const t = words.card;
    const has = (x) => x !== null && x !== undefined;
    const number = (x) => (has(x) ? probability(x) : null);
    const place = !view
      ? t.inPrompt(chip.pos)
      : view.i === 0
        ? t.afterPrefill(chip.pos)
        : t.inBlock(view.i, has(chip.k) ? chip.k : null, chip.pos);
    return [
      [t.replaces, has(chip.r) ? visible(chip.r) : null],
      [t.p, number(chip.p)],
      [t.q, number(chip.q)],
      [t.accept, number(chip.a)],
      [t.targetEntropy, has(chip.hp) ? t.nats(fixed(chip.hp, 2)) : null],
      [t.draftEntropy, has(chip.hq) ? t.nats(fixed(chip.hq, 2)) : null],
      [t.rule, view && head ? head.rule_label : null],
      [t.place, place],
      [t.ids(chip.ids.length), chip.ids.join(", ")],
    ];
  }

  /** Under the token, or above it where there is no room; always inside the stage. */
  place(token) {
    const at = token.getClientRects()[0] ?? token.getBoundingClientRect();
    const frame = this.stage.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const below = at.bottom + 8 + height < window.innerHeight || at.top < height + 8;
    const left = Math.max(0, Math.min(at.left - frame.left, frame.width - width));
    this.node.style.left = `${left}px`;
    this.node.style.top = `${(below ? at.bottom + 8 : at.top - 8 - height) - frame.top}px`;
  }
}
