// Charts as pictures: PNG and SVG, made in the browser.

import { el, setText } from "./dom.js";
import { words } from "./words.js";

const FORMATS = { png: 2, svg: 1 }; // scale

/** Buttons that save a chart. plotly() -> Plotly; plot: the node it drew in; name: of the file; title: what a chart is called. */
export function imageButtons(plotly, plot, name, title = plot.getAttribute("aria-label")) {
  const button = ([format, scale]) => {
    const label = format.toUpperCase();
    const node = el("button", { type: "button", class: "save-image", title: words.images.title(label) }, label);
    node.setAttribute("aria-label", words.images.label(label, title));
    node.addEventListener("click", () => {
      const { data, layout } = plot;
      if (!plotly() || !data) return;
      const paper = getComputedStyle(plot).getPropertyValue("--lab-paper").trim(); // on the page the chart has none of its own
      const { width, height } = layout;
      plotly()
        .downloadImage({ data, layout: { ...layout, paper_bgcolor: paper } }, { format, width, height, scale, filename: `dflash-${name}` })
        .catch(() => setText(node, words.images.failed));
    });
    return node;
  };
  return el("div", { class: "save-images" }, ...Object.entries(FORMATS).map(button));
}
