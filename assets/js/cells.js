// Paints the cells of the timeline. Far away a block is one column of a picture that is only added to; near by, every
// cell has its state's mark; nearer still, its token's text.

const PAINTED = 6; // px: narrower columns come from the picture
const MARKED = 16; // px: wider cells have marks
const BOXED = 24; // px: so are those with a box within
const WORDED = 54; // px: wider cells have their text
const MARKED_ROW = 17;
const WORDED_ROW = 22;
const MOST_ROW = 22;
const STATES = ["accepted", "resampled", "bonus", "rejected", "unjudged", "cut"];

/** What stands at place k of a block: the state of its token or, after the last of them, that of the draft; else null. */
export function stateAt(view, k) {
  if (k <= view.emitted.length) return k <= view.kept ? "accepted" : view.next;
  if (k > view.n_drafted) return null;
  return view.cut ? "cut" : "unjudged";
}

export class Cells {
  constructor(canvas, states) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.marks = Object.fromEntries(STATES.map((state) => [state, states[state].mark]));
    this.picture = document.createElement("canvas");
    this.clear();
  }

  /** Another run. */
  clear() {
    this.have = 1; // the next block of the picture: block 0 is the prefill
    this.picture.width = this.picture.height = 0;
  }

  /** Another theme. */
  recolour() {
    this.colours = null;
    this.clear();
  }

  rowHeight(w, most) {
    if (w >= WORDED) return WORDED_ROW;
    return w >= MARKED ? MARKED_ROW : Math.max(4, Math.min(MOST_ROW, Math.floor(most)));
  }

  begin(width, height, views, rows) {
    this.views = views;
    this.rows = rows;
    if (!this.colours) this.readColours();
    const ratio = devicePixelRatio || 1;
    const size = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== size[0] || this.canvas.height !== size[1]) {
      [this.canvas.width, this.canvas.height] = size;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen.clearRect(0, 0, width, height);
    this.paintPicture();
  }

  readColours() {
    const style = getComputedStyle(this.canvas);
    const read = (name) => style.getPropertyValue(name).trim();
    const of = (part) => Object.fromEntries(STATES.map((state) => [state, read(`--tok-${state}-${part}`)]));
    this.colours = { fill: of("fill"), chip: of("chip"), edge: of("edge") };
    for (const name of ["ink", "soft", "line", "paper", "accent", "warning"]) this.colours[name] = read(`--lab-${name}`);
    this.fonts = { text: read("--lab-font"), mono: read("--lab-font-mono") };
  }

  /** A pixel a cell. Only the blocks that are new are painted; the picture doubles when it is full. */
  paintPicture() {
    const { picture, views, rows } = this;
    if (picture.height !== rows || picture.width < views.length) {
      const kept = picture.height === rows && picture.width ? picture.getContext("2d").getImageData(0, 0, picture.width, rows) : null;
      if (!kept) this.have = 1;
      picture.width = Math.max(256, 2 ** Math.ceil(Math.log2(views.length)));
      picture.height = rows;
      if (kept) picture.getContext("2d").putImageData(kept, 0, 0);
    }
    const pen = picture.getContext("2d");
    for (; this.have < views.length; this.have += 1) {
      for (let k = 1; k <= rows; k += 1) {
        const state = stateAt(views[this.have], k);
        if (!state) continue;
        const ghost = state === "unjudged" || state === "cut"; // near by only an outline, so far away only a breath
        pen.fillStyle = ghost ? this.colours.line : this.colours.fill[state];
        pen.globalAlpha = ghost ? 0.45 : 1;
        pen.fillRect(this.have - 1, rows - k, 1, 1);
      }
    }
  }

  /** Blocks first … last, the first at x, each w wide, its places h high. textOf(token id), for reading. */
  columns({ first, last, x, w, h, textOf }) {
    const { pen, rows } = this;
    if (w < PAINTED) {
      const count = last - first + 1;
      pen.imageSmoothingEnabled = w < 1; // below a pixel a block, colours mix rather than vanish
      pen.imageSmoothingQuality = "high";
      if (count > 0) pen.drawImage(this.picture, first - 1, 0, count, rows, x, 0, count * w, rows * h);
      return;
    }
    for (let i = first; i <= last; i += 1) {
      for (let k = 1; k <= rows; k += 1) this.cell(this.views[i], k, x + (i - first) * w, (rows - k) * h, w, h, textOf);
    }
  }

  cell(view, k, x, y, w, h, textOf) {
    const state = stateAt(view, k);
    if (!state) return;
    const gap = w < MARKED ? 0.5 : 1;
    const box = { x: x + gap, y: y + gap, w: w - 2 * gap, h: h - 2 * gap };
    const worded = w >= WORDED;
    const marked = w >= MARKED && h >= MARKED_ROW;
    if (state === "resampled" && marked) {
      // The draft that was turned down, and the token that took its place.
      const share = worded ? 0.14 : 0.25;
      this.state("rejected", { ...box, w: share * box.w }, marked, worded);
      this.state(state, { ...box, x: box.x + share * box.w + 1, w: (1 - share) * box.w - 1 }, marked, worded);
    } else this.state(state, box, marked, worded);
    if (worded) this.text(textOf(k <= view.emitted.length ? view.emitted[k - 1] : view.drafted[k - 1]), state, box);
  }

  state(state, { x, y, w, h }, marked, worded) {
    const { pen, colours } = this;
    const ghost = state === "unjudged" || state === "cut";
    const edge = worded ? colours.edge[state] : colours.paper;
    pen.fillStyle = worded ? colours.chip[state] : colours.fill[state];
    if (!ghost) pen.fillRect(x, y, w, h);
    pen.strokeStyle = colours.edge[state];
    pen.lineWidth = 1;
    if (ghost) {
      pen.setLineDash(marked && state === "unjudged" ? [1, 2] : []);
      pen.strokeStyle = marked ? colours.edge[state] : colours.line;
      pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
      pen.setLineDash([]);
    }
    if (!marked) return;
    pen.strokeStyle = edge;
    if (state === "accepted") this.line(x + 2, x + w - 2, y + h - 2.5, 2);
    if (state === "bonus") for (const up of [1.5, 4.5]) this.line(x + 2, x + w - 2, y + h - up, 1);
    if (state === "rejected") this.hatch(x, y, w, h);
    if (state === "resampled" && w > BOXED) {
      pen.lineWidth = 2;
      pen.strokeRect(x + 1.5, y + 1.5, w - 3, h - 3);
    }
    const mark = this.marks[state];
    if (!mark || worded) return;
    const colour = ghost || state === "bonus" ? colours.edge[state] : colours.paper;
    this.write(mark, x + w / 2, y + h / 2 - (state === "bonus" ? 1.5 : 0), `700 13px ${this.fonts.text}`, colour);
  }

  line(x0, x1, y, width) {
    const { pen } = this;
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(x0, y);
    pen.lineTo(x1, y);
    pen.stroke();
  }

  hatch(x, y, w, h) {
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    pen.lineWidth = 1.2;
    pen.beginPath();
    for (let at = x - h; at < x + w; at += 4) {
      pen.moveTo(at, y + h);
      pen.lineTo(at + h, y);
    }
    pen.stroke();
    pen.restore();
  }

  text(text, state, { x, y, w, h }) {
    const { pen, colours } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    const mark = this.marks[state] ? `${this.marks[state]} ` : "";
    pen.globalAlpha = state === "unjudged" || state === "cut" ? 0.75 : 1;
    const start = state === "resampled" ? x + 0.14 * w + 6 : x + 5;
    this.write(mark + text, start, y + h / 2, `12px ${this.fonts.mono}`, colours.ink, "left");
    pen.restore();
  }

  write(text, x, y, font, colour, align = "center") {
    const { pen } = this;
    pen.font = font;
    pen.fillStyle = colour;
    pen.textAlign = align;
    pen.textBaseline = "middle";
    pen.fillText(text, x, y);
  }

  /** Numbers of places and blocks, and a line above the places that the draft was trained for. */
  axes({ first, last, left, w, h, gutter, axis, trained }) {
    const { pen, colours, rows } = this;
    const width = this.canvas.clientWidth;
    pen.clearRect(0, 0, gutter - 2, rows * h);
    const font = `11px ${this.fonts.text}`;
    const each = Math.ceil(13 / h);
    for (let k = 1; k <= rows; k += 1) {
      const shown = k === 1 || k === rows || (k % each === 0 && rows - k >= each);
      if (shown) this.write(String(k), gutter - 7, (rows - k + 0.5) * h, font, colours.soft, "right");
    }
    const least = 46 / w;
    const step = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000].find((size) => size >= least) ?? 5000;
    for (let i = Math.max(1, Math.ceil(first / step) * step); i <= last; i += step) {
      const x = gutter + (i - 0.5) * w - left;
      if (x < gutter || x > width - 12) continue;
      pen.strokeStyle = colours.soft;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(x, rows * h + 2);
      pen.lineTo(x, rows * h + 6);
      pen.stroke();
      this.write(String(i), x, rows * h + axis - 9, font, colours.soft);
    }
    if (rows > trained) {
      pen.strokeStyle = colours.warning;
      pen.setLineDash([6, 4]);
      this.line(gutter, gutter + last * w - left, (rows - trained + 1) * h, 2);
      pen.setLineDash([]);
    }
  }

  /** The block on show, and its place. */
  point({ k, x, w, h }) {
    const { pen, colours, rows } = this;
    const [low, wide] = w < 4 ? [x + w / 2 - 2, 4] : [x, w];
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 2;
    pen.strokeRect(low, 1, wide, rows * h - 1);
    pen.fillStyle = colours.ink;
    pen.beginPath();
    pen.moveTo(low + wide / 2, rows * h + 1);
    pen.lineTo(low + wide / 2 - 5, rows * h + 9);
    pen.lineTo(low + wide / 2 + 5, rows * h + 9);
    pen.fill();
    if (w >= MARKED && k) {
      pen.strokeStyle = colours.accent;
      pen.lineWidth = 3;
      pen.strokeRect(x + 1.5, (rows - k) * h + 1.5, w - 3, h - 3);
    }
  }
}
