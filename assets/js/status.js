// The top of the stage: what is happening, how far it is, and what exactly is being shown.

import { el, setText } from "./dom.js";
import { words } from "./words.js";

export class Status {
  constructor() {
    this.word = el("span", { class: "status-word" });
    this.message = el("span", { class: "status-message" });
    // Spoken apart from what is seen: the message may change with every block, a voice must not.
    this.spoken = el("p", { class: "only-spoken", role: "status", "aria-live": "polite" });
    this.bar = el("div", { class: "progress-bar" });
    this.progress = el(
      "div",
      { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "progress" },
      this.bar,
    );
    this.left = el("span", { class: "progress-left" });
    this.line = el("div", { class: "status" }, el("span", { class: "dot" }), this.word, this.message, this.left);
    this.facts = el("ul", { class: "facts" });
    this.node = el("div", { class: "top" }, this.line, this.progress, this.facts, this.spoken);
    this.progress.hidden = true;
    this.state = null;
  }

  showRun(head) {
    const t = words.facts;
    const badge = (text, kind) => el("span", { class: `badge badge-${kind}` }, text);
    const fact = (title, name, value, ...more) =>
      el("li", { title }, name ? el("span", { class: "fact-name" }, name) : null, el("span", {}, String(value)), ...more);
    this.facts.replaceChildren(
      el("li", {}, badge(head.recorded ? t.recorded(head.recorded) : t.live, "kind")),
      fact(t.pair, "", head.pair),
      fact(t.rule, t.rule, head.rule_label, badge(head.lossless ? t.lossless : t.wrong, head.lossless ? "good" : "bad")),
      fact(t.temperature, "T", head.temperature),
      ...(head.draft_temperature === null || head.draft_temperature === undefined
        ? []
        : [fact(t.draftTemperature, t.draftTemperature, head.draft_temperature)]),
      ...(head.top_p < 1 ? [fact(t.topP, t.topP, head.top_p)] : []),
      ...(head.top_k > 0 ? [fact(t.topK, t.topK, head.top_k)] : []),
      fact(
        t.blockSize,
        "B",
        head.block_size,
        head.block_size > head.trained_block_size ? badge(t.beyond(head.trained_block_size), "bad") : null,
      ),
      fact(t.seed, t.seed, head.seed),
      fact(t.device, "", `${head.dtype} · ${head.device}`),
    );
  }

  update({ status, message, progress }) {
    const word = words.status[status] ?? status;
    setText(this.word, word);
    setText(this.message, message);
    this.line.dataset.status = status;
    this.progress.hidden = !progress;
    setText(this.left, progress ? timeLeft(progress.seconds_left) : "");
    if (progress) {
      const known = typeof progress.fraction === "number";
      this.progress.classList.toggle("unknown", !known);
      this.bar.style.width = known ? `${100 * Math.min(1, Math.max(0, progress.fraction))}%` : "";
      if (known) this.progress.setAttribute("aria-valuenow", Math.round(100 * progress.fraction));
      else this.progress.removeAttribute("aria-valuenow");
    }
    if (status !== this.state) setText(this.spoken, message ? `${word}: ${message}` : word);
    this.state = status;
  }
}

function timeLeft(seconds) {
  if (typeof seconds !== "number") return "";
  return seconds < 90 ? words.secondsLeft(Math.max(1, Math.round(seconds))) : words.minutesLeft(Math.round(seconds / 60));
}
