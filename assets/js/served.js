// What more than one part of the page needs from the app: the style sheet, and Plotly. Each is fetched once.

import { el } from "./dom.js";

export async function addStyles(theme, href) {
  if (document.querySelector("style[data-lab-theme]")) return;
  const link = el("link", { rel: "stylesheet", href });
  const loaded = new Promise((resolve) => (link.onload = link.onerror = resolve));
  document.head.append(el("style", { "data-lab-theme": true }, theme), link);
  await loaded;
}

let plotly = null;

/** Plotly from the app itself, kept out of `window`: a gr.Plot anywhere on the page brings another version and sets that. */
export function loadPlotly(url) {
  return (plotly ??= fetchPlotly(url));
}

async function fetchPlotly(url) {
  // Where Gradio has its base element, Plotly names its clipping shapes by the page's whole address; what they clip would be
  // gone as soon as a control changes that. Without it every link means the same.
  document.querySelector("base[href='./']")?.remove();
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  const module = { exports: {} };
  new Function("module", "exports", await answer.text())(module, module.exports);
  return module.exports;
}
