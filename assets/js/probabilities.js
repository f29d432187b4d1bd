// p and q of one judged place as bars: as the run recorded them, or reshaped to another temperature from what it recorded.

import { current } from "./current.js";
import { el, fixed, probability, setText } from "./dom.js";
import { words } from "./words.js";

const t = words.block;

/** The bars of place k of a block, with their temperature slider. shown(token id): its text, for reading. */
export function probabilities(view, judged, k, shown) {
  const heading = el("h4");
  const chart = el("div", { class: "bars" });
  const note = el("p", { class: "bars-note" });
  const draw = (temperature) => {
    const [rows, said] = shares(judged, view.drafted[k - 1], temperature);
    chart.replaceChildren(...bars(view, rows, k, shown));
    setText(heading, temperature === null ? t.bars(k, current.head.temperature) : t.barsAt(k, fixed(temperature, 2)));
    setText(note, said ?? t.overlap(...overlap(rows).map(probability)));
  };
  draw(null);
  return el(
    "section",
    { class: "bars-part" },
    heading,
    el(
      "p",
      { class: "bars-key" },
      el("span", { class: "key key-p" }, t.target),
      el("span", { class: "key key-q" }, t.draft),
      el("span", { class: "key key-min" }, t.shared),
    ),
    chart,
    note,
    reshape(draw, judged.top.length > 0),
  );
}

/** Σ min(p, q): [least, most] that it can be. Tokens that are not listed share as much as their sums allow, or nothing. */
export function overlap(rows) {
  const shared = (some) => some.reduce((sum, [, p, q]) => sum + Math.min(p, q), 0);
  return [shared(rows.filter(([id]) => id !== null)), shared(rows)];
}

/** [[id, p, q], …, [null, rest of p, rest of q]] at the run's temperature; at another one, of the listed tokens alone. */
export function shares(judged, drafted, temperature) {
  // The drafted token is shown even where it is none of the most likely ones.
  const top = judged.top.some(([id]) => id === drafted) ? judged.top : [...judged.top, [drafted, judged.p, judged.q]];
  const total = (i) => top.reduce((sum, entry) => sum + entry[i], 0);
  const held = [total(1), total(2)];
  if (temperature === null) {
    const rest = held.map((sum) => Math.max(0, 1 - sum));
    return [[...top, ...(rest[0] + rest[1] > 1e-6 ? [[null, ...rest]] : [])], null];
  }
  const { temperature: run, draft_temperature: own } = current.head;
  const columns = [1, 2].map((i) => {
    const power = (i === 1 ? run : (own ?? run)) / temperature;
    const weights = top.map((entry) => entry[i] ** power);
    const sum = weights.reduce((a, b) => a + b, 0) || 1;
    return weights.map((weight) => weight / sum);
  });
  const rows = top.map(([id], n) => [id, columns[0][n], columns[1][n]]);
  return [rows, t.whatIf(...held.map((sum) => `${fixed(100 * sum, 1)} %`))];
}

/** The slider that draws at another temperature, or a line that says why there is none. */
function reshape(draw, tabled) {
  const { temperature, draft_temperature: own, top_p: topP, top_k: topK } = current.head;
  if (!(Math.min(temperature, own ?? temperature) >= 1e-5)) return el("p", { class: "bars-note" }, t.fixedTemperature);
  if (!tabled) return el("p", { class: "bars-note" }, t.noTable);
  if (topP < 1 || topK > 0) return el("p", { class: "bars-note" }, t.truncated);
  const value = el("output", {}, fixed(temperature, 2));
  const slider = el("input", { type: "range", min: 0.1, max: 2, step: 0.05, value: temperature, "aria-label": t.temperature });
  const reset = el("button", { type: "button", class: "block-button", "aria-label": t.reset }, t.reset);
  reset.addEventListener("click", () => {
    slider.value = temperature;
    setText(value, fixed(temperature, 2));
    draw(null);
  });
  slider.addEventListener("input", () => {
    setText(value, fixed(Number(slider.value), 2));
    draw(Number(slider.value));
  });
  return el("div", { class: "reshape" }, el("label", {}, `${t.temperature} `, value, slider), reset);
}

function bars(view, rows, k, shown) {
  const own = view.kept >= k ? view.drafted[k - 1] : view.emitted[k - 1];
  return rows.map(([id, p, q]) => {
    const marks = [id === view.drafted[k - 1] ? t.drafted : null, id !== null && id === own ? (view.kept >= k ? t.kept : t.emitted) : null].filter(Boolean);
    const bar = (name, share) => {
      const node = el("span", { class: `bar bar-${name}` });
      node.style.width = `${100 * Math.min(1, share)}%`;
      return node;
    };
    return el(
      "div",
      { class: "bar-row" },
      el("span", { class: "bar-name" }, id === null ? t.rest : shown(id), marks.length ? el("small", {}, marks.join(", ")) : null),
      el("span", { class: "bar-pair", "aria-hidden": "true" }, bar("p", p), bar("q", q), bar("min", Math.min(p, q))),
      el("span", { class: "bar-numbers" }, `p ${probability(p)} `, el("br"), `q ${probability(q)}`),
    );
  });
}
