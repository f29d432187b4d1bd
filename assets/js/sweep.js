// The Sweep tab: what the server measured, worded and drew (dflash_ui/sweep_board.py). Computes nothing.

import { el, setText } from "./dom.js";
import { imageButtons } from "./images.js";
import { onPrint, plotWidth } from "./paper.js";
import { addStyles, loadPlotly } from "./served.js";
import { Status } from "./status.js";
import { CellRuns, table } from "./sweep_cells.js";
import { words } from "./words.js";

const LEAST_MS = 340; // figures at most three times a second…
const REST = 9; // …and at most a tenth of the time: a sweep measures speeds, and figures are made on the same machine
const ACTIVE = ["waiting", "loading", "running"];

/** As for the stage (stage.py); boot: {theme, config, files}; server: the functions of sweep_tab.py. */
export async function start({ element, props, watch, server, boot, urls }) {
  await addStyles(boot.theme, urls.css);
  const view = new SweepView(server, boot, urls);
  element.replaceChildren(view.root);
  const update = () => {
    if (props.value) view.accept(JSON.parse(props.value));
  };
  watch("value", update);
  update();
}

class SweepView {
  constructor(server, boot, urls) {
    const t = words.sweep;
    Object.assign(this, { server, boot, urls });
    this.status = new Status();
    this.status.node.hidden = true;
    this.other = el("button", { type: "button", class: "action sweep-other" });
    this.other.hidden = true;
    this.other.addEventListener("click", () => this.accept(this.payloads[this.isRecorded ? "own" : "recorded"]));
    this.empty = el("p", { class: "law-empty" }, t.empty);
    this.choices = el("div", { class: "sweep-choices", role: "group", "aria-label": t.choose });
    this.advice = el("section", { class: "sweep-advice" });
    this.charts = el("div", { class: "sweep-charts", role: "group", "aria-label": t.figures });
    this.kindsTitle = el("h3", { class: "sweep-part" }, t.kinds);
    this.kinds = el("div", { class: "sweep-charts sweep-kinds" });
    this.runs = new CellRuns(server);
    this.cells = el("details", { class: "law-table sweep-table", open: true });
    this.outputs = el("section", { class: "sweep-outputs" });
    this.body = el(
      "div",
      { class: "sweep-body" },
      this.advice, this.choices, el("p", { class: "sweep-caption" }, t.hint), this.charts, this.runs.node, this.kindsTitle, this.kinds, this.cells, this.outputs,
    );
    this.body.hidden = true;
    this.root = el("div", { class: "stage sweep" }, this.status.node, this.other, this.empty, this.body);
    this.payloads = {}; // the latest of the recorded sweep, and of the visitor's own
    this.plots = new Map(); // key and title of a chart -> its nodes
    this.asked = {};
    this.drawnAt = -Infinity;
    this.rest = 0;
    onPrint(() => this.board && this.plot());
    // Also fires when the hidden tab is opened.
    new ResizeObserver(() => this.resized()).observe(this.root);
    for (const node of [document.documentElement, document.body]) {
      new MutationObserver(() => this.themed()).observe(node, { attributeFilter: ["class"] });
    }
  }

  get dark() {
    return Boolean(document.querySelector("html.dark, body.dark"));
  }

  /** payload: of sweeps.py, how far a sweep is. */
  accept(payload) {
    if (payload.sweep !== this.sweep) this.begin(payload.sweep);
    this.status.node.hidden = false;
    this.status.update(payload);
    this.live = ACTIVE.includes(payload.status);
    this.wanted = payload.version;
    this.isRecorded = payload.status === "recorded_sweep";
    this.payloads[this.isRecorded ? "recorded" : "own"] = payload;
    this.other.hidden = this.live || !this.payloads.own || !this.payloads.recorded;
    setText(this.other, this.isRecorded ? words.sweep.own : words.sweep.recorded);
    setText(this.empty, words.sweep.waiting);
    this.root.dataset.sweep = this.sweep;
    this.root.dataset.status = payload.status;
    this.schedule();
  }

  begin(sweep) {
    Object.assign(this, { sweep, board: null, asked: {}, rest: 0 });
    this.runs.close();
    this.outputs.replaceChildren();
    this.body.hidden = true;
    this.empty.hidden = false;
    delete this.root.dataset.version;
  }

  /** Get and draw the figures that are newer than those on show, when it is time. */
  schedule() {
    const stale = this.wanted > 0 && (this.board === null || this.board.version < this.wanted || this.changed);
    if (!stale || this.busy || !this.root.clientWidth) return;
    const pause = this.changed || !this.live ? 0 : Math.max(LEAST_MS, this.rest);
    if (this.timer && pause) return;
    clearTimeout(this.timer); // what a sweep waits for while it goes on is no reason to wait after its end, or for a choice
    this.timer = setTimeout(async () => {
      this.timer = null;
      this.busy = true;
      await this.refresh().finally(() => (this.busy = false));
      this.schedule();
    }, Math.max(0, pause - (performance.now() - this.drawnAt)));
  }

  async refresh() {
    const sweep = this.sweep;
    const began = performance.now();
    this.changed = false;
    const answer = await this.server.get_board({ sweep, ...this.asked, dark: this.dark }).catch(() => null);
    if (sweep !== this.sweep) return;
    if (answer === null) {
      this.wanted = 0; // until the sweep tells of more
      setText(this.empty, words.sweep.gone);
      return;
    }
    this.board = JSON.parse(answer);
    await this.draw();
    this.drawnAt = performance.now();
    this.rest = REST * (this.drawnAt - began);
  }

  async draw() {
    const { board } = this;
    const colours = getComputedStyle(this.root);
    for (const name of ["paper", "soft"]) this.root.style.setProperty(`--drawn-${name}`, colours.getPropertyValue(`--lab-${name}`));
    this.body.hidden = false;
    this.empty.hidden = true;
    this.drawChoices();
    this.drawAdvice();
    this.drawTable();
    this.drawOutputs();
    if (this.runs.cell !== null) this.runs.refresh();
    const kinds = board.charts.filter(({ key }) => key === "kind");
    this.kinds.hidden = this.kindsTitle.hidden = !kinds.length;
    this.place(this.charts, board.charts.filter(({ key }) => key !== "kind"));
    this.place(this.kinds, kinds);
    await this.plot();
    this.root.dataset.version = board.version;
  }

  /** Nodes for these charts, those that are there kept: Plotly redraws in place. */
  place(parent, charts) {
    const nodes = charts.map((chart, i) => {
      const id = `${chart.key} ${i}`;
      if (!this.plots.has(id)) {
        const plot = el("div", { class: "plot" });
        const caption = el("figcaption", { class: "sweep-caption" });
        const images = el("div", {});
        this.plots.set(id, { plot, caption, images, node: el("figure", { class: `chart sweep-${chart.key}` }, plot, images, caption) });
      }
      const held = this.plots.get(id);
      if (held.chart?.title !== chart.title) {
        held.images.replaceChildren(imageButtons(() => this.plotly, held.plot, `sweep-${chart.key}`, chart.title));
      }
      held.chart = chart;
      held.plot.setAttribute("role", "group"); // an image could hold no buttons, and Plotly puts some there
      held.plot.setAttribute("aria-label", `${chart.title}. ${chart.caption}`);
      setText(held.caption, chart.caption);
      return held.node;
    });
    const same = nodes.length === parent.children.length && nodes.every((node, i) => node === parent.children[i]);
    if (!same) parent.replaceChildren(...nodes);
  }

  async plot() {
    try {
      this.plotly = await loadPlotly(this.urls.plotly);
      for (const { plot, chart, node } of this.plots.values()) {
        if (!node.isConnected || !plot.clientWidth) continue;
        const { data, layout } = structuredClone(chart.figure);
        await this.plotly.react(plot, data, { ...layout, width: plotWidth(plot), uirevision: this.sweep }, this.boot.config);
        if (plot.dataset.listening) continue;
        plot.dataset.listening = true;
        plot.on("plotly_click", ({ points }) => {
          const cell = points.map(({ customdata }) => customdata?.[0]).find(Number.isInteger);
          if (cell !== undefined) this.runs.open(this.sweep, cell);
        });
      }
    } catch (error) {
      console.error(error);
      this.charts.replaceChildren(el("p", { class: "plot-empty" }, words.charts.failed));
    }
  }

  resized() {
    if (this.root.clientWidth === this.width) return;
    this.width = this.root.clientWidth;
    if (this.board) this.plot();
    this.schedule();
  }

  themed() {
    if (this.shownDark === this.dark) return;
    this.shownDark = this.dark;
    this.choose({});
  }

  choose(change) {
    this.asked = { ...this.asked, ...change };
    this.changed = true;
    this.schedule();
  }

  drawChoices() {
    if (this.choices.contains(document.activeElement) && this.choices.dataset.sweep === this.sweep) return;
    this.choices.dataset.sweep = this.sweep;
    const menus = this.board.choices.filter(({ values }) => values.length > 1);
    this.choices.replaceChildren(
      ...menus.map(({ name, label, values, labels, chosen }) => {
        const options = labels.map((text, i) => el("option", { value: i, selected: i === chosen }, text));
        const select = el("select", { class: "block-button", "data-axis": name }, ...options);
        select.addEventListener("change", () => this.choose({ [name]: values[Number(select.value)] }));
        return el("label", {}, `${label} `, select);
      }),
    );
  }

  drawAdvice() {
    const { here, others, none } = this.board.recommendations;
    const list = (lines) => el("ul", {}, ...lines.map((line) => el("li", {}, line)));
    const more = others.length ? el("details", { open: this.advice.querySelector("details")?.open }, el("summary", {}, words.sweep.others), list(others)) : null;
    this.advice.replaceChildren(el("h3", {}, words.sweep.recommendation), here.length ? list(here) : el("p", {}, none), ...(more ? [more] : []));
  }

  drawTable() {
    const { head, rows, note } = this.board.table;
    const drawn = JSON.stringify(rows);
    if (drawn === this.drawnRows) return;
    this.drawnRows = drawn;
    const open = (i) => this.runs.open(this.sweep, i);
    const focused = [...this.cells.querySelectorAll("tbody button")].indexOf(document.activeElement);
    this.cells.replaceChildren(
      el("summary", {}, words.sweep.cells),
      el("p", { class: "sweep-caption" }, note),
      table(head, rows.map((cells, i) => ({ cells, label: words.sweep.runsOf(cells.slice(0, 3).join(", ")), act: () => open(i) }))),
    );
    if (focused >= 0) this.cells.querySelectorAll("tbody button")[focused]?.focus({ preventScroll: true });
  }

  drawOutputs() {
    if (this.outputs.children.length) return;
    const t = words.sweep;
    const said = el("span", { class: "said", role: "status" });
    const file = (name) => {
      const button = el("button", { type: "button", class: "action", "data-file": name }, name);
      button.addEventListener("click", () => this.download(name, said));
      return button;
    };
    const copy = el("button", { type: "button", class: "action" }, t.copy);
    copy.addEventListener("click", () =>
      navigator.clipboard?.writeText(this.board.command).then(() => setText(said, t.copied), () => {}),
    );
    this.outputs.replaceChildren(
      el("h3", {}, t.outputs),
      el("div", { class: "actions" }, said, ...this.boot.files.map(file)),
      el("h3", {}, t.command),
      el("div", { class: "sweep-command" }, el("code", {}, this.board.command), ...(navigator.clipboard ? [copy] : [])),
      el("h3", {}, t.about),
      el("dl", { class: "sweep-about" }, ...this.board.about.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    );
  }

  async download(name, said) {
    setText(said, words.sweep.making(name));
    const answer = await this.server.get_file({ sweep: this.sweep, name }).catch(() => null);
    const found = answer === null ? { error: words.sweep.gone } : JSON.parse(answer);
    setText(said, found.error ?? "");
    if (found.error) return;
    el("a", { href: new URL(`gradio_api/file=${found.path}`, this.urls.base).href, download: name }).click();
  }
}
