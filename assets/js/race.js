// The Race tab: a race as the server measured and worded it (dflash_ui/race_report.py), and its replay. Computes no figure.

import { el, setText, visible } from "./dom.js";
import { imageButtons } from "./images.js";
import { onPrint, plotWidth } from "./paper.js";
import { Replay } from "./replay.js";
import { addStyles, loadPlotly } from "./served.js";
import { Status } from "./status.js";
import { words } from "./words.js";

/** As for the stage (stage.py); boot: {theme, config, empty, states: {key: label}}. */
export async function start({ element, props, watch, boot, urls }) {
  await addStyles(boot.theme, urls.css);
  const status = new Status();
  const body = el("div", { class: "race-body" });
  const root = el("div", { class: "stage race" }, status.node, body);
  const empty = () => el("p", { class: "law-empty" }, boot.empty);
  status.node.hidden = true;
  body.append(empty());
  element.replaceChildren(root);
  let shown = null; // id of the race on show
  let head = null;
  let replay = null;
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

  const clear = () => {
    replay?.pause();
    replay = plot = figure = head = null;
    status.facts.replaceChildren();
    body.replaceChildren();
    delete root.dataset.result;
  };

  const showResult = (result) => {
    replay = new Replay(result.lanes, boot.states);
    plot = el("div", { class: "plot", role: "group", "aria-label": words.race.chart(result.why.lines.join(" ")) });
    figure = result.figure;
    body.replaceChildren(...content(result, replay, plot, imageButtons(() => plotly, plot, "race", figure.light.layout.title.text)));
    root.dataset.result = shown;
    replay.begin();
    draw();
  };

  const update = () => {
    if (!props.value) return;
    const race = JSON.parse(props.value);
    if (race.race !== shown) clear();
    shown = race.race;
    status.node.hidden = false;
    if (race.head && !head) status.showRun((head = race.head));
    status.update(race);
    if (race.result && root.dataset.result !== shown) showResult(race.result);
    root.dataset.race = shown;
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

function content({ about, caption, verdicts, numbers, why, tables }, replay, plot, images) {
  const cell = ({ name, value, note }) =>
    el(
      "div",
      { class: "figure" },
      el("dt", {}, name),
      el("dd", { class: "main" }, el("span", { class: "value" }, value)),
      el("dd", { class: "note" }, note),
    );
  return [
    replay.node,
    el("p", { class: "race-caption" }, caption),
    el("div", { class: "race-verdicts" }, ...verdicts.map(verdict)),
    el("dl", { class: "figures" }, ...numbers.map(cell)),
    el(
      "div",
      { class: "law-parts" },
      el("div", { class: "chart" }, plot, images),
      el("section", { class: "law-why" }, el("h3", {}, why.title), ...why.lines.map((line) => el("p", {}, line))),
    ),
    el("p", { class: "law-about" }, about),
    ...tables.map(({ title, head, rows }) =>
      el("details", { class: "law-table" }, el("summary", {}, title), table(head, rows.map((row) => row.map((text) => [text])))),
    ),
  ];
}

function verdict({ kind, title, note, difference }) {
  return el(
    "section",
    { class: `law-verdict law-${kind}` },
    el("h3", {}, title),
    el("p", {}, note),
    difference ? table(difference.head, difference.rows.map(({ name, token, margin }) => [[name], shownToken(token), [margin]])) : null,
  );
}

/** A token's text for reading; null is where a text had ended. */
function shownToken(token) {
  return [token === null ? words.race.ended : el("code", {}, visible(token))];
}

/** rows: of cells, each a list of nodes or strings. */
function table(head, rows) {
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, ...cell))))),
  );
}
