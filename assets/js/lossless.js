// The Lossless? tab: one check, as the server worded and drew it (dflash_ui/lossless_tab.py). Computes nothing.

import { el } from "./dom.js";
import { imageButtons } from "./images.js";
import { onPrint, plotWidth } from "./paper.js";
import { addStyles, loadPlotly } from "./served.js";
import { words } from "./words.js";

/** As for the stage (stage.py); boot: {theme, config, empty}. */
export async function start({ element, props, watch, boot, urls }) {
  const root = el("div", { class: "stage law" });
  await addStyles(boot.theme, urls.css);
  element.replaceChildren(root);
  let plot = null;
  let figure = null;
  let plotly = null;

  const draw = async () => {
    if (!plot?.clientWidth) return;
    const node = plot;
    try {
      plotly = await loadPlotly(urls.plotly);
      const dark = Boolean(document.querySelector("html.dark, body.dark"));
      const { data, layout } = structuredClone(figure[dark ? "dark" : "light"]);
      plotly.react(node, data, { ...layout, width: plotWidth(node) }, boot.config);
    } catch {
      node.replaceChildren(el("p", { class: "plot-empty" }, words.charts.failed));
    }
  };

  const update = () => {
    const check = props.value ? JSON.parse(props.value) : null;
    plot = check ? el("div", { class: "plot", role: "group", "aria-label": check.about }) : null;
    figure = check?.figure;
    root.replaceChildren(...(check ? content(check, plot, imageButtons(() => plotly, plot, "lossless")) : [el("p", { class: "law-empty" }, boot.empty)]));
    root.dataset.checks = Number(root.dataset.checks ?? 0) + (check ? 1 : 0);
    draw();
  };

  onPrint(draw);
  // Also fires when the hidden tab is opened.
  new ResizeObserver(draw).observe(root);
  for (const node of [document.documentElement, document.body]) {
    new MutationObserver(draw).observe(node, { attributeFilter: ["class"] });
  }
  watch("value", update);
  update();
}

function content({ about, badge, verdict, numbers, why, table }, plot, images) {
  const cell = ({ name, value, note }) =>
    el(
      "div",
      { class: "figure" },
      el("dt", {}, name),
      el("dd", { class: "main" }, el("span", { class: "value" }, value)),
      el("dd", { class: "note" }, note),
    );
  const row = (cells) => el("tr", {}, ...cells.map((text) => el("td", {}, text)));
  return [
    el("p", { class: "law-about" }, el("span", { class: `badge badge-${badge.good ? "good" : "bad"}` }, badge.text), ` ${about}`),
    el("div", { class: `law-verdict law-${verdict.kind}`, role: "status" }, el("h3", {}, verdict.title), el("p", {}, verdict.note)),
    el("dl", { class: "figures" }, ...numbers.map(cell)),
    el(
      "div",
      { class: "law-parts" },
      el("div", { class: "chart" }, plot, images),
      el("section", { class: "law-why" }, el("h3", {}, why.title), el("p", {}, why.text)),
    ),
    el(
      "details",
      { class: "law-table" },
      el("summary", {}, table.title),
      el("table", {}, el("thead", {}, el("tr", {}, ...table.head.map((text) => el("th", {}, text)))), el("tbody", {}, ...table.rows.map(row))),
    ),
  ];
}
