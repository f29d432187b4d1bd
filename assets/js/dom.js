// Making nodes and writing numbers. Text from outside reaches the page here only, as text nodes.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set text only when it differs, so that live regions and layout stay quiet. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const known = (x) => typeof x === "number" && Number.isFinite(x);

export const fixed = (x, digits, none = "–") => (known(x) ? x.toFixed(digits) : none);

export const integer = (x, none = "–") => (known(x) ? Math.round(x).toLocaleString("en") : none);

/** A probability with three significant digits; never rounded to a false 0 or 1. */
export function probability(x) {
  if (!known(x)) return "–";
  if (x === 0 || x === 1) return String(x);
  if (x < 1e-4) {
    const [digits, power] = x.toExponential(1).split("e-");
    return `${digits} × 10⁻${power.replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])}`;
  }
  if (x > 0.9995) return "> 0.999";
  return x < 0.1 ? x.toPrecision(2) : x.toFixed(3);
}

const GLYPHS = { " ": "␣", "\n": "⏎", "\r": "␍", "\t": "→" };

/** White space, control and zero-width characters made visible: for places that are read, not copied. */
export function visible(text) {
  return text
    .replace(/[ \n\r\t]/g, (c) => GLYPHS[c])
    .replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}
