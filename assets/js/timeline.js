// The map of a whole run: a column a block, a row a place in it. Drawn on a canvas that is as wide as what is seen of it.

import { Cells, stateAt } from "./cells.js";
import { current } from "./current.js";
import { el, fixed, integer, setText } from "./dom.js";
import { words } from "./words.js";

const GUTTER = 30; // px left of the columns, for the numbers of the places
const AXIS = 24; // px below them, for the numbers of the blocks
const HEIGHT = 208; // px of all rows, while cells are too narrow for their marks
const FIT_MOST = 40; // px: a short run is not blown up
const CLOSEST = 96; // px of a column
const DRAW_MS = 340; // between two drawings that only add blocks

/** The drafted token that place k's own token replaced, or null. */
const replaced = (view, k) => (stateAt(view, k) === "resampled" ? view.drafted[k - 1] : null);

export class Timeline {
  /** states: words of the states; textOf(token id), for reading; onPick(i, k): place k of block i was chosen. */
  constructor(states, textOf, onPick) {
    const t = words.timeline;
    this.states = states;
    this.textOf = textOf;
    this.onPick = onPick;
    const button = (sign, label, act) => {
      const node = el("button", { type: "button", class: "block-button", "aria-label": label, title: label }, sign);
      node.addEventListener("click", act);
      return node;
    };
    this.farther = button("−", t.farther, () => this.zoom(0.5));
    this.closer = button("+", t.closer, () => this.zoom(2));
    this.whole = button(t.whole, t.whole, () => this.zoom(0));
    this.counter = el("p", { class: "map-counter" });
    this.canvas = el("canvas", { class: "map-canvas", role: "img", "aria-label": t.label });
    this.spacer = el("div", { class: "map-spacer" });
    this.scroller = el("div", { class: "map-scroll", tabindex: 0, role: "group", "aria-label": t.title }, this.canvas, this.spacer);
    this.mixed = el("p", { class: "map-note" }, t.mixed);
    this.tip = el("div", { class: "card map-tip" });
    this.tip.hidden = true;
    const key = ["accepted", "resampled", "bonus", "rejected", "unjudged", "cut"].map((state) =>
      el("li", { title: states[state].explain }, el("span", { class: `tok s-${state}` }, states[state].label)),
    );
    const zooms = el("span", { class: "map-zoom" }, this.farther, this.whole, this.closer);
    this.node = el(
      "section",
      { class: "map" },
      el("div", { class: "map-head" }, el("h3", {}, t.title), this.counter, zooms),
      this.scroller,
      this.tip,
      el("ul", { class: "map-key" }, ...key),
      this.mixed,
    );
    this.cells = new Cells(this.canvas, states);
    this.width = null; // px of a column; null while the whole run is to be seen
    this.listen();
  }

  listen() {
    current.addEventListener("run", () => {
      this.width = null;
      this.cells.clear();
      this.later();
    });
    current.addEventListener("block", () => this.later());
    current.addEventListener("look", () => this.soon(true));
    const { scroller } = this;
    scroller.addEventListener("scroll", () => this.soon(), { passive: true });
    scroller.addEventListener("pointermove", (event) => this.point(event));
    scroller.addEventListener("pointerleave", () => (this.tip.hidden = true));
    scroller.addEventListener("click", (event) => {
      const at = this.at(event);
      if (at) this.onPick(at.view.i, at.k);
    });
    scroller.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(2 ** (-event.deltaY / 200), event.clientX - scroller.getBoundingClientRect().left);
    }, { passive: false });
    this.node.addEventListener("keydown", (event) => {
      const zooms = { "+": 2, "=": 2, "-": 0.5, 0: 0 };
      if (!(event.key in zooms) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.zoom(zooms[event.key]);
    });
    // Also fires when the hidden tab is opened: until then nothing is drawn.
    new ResizeObserver(() => this.soon()).observe(scroller);
    const recolour = () => {
      this.cells.recolour();
      this.soon();
    };
    for (const type of ["beforeprint", "afterprint"]) {
      window.addEventListener(type, () => {
        this.cells.recolour();
        this.draw();
      });
    }
    for (const node of [document.documentElement, document.body]) {
      new MutationObserver(recolour).observe(node, { attributeFilter: ["class"] });
    }
  }

  get n() {
    return Math.max(0, current.views.length - 1);
  }

  get fit() {
    return Math.min(FIT_MOST, Math.max(0, this.scroller.clientWidth - GUTTER - 1) / Math.max(1, this.n));
  }

  /** Zoom by a factor around x (px from the left), or around the block on show; 0: back to the whole run. */
  zoom(factor, x = null) {
    const before = this.width ?? this.fit;
    const width = Math.min(CLOSEST, before * factor);
    const left = this.scroller.scrollLeft;
    const seen = current.seen && GUTTER + (current.seen.i - 0.5) * before - left;
    const inSight = seen !== null && seen > 0 && seen < this.scroller.clientWidth;
    const at = x ?? (inSight ? seen : this.scroller.clientWidth / 2);
    const block = (left + at - GUTTER) / before;
    this.width = width <= this.fit ? null : width;
    this.measure();
    this.scroller.scrollLeft = this.width === null ? 0 : block * width + GUTTER - at;
    this.soon(x === null && inSight);
  }

  later() {
    this.timer ??= setTimeout(() => this.draw(), Math.max(0, DRAW_MS - (performance.now() - (this.drawnAt ?? -Infinity))));
  }

  /** At the next frame. follow: with the block on show in sight. */
  soon(follow = false) {
    this.follow ||= follow;
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  measure() {
    this.spacer.style.width = this.width === null ? "0" : `${GUTTER + this.n * this.width + 1}px`;
  }

  draw() {
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.timer = this.frame = undefined;
    const { scroller, cells, n } = this;
    const views = current.views;
    const seenWidth = scroller.clientWidth;
    if (!seenWidth || !n) return;
    const atEnd = scroller.scrollLeft + seenWidth >= scroller.scrollWidth - 4;
    this.measure();
    const w = this.width ?? this.fit;
    if (this.follow && current.seen && this.width !== null) this.reveal(current.seen.i, w, seenWidth);
    else if (atEnd && this.width !== null) scroller.scrollLeft = scroller.scrollWidth;
    this.follow = false;

    const rows = current.head.block_size;
    const h = cells.rowHeight(w, HEIGHT / rows);
    const left = scroller.scrollLeft;
    const first = Math.max(1, Math.floor(left / w) + 1);
    const last = Math.min(n, Math.ceil((left + seenWidth - GUTTER) / w));
    cells.begin(seenWidth, rows * h + AXIS, views, rows);
    cells.columns({ first, last, x: GUTTER + (first - 1) * w - left, w, h, textOf: this.textOf });
    if (current.seen) cells.point({ ...current.seen, x: GUTTER + (current.seen.i - 1) * w - left, w, h });
    cells.axes({ first, last, left, w, h, gutter: GUTTER, axis: AXIS, trained: current.head.trained_block_size });
    this.geometry = { w, h, rows, left, gutter: GUTTER };
    this.drawnAt = performance.now();

    const at = views[current.seen?.i ?? n];
    const end = views[n];
    const t = words.timeline;
    setText(this.counter, t.counter(at.i, n, integer(at.tokens), integer(end.tokens), fixed(at.clock, 2), fixed(end.clock, 2)));
    this.mixed.hidden = w >= 1;
    this.farther.disabled = this.whole.disabled = this.width === null;
    this.closer.disabled = w >= CLOSEST;
  }

  reveal(i, w, seenWidth) {
    const x = (i - 1) * w;
    const { scrollLeft: left } = this.scroller;
    if (x < left) this.scroller.scrollLeft = x - w;
    else if (x + w > left + seenWidth - GUTTER) this.scroller.scrollLeft = x + 2 * w - seenWidth + GUTTER;
  }

  /** The block and place under a pointer, or null. */
  at(event) {
    if (!this.geometry) return null;
    const { w, h, rows, left } = this.geometry;
    const box = this.canvas.getBoundingClientRect();
    const i = Math.floor((event.clientX - box.left - GUTTER + left) / w) + 1;
    const k = rows - Math.floor((event.clientY - box.top) / h);
    const view = current.views[i];
    if (event.clientX - box.left < GUTTER || !view || i < 1 || k < 1 || !stateAt(view, k)) return null;
    return { view, k };
  }

  point(event) {
    const at = this.at(event);
    this.scroller.classList.toggle("on-cell", at !== null);
    this.tip.hidden = !at;
    if (!at) return;
    const { view, k } = at;
    const t = words.timeline;
    const state = stateAt(view, k);
    const text = this.textOf(k <= view.emitted.length ? view.emitted[k - 1] : view.drafted[k - 1]);
    const before = replaced(view, k);
    this.tip.replaceChildren(
      el("p", { class: "card-state" }, el("span", { class: `tok s-${state}` }, this.states[state].label)),
      el("p", { class: "card-text" }, text),
      ...(before === null ? [] : [el("p", {}, t.instead(this.textOf(before)))]),
      el("p", { class: "map-note" }, t.place(view.i, k, view.start + k)),
    );
    const frame = this.node.getBoundingClientRect();
    const x = event.clientX - frame.left;
    this.tip.style.left = `${Math.max(0, Math.min(x + 14, frame.width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${event.clientY - frame.top + 18}px`;
  }
}
