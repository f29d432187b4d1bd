// The token strip: the prompt, then the text as it grows. A block is appended once and never touched again.

import { el, setText, visible } from "./dom.js";
import { isGhost, isText } from "./store.js";
import { words } from "./words.js";

// A chunk is laid out on its own (`contain: content`), so a new token never re-lays the text before it. Its edge is a
// soft line break; it is put where the text breaks anyway, as soon as the chunk is long enough.
const CHUNK = { newline: 96, space: 224, most: 320 };
const LONG_PROMPT = 48; // tokens
const LONG_TOKEN = 24; // characters: only longer ones are broken
const GLYPH_CLASS = { " ": "space", "\t": "tab", "\n": "newline", "\r": "return" };
const UNSEEN = /^[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]+$/u;
const BIDI = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/;

/** Out of sight, a full chunk costs nothing; but only after it was laid out once, so that its height is known. */
function settle(chunk) {
  requestAnimationFrame(() => requestAnimationFrame(() => chunk.classList.add("settled")));
}

const mayBreakBefore = (chip) => isText(chip) && /^\s/.test(chip.t);

/** First token of a block node that is not hidden. */
const first = (block) => block?.querySelector(".tok");

export class Strip {
  /**
   * states: words of the states; onInspect(node, chip, view, pinned) when a token is pointed at, focused or, until another
   * is or Escape, clicked (pinned), (null) when none is;
   * onOpen(view, k) when its block is to be opened at the token's place k, or null.
   */
  constructor(states, onInspect, onOpen) {
    this.states = states;
    this.onInspect = onInspect;
    this.onOpen = onOpen;
    this.chips = new WeakMap(); // token node -> [chip, view]
    this.promptText = el("div", { class: "tokens" });
    this.promptCount = el("span", { class: "count" });
    this.more = el("button", { type: "button", class: "quiet", "aria-expanded": "false" }, words.strip.more);
    this.more.addEventListener("click", () => this.fold(this.prompt.classList.toggle("folded")));
    this.prompt = el(
      "section",
      { class: "prompt" },
      el("h3", {}, words.strip.prompt, this.promptCount, this.more),
      this.promptText,
    );
    this.output = el("div", { class: "tokens output", "data-empty": words.strip.empty });
    this.scroller = el(
      "div",
      { class: "strip", role: "group", "aria-label": words.strip.label },
      this.prompt,
      el("section", {}, el("h3", {}, words.strip.output), this.output),
    );
    this.node = this.scroller;
    this.listen();
    this.clear();
  }

  clear() {
    this.pinned = null; // the token whose card stays
    this.blocks = []; // block index -> node
    this.chunk = null;
    this.cursor = null; // the one token in the tab order
    this.follow = true;
    this.end = 0; // the height of the text whose end the strip last scrolled to
    this.output.replaceChildren();
    this.promptText.replaceChildren();
    this.prompt.hidden = true;
    this.onInspect(null);
  }

  /** A run that is over is read from its beginning. */
  toTop() {
    this.follow = false;
    this.scroller.scrollTop = 0;
  }

  setPrompt(chips, count) {
    this.promptText.replaceChildren(...this.tokens(chips, null));
    this.prompt.hidden = chips.length === 0;
    setText(this.promptCount, words.strip.tokens(count));
    this.more.hidden = chips.length <= LONG_PROMPT;
    this.fold(!this.more.hidden);
  }

  fold(folded) {
    this.prompt.classList.toggle("folded", folded);
    this.more.setAttribute("aria-expanded", String(!folded));
    setText(this.more, folded ? words.strip.more : words.strip.less);
  }

  append(view) {
    const block = el("span", { class: "draft-block", "data-block": view.i }, ...this.tokens(view.chips, view));
    if (this.chunk === null || this.chunkEnds(view)) {
      if (this.chunk) settle(this.chunk);
      this.chunk = el("div", { class: "chunk" });
      this.size = 0;
      this.output.append(this.chunk);
    }
    // Break before the seam rather than between it and its token.
    if (mayBreakBefore(view.chips[0])) block.firstChild.remove();
    if (isGhost(view.chips[0])) block.classList.add("joined");
    if (isGhost(view.chips[0]) || mayBreakBefore(view.chips[0])) this.chunk.append(el("wbr"));
    this.chunk.append(block);
    this.blocks[view.i] = block;
    this.size += view.chips.length;
    this.lastText = view.chips.findLast(isText)?.t ?? this.lastText;
    if (this.cursor === null) this.setCursor(first(block));
    this.keepUp();
  }

  chunkEnds(view) {
    const next = view.chips.find(isText)?.t ?? "";
    return (
      (this.size >= CHUNK.newline && (this.lastText ?? "").endsWith("\n")) ||
      (this.size >= CHUNK.space && /^\s/.test(next)) ||
      this.size >= CHUNK.most
    );
  }

  /** Token nodes. A token is never broken; lines break before one that begins with white space. */
  tokens(chips, view) {
    return chips.flatMap((chip) => (mayBreakBefore(chip) ? [el("wbr"), this.token(chip, view)] : [this.token(chip, view)]));
  }

  token(chip, view) {
    const ghost = isGhost(chip);
    const node = el("span", { class: `tok s-${chip.s}` });
    if (chip.special) node.classList.add("special");
    if (chip.t.length > LONG_TOKEN) node.classList.add("long");
    if (BIDI.test(chip.t)) node.classList.add("isolated"); // a stray direction mark must not turn its neighbours round
    if (ghost || chip.special) {
      node.setAttribute("role", "note");
      node.setAttribute("aria-label", `${this.states[chip.s].aloud}: ${visible(chip.t)}`);
      node.append(visible(chip.t));
    } else if (UNSEEN.test(chip.t) && !/[\n\r\t]/.test(chip.t)) {
      node.dataset.unseen = visible(chip.t);
      node.append(chip.t);
    } else {
      for (const piece of chip.t.split(/([ \t\n\r])/)) {
        if (piece === "") continue;
        const glyph = GLYPH_CLASS[piece];
        node.append(glyph ? el("span", { class: `white ${glyph}` }, piece) : piece);
      }
    }
    this.chips.set(node, [chip, view]);
    return node;
  }

  /** Hide or show one state: ghosts vanish, tokens of the text lose their colours. */
  toggle(state, shown) {
    this.scroller.classList.toggle(`without-${state}`, !shown);
  }

  /** Bring block `i` into view and point it out for a moment. */
  reveal(i) {
    const block = this.blocks[i];
    if (!block) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    block.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
    this.scroller.querySelectorAll(".pointed-out").forEach((node) => node.classList.remove("pointed-out"));
    block.classList.add("pointed-out");
    this.setCursor(first(block));
    setTimeout(() => block.classList.remove("pointed-out"), 2500);
  }

  keepUp() {
    if (!this.follow || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      if (!this.follow) return;
      this.end = this.scroller.scrollHeight;
      this.scroller.scrollTop = this.end;
    });
  }

  listen() {
    const strip = this.scroller;
    const tokenOf = (event) => event.target.closest?.(".tok") ?? strip.querySelector(".tok:focus");
    strip.addEventListener("scroll", () => {
      // News of a scroll comes a frame late: text that came meanwhile is not the reader's turning back.
      const end = this.follow ? this.end : strip.scrollHeight;
      this.follow = end - strip.scrollTop - strip.clientHeight < 24;
      if (this.inspected) this.inspect(this.inspected); // the card goes with its token
    }, { passive: true });
    strip.addEventListener("pointerover", (event) => this.pinned || this.inspect(tokenOf(event)));
    strip.addEventListener("pointerleave", () => this.pinned || this.inspect(strip.querySelector(".tok:focus")));
    strip.addEventListener("focusin", (event) => this.inspect(tokenOf(event)));
    strip.addEventListener("focusout", () => this.unpin());
    strip.addEventListener("click", (event) => {
      const node = event.target.closest(".tok");
      if (!node || !getSelection().isCollapsed) return;
      this.focus(node);
      this.pinned = node;
      this.inspect(node);
    });
    strip.addEventListener("dblclick", (event) => {
      getSelection().removeAllRanges(); // a double click selects a word too
      this.open(event.target.closest(".tok"));
    });
    strip.addEventListener("keydown", (event) => this.key(event));
  }

  /** No card any more, not even that of a clicked token. */
  unpin() {
    this.pinned = null;
    this.inspect(null);
  }

  open(node) {
    const [chip, view] = this.chips.get(node) ?? [null, null];
    if (view?.n_drafted) this.onOpen(view, chip.k ?? null);
  }

  key(event) {
    const node = event.target;
    if (event.key === "Enter") this.open(node);
    if (!this.chips.has(node) || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const moves = {
      ArrowRight: () => this.step(node, "nextNode"),
      ArrowLeft: () => this.step(node, "previousNode"),
      ArrowDown: () => this.stepBlock(node, 1),
      ArrowUp: () => this.stepBlock(node, -1),
      Home: () => first(this.blocks[0]),
      End: () => this.blocks.at(-1)?.lastChild,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const next = moves[event.key]();
    if (next) this.focus(next);
  }

  step(node, way) {
    const walker = document.createTreeWalker(this.scroller, NodeFilter.SHOW_ELEMENT, (candidate) =>
      this.chips.has(candidate) && candidate.getClientRects().length ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_SKIP,
    );
    walker.currentNode = node;
    return walker[way]();
  }

  stepBlock(node, way) {
    const [, view] = this.chips.get(node);
    return first(this.blocks[view === null ? 0 : view.i + way]);
  }

  focus(node) {
    this.setCursor(node);
    node.focus({ preventScroll: true });
    node.scrollIntoView({ block: "nearest" });
  }

  setCursor(node) {
    this.cursor?.removeAttribute("tabindex");
    this.cursor = node;
    node.tabIndex = 0;
  }

  inspect(node) {
    const known = node ? this.chips.get(node) : null;
    this.inspected = known ? node : null;
    if (known) this.onInspect(node, ...known, node === this.pinned);
    else this.onInspect(null);
  }
}
