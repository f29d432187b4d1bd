// The Block tab: one draft-verify cycle of the run on show, from what was recorded of it. Everything here happened.

import { current } from "./current.js";
import { el, fixed, probability, setText, visible } from "./dom.js";
import { overlap, probabilities, shares } from "./probabilities.js";
import { addStyles } from "./served.js";
import { Timeline } from "./timeline.js";
import { words } from "./words.js";

const PHASES = ["draft", "verify", "verdict", "commit"];
const PLAY_MS = 700; // a phase
const MOST_TEXT = 24; // characters of a token

/** As for the stage (stage.py); boot: {theme, states}. */
export async function start({ element, boot, urls }) {
  await addStyles(boot.theme, urls.css);
  const inspector = new Inspector(boot.states);
  element.replaceChildren(inspector.node);
  for (const event of ["run", "block", "open"]) current.addEventListener(event, () => inspector.changed(event));
  inspector.changed(current.asked ? "open" : "run");
}

class Inspector {
  constructor(states) {
    const t = words.block;
    this.timeline = new Timeline(states, (id) => this.shown(id), (i, k) => this.show(i, k));
    this.title = el("h3", { class: "block-title", "aria-live": "polite" });
    this.where = el("span", { class: "block-where" });
    this.slider = el("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": t.scrub, class: "block-slider" });
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    this.previous = this.button("‹", t.previous, () => this.show(this.i - 1));
    this.next = this.button("›", t.next, () => this.show(this.i + 1));
    this.play = this.button(t.play, t.play, () => (this.timer ? this.stop() : this.begin()));
    this.cycle = el("ol", { class: "cycle" });
    this.tabs = el("div", { class: "block-places", role: "group", "aria-label": t.places });
    this.detail = el("div", { class: "block-detail" });
    this.body = el("div", {}, this.cycle, this.tabs, this.detail);
    this.empty = el("p", { class: "law-empty" });
    this.controls = el(
      "div",
      { class: "block-controls" },
      this.previous, this.slider, this.next, this.play, el("p", { class: "block-keys" }, t.keys),
    );
    const find = this.button(t.find, t.find, () => current.find());
    this.head = el("div", { class: "block-head" }, this.title, this.where, find);
    this.among = el("span");
    this.nextOfThem = this.button(t.nextOfThem, t.nextOfThem, () => current.openNext(current.asked.among));
    this.set = el("p", { class: "block-set" }, this.among, this.nextOfThem);
    this.promised = el("p", { class: "block-promised" });
    const parts = [this.promised, this.timeline.node, this.head, this.set, this.controls, this.body, this.empty];
    this.node = el("div", { class: "stage inspector" }, el("h2", { class: "only-spoken" }, t.heading), ...parts);
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.i = null;
  }

  button(text, label, action) {
    const button = el("button", { type: "button", class: "block-button", "aria-label": label }, text);
    button.addEventListener("click", action);
    return button;
  }

  /** Blocks that drafted something; block 0 is the prefill. */
  get last() {
    return current.views.length - 1;
  }

  changed(event) {
    if (event === "run") this.stop();
    this.promised.hidden = !current.promised;
    if (current.promised) setText(this.promised, words.block.promised(current.promised.i));
    const drafts = (current.head?.block_size ?? 0) > 1;
    const any = drafts && this.last >= 1;
    for (const node of [this.timeline.node, this.head, this.set, this.controls, this.body]) node.hidden = !any;
    this.empty.hidden = any;
    if (!any) {
      this.i = null;
      current.look(null);
      setText(this.empty, current.head && !drafts ? words.block.plain : words.block.none);
      return;
    }
    this.slider.max = this.last;
    if (event === "open" && current.asked) {
      const { i, k } = current.asked;
      this.show(i, k);
      this.toTop();
    } else if (event === "run" || this.i === null) {
      this.show(1);
    } else {
      this.headline();
    }
  }

  /** Whoever clicked far down on another tab finds the block's head, not its end. Two frames: the tab opens first. */
  toTop() {
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        if (this.head.getBoundingClientRect().top < 0) this.node.scrollIntoView();
      }),
    );
  }

  headline() {
    const view = current.views[this.i];
    setText(this.title, words.block.title(this.i, this.last));
    setText(this.where, words.block.where(view.start, view.start + view.n_drafted));
    this.slider.value = this.i;
    this.previous.disabled = this.i <= 1;
    this.next.disabled = this.i >= this.last;
  }

  show(i, k = null, phase = PHASES.length - 1) {
    this.i = Math.max(1, Math.min(i, this.last));
    this.node.dataset.block = this.i;
    this.temperature = null;
    const view = current.views[this.i];
    const among = current.asked?.among;
    const found = among ? current.fitting(among) : [];
    this.set.hidden = !found.length;
    if (among) setText(this.among, words.block.among(found.indexOf(this.i) + 1, found.length, among.said));
    this.headline();
    this.drawCycle(view, phase);
    this.tabs.replaceChildren(
      ...view.judged.map((_, n) => {
        const node = this.button(this.shown(view.drafted[n]), this.placeLabel(view, n + 1), () => this.choose(n + 1));
        node.classList.add("tok", `s-${this.stateOf(view, n + 1)}`);
        return node;
      }),
    );
    this.choose(Math.min(k ?? view.judged.length, view.judged.length) || 1);
  }

  placeLabel(view, k) {
    return words.block.place(k, this.shown(view.drafted[k - 1]), words.block[k <= view.kept ? "accepted" : "rejected"]);
  }

  stateOf(view, k) {
    if (view.cut && k > view.emitted.length) return "cut";
    return k <= view.kept ? "accepted" : k === view.kept + 1 ? "rejected" : "unjudged";
  }

  /** A token's text for reading: white space visible, long ones shortened. */
  shown(id) {
    const text = visible(current.words.get(id) ?? `#${id}`);
    return text.length > MOST_TEXT ? `${text.slice(0, MOST_TEXT)}…` : text || `#${id}`;
  }

  token(id, state) {
    return el("span", { class: `tok s-${state}` }, this.shown(id));
  }

  drawCycle(view, phase) {
    const t = words.block.phases;
    const [draft, verify] = view.sec.map((seconds) => fixed(1000 * seconds, 1));
    const anchor = () => this.token(view.anchor, "plain");
    const drafted = (state) => view.drafted.map((id, n) => this.token(id, state(n + 1)));
    const emitted = view.emitted.map((id, n) => this.token(id, n < view.kept ? "accepted" : view.next));
    const forgotten = Math.max(0, view.n_drafted - Math.min(view.kept, view.emitted.length));
    const rows = {
      draft: [t.draft[1](view.n_drafted, draft), [anchor(), ...drafted(() => "unjudged")]],
      verify: [t.verify[1](view.n_drafted + 1, verify), [anchor(), ...drafted(() => "unjudged")]],
      verdict: [t.verdict[1](current.head.rule_label), drafted((k) => this.stateOf(view, k))],
      commit: [t.commit[1](view.emitted.length, forgotten), emitted],
    };
    this.cycle.replaceChildren(
      ...PHASES.map((name, n) =>
        el(
          "li",
          { class: n <= phase ? "phase" : "phase to-come", "data-phase": name },
          el("h4", {}, t[name][0]),
          el("p", {}, rows[name][0]),
          el("div", { class: "phase-tokens" }, ...rows[name][1]),
        ),
      ),
    );
  }

  choose(k) {
    const view = current.views[this.i];
    const judged = view.judged[k - 1];
    this.k = k;
    current.look(this.i, k);
    [...this.tabs.children].forEach((node, n) => node.setAttribute("aria-pressed", String(n + 1 === k)));
    this.detail.replaceChildren(...(judged ? this.details(view, judged, k) : []));
  }

  details(view, judged, k) {
    return [
      probabilities(view, judged, k, (id) => this.shown(id)),
      el(
        "section",
        { class: "block-says" },
        el("h4", {}, words.block.happened(current.head.temperature)),
        el("ul", {}, ...this.says(view, judged, k).map((line) => el("li", {}, line))),
      ),
    ];
  }

  /** What happened at place k, from the block's own numbers. */
  says(view, judged, k) {
    const t = words.block.says;
    const { rule } = current.head;
    const kept = k <= view.kept;
    const quoted = (id) => `“${this.shown(id)}”`;
    const lines = [t.drew(quoted(view.drafted[k - 1]), probability(judged.q)), t.scored(probability(judged.p))];
    const a = probability(judged.a);
    lines.push({ match: t.match, "greedy-match": t.match, coupled: t.coupled, block: t.block }[rule]?.(a) ?? t.ratio(a));
    if (judged.u !== null) lines.push(rule === "block" ? t.passing(fixed(judged.u, 3)) : t.drawn(fixed(judged.u, 3), kept));
    const cut = k > view.emitted.length;
    if (kept) lines.push(t.kept);
    else if (cut) lines.push(t.rejectedCut);
    else {
      const text = quoted(view.emitted[k - 1]);
      lines.push(({ speculative: t.residual, block: t.blockResidual, naive: t.naive }[rule] ?? t.own)(text));
      const chance = rule === "speculative" ? residualChance(judged, view.drafted[k - 1], view.emitted[k - 1]) : null;
      if (chance) lines.push(t.chance(text, ...chance.map(probability)));
    }
    if (kept && cut) lines.push(`(${words.block.unseen})`);
    return lines;
  }

  begin() {
    let phase = -1;
    if (this.i >= this.last) this.show(1, null, 0);
    setText(this.play, words.block.pause);
    this.timer = setInterval(() => {
      phase += 1;
      if (phase < PHASES.length) return this.drawCycle(current.views[this.i], phase);
      if (this.i >= this.last) return this.stop();
      phase = 0;
      this.show(this.i + 1, null, 0);
    }, PLAY_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    setText(this.play, words.block.play);
    if (this.i !== null && current.views[this.i]) this.drawCycle(current.views[this.i], PHASES.length - 1);
  }

  key(event) {
    if (event.target.type === "range" || event.ctrlKey || event.metaKey || event.altKey) return;
    const n = current.views[this.i]?.judged.length ?? 0;
    const moves = {
      ArrowRight: () => this.show(this.i + 1),
      ArrowLeft: () => this.show(this.i - 1),
      ArrowDown: () => this.choose(Math.min(n, this.k + 1)),
      ArrowUp: () => this.choose(Math.max(1, this.k - 1)),
      Home: () => this.show(1),
      End: () => this.show(this.last),
    };
    if (!(event.key in moves) || this.i === null) return;
    event.preventDefault();
    moves[event.key]();
  }
}

/** [least, most] probability (p − q)₊ / (1 − Σ min(p, q)) of a token in the residual; null if it is not among those recorded. */
function residualChance(judged, drafted, id) {
  const [rows] = shares(judged, drafted, null);
  const row = rows.find(([token]) => token === id);
  if (!row) return null;
  return overlap(rows).map((shared) => (shared < 1 ? Math.min(1, Math.max(0, row[1] - row[2]) / (1 - shared)) : 1));
}
