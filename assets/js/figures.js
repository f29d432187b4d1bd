// The strip of figures. It formats what the core computed; it computes nothing.

import { el, fixed, integer, setText } from "./dom.js";
import { words } from "./words.js";

const t = words.figures;
const join = (...parts) => parts.filter(Boolean).join(" · ");
const has = (x) => typeof x === "number";

export class Figures {
  constructor() {
    this.cells = {};
    this.list = el("dl", { class: "figures" });
    for (const key of ["tau", "accepted", "speed", "saved", "time", "speedup"]) this.list.append(this.cell(key));
    this.notices = el("ul", { class: "notices" });
    this.shares = ["draft", "verify", "other"].map((key) => el("span", { class: `share share-${key}` }));
    this.split = el("div", { class: "split", "aria-hidden": "true" }, ...this.shares);
    this.cells.time.note.before(this.split);
    this.repetition = el("span", { class: "badge badge-bad" }, t.repetition);
    this.cells.tau.unit.after(this.repetition);
    this.node = el("div", {}, this.list, this.notices);
    this.clear();
    this.update(null, null, null);
  }

  clear() {
    this.stats = this.plain = this.head = null;
  }

  cell(key) {
    const value = el("span", { class: "value" });
    const unit = el("span", { class: "unit" });
    const note = el("dd", { class: "note" });
    this.cells[key] = { value, unit, note };
    return el("div", { class: `figure figure-${key}` }, el("dt", {}, t[key]), el("dd", { class: "main" }, value, unit), note);
  }

  set(key, value, unit, note) {
    const cell = this.cells[key];
    setText(cell.value, value);
    setText(cell.unit, unit);
    setText(cell.note, note);
  }

  /** STATS, the plain run, and the HEAD of the payload; null for "as before". */
  update(stats, plain, head) {
    this.head = head ?? this.head;
    this.stats = stats ?? this.stats;
    this.plain = plain ?? this.plain;
    const s = this.stats ?? {};
    const interval = (low, high, digits) => (has(low) && has(high) ? t.interval(fixed(low, digits), fixed(high, digits)) : "");
    this.set(
      "tau",
      fixed(s.tau, 2),
      has(s.tau) ? t.tauUnit : "",
      join(interval(s.tau_low, s.tau_high, 2), has(s.n_blocks) ? t.blocks(s.n_blocks) : "", s.n_cut ? t.cut(s.n_cut) : ""),
    );
    this.repetition.hidden = !s.repetition;
    this.set(
      "accepted",
      has(s.accepted) && has(s.judged) ? `${integer(s.accepted)} / ${integer(s.judged)}` : t.none,
      "",
      join(has(s.alpha) ? `α = ${fixed(s.alpha, 2)}` : "", interval(s.alpha_low, s.alpha_high, 2)),
    );
    this.set("speed", fixed(s.tokens_per_second, 1), has(s.tokens_per_second) ? t.speedUnit : "", this.head ? `${this.head.dtype} · ${this.head.device}` : "");
    this.set("saved", integer(s.passes_saved), "", has(s.target_passes) ? t.savedNote(integer(s.n_tokens), integer(s.target_passes)) : "");
    this.time(s);
    this.speedup(this.plain);
    this.notice([...(s.notices ?? []), ...(this.plain?.note ? [this.plain.note] : [])]);
  }

  time(s) {
    const seconds = [s.seconds_draft, s.seconds_verify, s.seconds_other];
    const parts = [t.draft, t.verify, t.other].map((name, i) => (has(seconds[i]) ? `${name} ${fixed(seconds[i], 2)} s` : ""));
    this.set("time", fixed(s.seconds, 2), has(s.seconds) ? "s" : "", join(...parts));
    this.split.hidden = !seconds.some((x) => x > 0);
    this.shares.forEach((share, i) => (share.style.flexGrow = has(seconds[i]) ? seconds[i] : 0));
  }

  speedup(plain) {
    if (!plain || !has(plain.speedup)) {
      this.set("speedup", t.none, "", `${t.unmeasured}: ${t.unmeasuredNote}`);
      return;
    }
    this.set(
      "speedup",
      `${fixed(plain.speedup, 2)}×`,
      "",
      join(
        t.plain(fixed(plain.tokens_per_second, 1), integer(plain.n_tokens)),
        plain.same_text === true ? t.same : plain.same_text === false ? t.different : "",
      ),
    );
  }

  notice(texts) {
    if (texts.join("\n") === this.noticed) return;
    this.noticed = texts.join("\n");
    const entry = ([said, ...list]) => el("li", {}, el("div", {}, said, list.length ? el("ul", {}, ...list.map((line) => el("li", {}, line))) : null));
    this.notices.replaceChildren(...texts.map((text) => entry(text.split("\n"))));
  }
}
