// Feeds the three figures that dflash_ui/charts.py made: data into the places named there, nothing else.

import { el, setText } from "./dom.js";
import { imageButtons } from "./images.js";
import { onPrint, plotWidth } from "./paper.js";
import { words } from "./words.js";

const NAMES = ["lengths", "histogram", "positions"];
const LEAST_MS = 340; // three times a second at most…
const REST = 8; // …and resting eight times as long as the last drawing took: a long run never crowds out its text

export class Charts {
  /** templates: charts.templates(); loadPlotly() -> Promise of Plotly; onClick[chart](x): its bar or point at x was clicked. */
  constructor(templates, loadPlotly, onClick) {
    this.templates = templates;
    this.onClick = onClick;
    this.plots = {};
    for (const name of NAMES) {
      const plot = el("div", { class: "plot", role: "group", "aria-label": templates[name].light.layout.title.text });
      const empty = el("p", { class: "plot-empty" }, words.charts.waiting);
      const images = imageButtons(() => this.plotly, plot, name);
      this.plots[name] = { plot, empty, images, node: el("div", { class: `chart chart-${name}` }, plot, empty, images) };
    }
    this.node = el("div", { class: "charts" }, ...NAMES.map((name) => this.plots[name].node));
    this.revision = 0;
    this.clear(null, null);
    // A drawing in the middle of a drag would end it.
    this.node.addEventListener("pointerdown", () => (this.held = true));
    for (const type of ["pointerup", "pointercancel"]) {
      window.addEventListener(type, () => {
        if (this.held) this.schedule();
        this.held = false;
      });
    }
    onPrint(() => {
      if (this.plotly && this.node.clientWidth) NAMES.forEach((name) => this.draw(name));
    });
    // Also fires when a hidden tab is opened: until then nothing is drawn.
    new ResizeObserver(() => this.schedule({ soon: true })).observe(this.node);
    new MutationObserver(() => this.schedule({ soon: true })).observe(document.documentElement, { attributeFilter: ["class"] });
    new MutationObserver(() => this.schedule({ soon: true })).observe(document.body, { attributeFilter: ["class"] });
    loadPlotly().then(
      (plotly) => {
        this.plotly = plotly;
        this.schedule();
      },
      () => Object.values(this.plots).forEach(({ empty }) => setText(empty, words.charts.failed)),
    );
  }

  clear(run, head) {
    this.run = run;
    this.head = head;
    this.stats = null;
    this.series = { i: [], tau: [], mean: [], shape: [], note: [] };
    this.schedule();
  }

  append(view) {
    if (!view.n_drafted) return;
    const { cut_shape, cut_note } = this.templates.lengths.light.layout.meta;
    this.series.i.push(view.i);
    this.series.tau.push(view.tau);
    this.series.mean.push(view.mean);
    this.series.shape.push(view.cut ? cut_shape : "");
    this.series.note.push((view.cut && cut_note[view.finish]) || "");
    this.schedule();
  }

  setStats(stats) {
    if (!stats) return;
    this.stats = stats;
    this.schedule();
  }

  /** soon: another width, other colours; what is on show looks wrong until then. */
  schedule({ soon = false } = {}) {
    if (!this.plotly || (this.timer && !soon)) return;
    clearTimeout(this.timer);
    const rest = soon ? LEAST_MS : Math.max(LEAST_MS, REST * (this.cost ?? 0));
    const wait = rest - (performance.now() - (this.drawnAt ?? -Infinity));
    this.timer = setTimeout(() => {
      this.timer = null;
      if (this.held || !this.node.clientWidth) return;
      const start = performance.now();
      for (const name of NAMES) this.draw(name);
      this.drawnAt = performance.now();
      this.cost = this.drawnAt - start;
    }, Math.max(0, wait));
  }

  draw(name) {
    const { plot, empty, images } = this.plots[name];
    const started = this.series.i.length > 0;
    images.hidden = !started;
    empty.hidden = started;
    plot.classList.toggle("unseen", !started);
    setText(empty, this.head?.block_size === 1 ? words.charts.plain : words.charts.waiting);
    if (!started) return;
    const dark = Boolean(document.querySelector("html.dark, body.dark"));
    const { data, layout } = structuredClone(this.templates[name][dark ? "dark" : "light"]);
    this[name](data, layout);
    layout.width = plotWidth(plot);
    layout.uirevision = this.run; // zoom stays within a run
    layout.datarevision = this.revision += 1; // the arrays grow in place
    this.plotly.react(plot, data, layout, this.templates.config);
    if (!this.plots[name].listening) {
      this.plots[name].listening = true;
      plot.on("plotly_click", ({ points }) => this.onClick[name](points[0].x));
    }
  }

  lengths([bars, mean], layout) {
    const { i, tau, mean: means, shape, note } = this.series;
    Object.assign(bars, { x: i, y: tau, customdata: note });
    bars.marker.pattern.shape = shape;
    Object.assign(mean, { x: i, y: means });
    const limit = this.head.block_size;
    Object.assign(layout.shapes[0], { y0: limit, y1: limit });
    Object.assign(layout.annotations[0], { y: limit, text: layout.meta.limit_note + limit });
  }

  histogram([bars, theory]) {
    const lengths = this.stats?.lengths ?? [];
    const x = lengths.map((_, i) => i + 1);
    Object.assign(bars, { x, y: lengths });
    Object.assign(theory, { x, y: this.stats?.lengths_expected ?? [] });
  }

  positions([many, few, survival], layout) {
    const rows = (this.stats?.positions ?? []).filter((row) => row.rate !== null);
    const put = (trace, part) => {
      trace.x = part.map((row) => row.i);
      trace.y = part.map((row) => row.rate);
      trace.customdata = part.map((row) => [row.accepted, row.judged]);
      trace.error_y.array = part.map((row) => row.high - row.rate);
      trace.error_y.arrayminus = part.map((row) => row.rate - row.low);
    };
    const edge = this.head.trained_block_size - 0.5;
    const visible = this.head.block_size > this.head.trained_block_size;
    Object.assign(layout.shapes[0], { x0: edge, x1: edge, visible });
    Object.assign(layout.annotations[0], { x: edge, visible });
    put(many, rows.filter((row) => row.judged >= layout.meta.few));
    put(few, rows.filter((row) => row.judged < layout.meta.few));
    Object.assign(survival, { x: rows.map((row) => row.i), y: rows.map((row) => row.survival) });
  }
}
