// The Compare tab: two runs of the shelf, as dflash_ui/comparison.py worded and drew them. Computes nothing.

import { current } from "./current.js";
import { el, setText, visible } from "./dom.js";
import { imageButtons } from "./images.js";
import { onPrint, plotWidth } from "./paper.js";
import { addStyles, loadPlotly } from "./served.js";
import { options, shelf } from "./shelf.js";
import { words } from "./words.js";

const t = words.compare;
const SIDES = ["a", "b"];

/** As for the stage (stage.py); boot: {theme, config}. */
export async function start({ element, server, boot, urls }) {
  await addStyles(boot.theme, urls.css);
  const comparison = new Comparison(server, boot.config, () => loadPlotly(urls.plotly));
  element.replaceChildren(comparison.node);
}

class Comparison {
  constructor(server, config, plotly) {
    Object.assign(this, { server, config, loadPlotly: plotly, chosen: { a: null, b: null } });
    this.selects = SIDES.map((side) => {
      const select = el("select", { class: "run-select" });
      select.addEventListener("change", () => this.choose(side, select.value));
      return select;
    });
    const swap = el("button", { type: "button", class: "action", "aria-label": t.swap, title: t.swap }, "⇄");
    swap.addEventListener("click", () => {
      this.chosen = { a: this.chosen.b, b: this.chosen.a };
      this.list();
      this.draw();
    });
    const choices = SIDES.map((side, i) => el("label", { class: `compare-choice side-${side}` }, el("b", {}, t[side]), this.selects[i]));
    this.body = el("div", { class: "compare-body" });
    this.node = el("div", { class: "stage comparison" }, el("div", { class: "compare-choices" }, choices[0], swap, choices[1]), this.body);
    shelf.addEventListener("change", () => this.list());
    current.addEventListener("run", () => this.stale());
    current.addEventListener("block", () => (this.outdated ||= SIDES.some((side) => this.chosen[side] === current.run)));
    onPrint(() => this.plot());
    new ResizeObserver(() => this.resized()).observe(this.node); // also fires when the hidden tab is opened
    for (const node of [document.documentElement, document.body]) {
      new MutationObserver(() => this.plot()).observe(node, { attributeFilter: ["class"] });
    }
    this.list();
  }

  /** Fills the menus; what is no longer there gives way to the first run that the other side does not show. */
  list() {
    const ids = shelf.ordered.map((entry) => entry.id);
    for (const [i, side] of SIDES.entries()) {
      const other = this.chosen[SIDES[1 - i]];
      if (!ids.includes(this.chosen[side])) this.chosen[side] = ids.find((id) => id !== other) ?? null;
      this.selects[i].replaceChildren(...options());
      this.selects[i].value = this.chosen[side] ?? "";
    }
    this.stale();
  }

  choose(side, id) {
    this.chosen[side] = id;
    this.draw();
  }

  /** Something changed; it is drawn when it is looked at. */
  stale() {
    const { a, b } = this.chosen;
    if (`${a} ${b}` !== this.drawn) this.outdated = true;
    if (this.outdated && this.node.clientWidth) this.draw();
  }

  resized() {
    if (!this.node.clientWidth) return;
    if (this.outdated) this.draw();
    else this.plot();
  }

  async draw() {
    const { a, b } = this.chosen;
    const asked = `${a} ${b}`;
    this.drawn = asked;
    this.outdated = false;
    if (!a || !b) return this.say(t.empty);
    const answer = await this.server.compare_runs({ a, b }).then(JSON.parse, () => null);
    if (this.drawn !== asked) return;
    if (!answer || answer.error) return this.say(answer?.error ?? t.failed);
    this.show(answer);
  }

  say(message) {
    this.figure = null;
    this.body.replaceChildren(el("p", { class: "law-empty", role: "status" }, message));
    delete this.node.dataset.compared;
  }

  show({ settings, figures, figure, note, texts }) {
    this.figure = figure;
    this.chart = figure ? el("div", { class: "plot", role: "group", "aria-label": figure.light.layout.title.text }) : null;
    const images = this.chart ? imageButtons(() => this.plotly, this.chart, "survival") : null;
    this.body.replaceChildren(
      el(
        "div",
        { class: "compare-parts" },
        el("div", {}, this.table(t.settings, settings, true), this.table(t.figures, figures, false), el("p", { class: "compare-note" }, note)),
        this.chart ? el("div", { class: "chart" }, this.chart, images) : null,
      ),
      el("h3", { class: "compare-title" }, t.texts),
      el("p", { class: "compare-says", role: "status" }, texts.says),
      el("div", { class: "compare-texts" }, ...SIDES.map((side) => this.text(side, texts[side]))),
      ...(texts.rest ? [el("p", { class: "compare-note" }, texts.rest)] : []),
    );
    this.node.dataset.compared = this.drawn;
    this.plot();
  }

  /** marked: rows that differ stand out; among settings that says something, figures always differ. */
  table(title, rows, marked) {
    const row = ({ name, a, b, same }) =>
      el(
        "tr",
        { class: marked && !same ? "differs" : null },
        el("th", { scope: "row" }, name, same || !marked ? null : el("span", { class: "only-spoken" }, ` (${t.different})`)),
        el("td", {}, a),
        el("td", {}, b),
      );
    const head = ["", t.a, t.b].map((name) => (name ? el("th", { scope: "col" }, name) : el("td", {})));
    return el(
      "table",
      { class: "compare-table" },
      el("caption", {}, title),
      el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...rows.map(row)),
    );
  }

  /** A text: what both have is plain, what only this one has is marked, token by token. */
  text(side, segments) {
    const own = (token) => el("span", { class: "own" }, /\S/.test(token) ? token : visible(token));
    const pieces = segments.flatMap(([kind, tokens]) =>
      kind === "own" ? tokens.filter(Boolean).map(own) : [el("span", { class: `seg-${kind}` }, tokens.join(""))],
    );
    return el(
      "section",
      { class: `compare-text side-${side}` },
      el("h4", {}, t.text(t[side])),
      el("p", {}, ...(pieces.length ? pieces : [t.nothing])),
    );
  }

  async plot() {
    const node = this.chart;
    if (!this.figure || !node?.clientWidth) return;
    try {
      this.plotly = await this.loadPlotly();
      const dark = Boolean(document.querySelector("html.dark, body.dark"));
      const { data, layout } = structuredClone(this.figure[dark ? "dark" : "light"]);
      this.plotly.react(node, data, { ...layout, width: plotWidth(node) }, this.config);
    } catch {
      setText(node, words.charts.failed);
    }
  }
}
