// The replay of a race: two lanes of text growing on one clock, from the seconds that were measured.

import { el, fixed, setText, visible } from "./dom.js";
import { words } from "./words.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];
const MOST_FRAME = 0.25; // s: a page that was out of sight goes on where it was
const LONG_TOKEN = 24; // characters
const BIDI = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/;

/** One side. lane: {name, seconds, n, finish, ended, place, blocks: [{at, n, chips}]}. */
class Lane {
  constructor(lane, states) {
    const t = words.race;
    this.lane = lane;
    this.next = 0; // the first block that is not there yet
    this.blocks = lane.blocks.map(({ chips }) => el("span", { class: "to-come" }, ...chips.flatMap(token)));
    this.count = el("span", { class: "race-count" });
    this.clock = el("span", { class: "race-clock" });
    this.finish = el("p", { class: `race-finish race-${lane.place}` });
    this.bar = el("div", { class: "progress-bar" });
    this.text = el("div", { class: "race-text", tabindex: 0, role: "region", "aria-label": t.text(lane.name) }, ...this.blocks);
    this.node = el(
      "section",
      { class: `race-lane race-lane-${lane.arm}`, "aria-label": lane.name },
      el("div", { class: "race-lane-head" }, el("h3", {}, lane.name), this.count, this.clock),
      el("div", { class: "progress", "aria-hidden": "true" }, this.bar),
      this.text,
      this.finish,
      lane.arm === "plain" ? null : el("p", { class: "race-key" }, ...Object.entries(states).map(([key, label]) => el("span", { class: `tok s-${key}` }, label))),
    );
  }

  show(time) {
    const { blocks, seconds, n, finish, ended } = this.lane;
    const before = this.next;
    while (this.next < blocks.length && blocks[this.next].at <= time) this.blocks[this.next++].className = "";
    while (this.next > 0 && blocks[this.next - 1].at > time) this.blocks[--this.next].className = "to-come";
    const tokens = this.next ? blocks[this.next - 1].n : 0;
    const done = this.next === blocks.length;
    setText(this.count, words.race.tokens(tokens, n));
    setText(this.clock, `${fixed(Math.min(time, seconds), 2)} s`);
    setText(this.finish, done ? `${finish} (${ended})` : "");
    this.bar.style.width = `${(100 * tokens) / n}%`;
    this.node.classList.toggle("race-done", done);
    const last = this.blocks[this.next - 1];
    if (this.next !== before && last) this.text.scrollTop = last.offsetTop + last.offsetHeight - this.text.clientHeight;
  }
}

/** A token is broken only if it is long; lines break before one that begins with white space. */
function token({ s, t, special }) {
  const node = el("span", { class: `tok s-${s}` }, special ? visible(t) : t);
  if (special) node.classList.add("special");
  if (t.length > LONG_TOKEN) node.classList.add("long");
  if (BIDI.test(t)) node.classList.add("isolated"); // a stray direction mark must not turn its neighbours round
  return /^\s/.test(t) && !special ? [el("wbr"), node] : [node];
}

export class Replay {
  constructor(lanes, states) {
    const t = words.race;
    this.total = Math.max(...lanes.map((lane) => lane.seconds));
    this.lanes = lanes.map((lane) => new Lane(lane, states));
    this.time = 0;
    this.frame = null;
    this.play = this.button("", () => (this.frame ? this.pause() : this.resume()), "race-play");
    this.skip = this.button(t.skip, () => this.seek(this.total), "race-skip");
    this.slider = el("input", { type: "range", min: 0, max: this.total, step: "any", value: 0, "aria-label": t.clock, class: "block-slider" });
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    this.slider.addEventListener("keydown", (event) => this.key(event));
    this.speed = el("select", { class: "block-button" }, ...SPEEDS.map((speed) => el("option", { value: speed, selected: speed === 1 }, `${speed}×`)));
    this.clock = el("output", { class: "race-time" });
    this.spoken = el("p", { class: "only-spoken", role: "status" });
    this.node = el(
      "div",
      { class: "race-replay", role: "group", "aria-label": t.replay },
      el(
        "div",
        { class: "race-controls" },
        this.play, this.skip, this.slider, this.clock, el("label", { class: "race-speed" }, `${t.speed} `, this.speed),
      ),
      el("div", { class: "race-lanes" }, ...this.lanes.map((lane) => lane.node)),
      this.spoken,
    );
  }

  button(text, action, name) {
    const button = el("button", { type: "button", class: `block-button ${name}` }, text);
    button.addEventListener("click", action);
    return button;
  }

  /** From the start as soon as it is in sight; where motion is not wanted, the end at once. */
  begin() {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return this.seek(this.total);
    this.seek(0);
    const seen = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting) return;
      seen.disconnect();
      if (this.time === 0) this.resume();
    });
    seen.observe(this.node);
  }

  resume() {
    if (this.time >= this.total) this.time = 0;
    let before = null;
    const step = (now) => {
      if (!this.node.isConnected) return this.pause();
      const passed = before === null ? 0 : Math.min(MOST_FRAME, (now - before) / 1000);
      before = now;
      this.time = Math.min(this.total, this.time + passed * Number(this.speed.value));
      this.frame = this.time < this.total ? requestAnimationFrame(step) : null;
      this.show();
    };
    this.frame = requestAnimationFrame(step);
    this.show();
  }

  pause() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.show();
  }

  seek(time) {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.time = Math.max(0, Math.min(this.total, time));
    this.show();
  }

  /** Arrow keys: a twentieth of the race. With step "any" a browser's own step would be useless. */
  key(event) {
    const step = this.total / 20;
    const moves = { ArrowRight: this.time + step, ArrowLeft: this.time - step, Home: 0, End: this.total };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.seek(moves[event.key]);
  }

  show() {
    const t = words.race;
    const ended = this.time >= this.total;
    for (const lane of this.lanes) lane.show(this.time);
    const said = t.time(fixed(this.time, 2), fixed(this.total, 2));
    setText(this.clock, said);
    this.slider.value = this.time;
    this.slider.setAttribute("aria-valuetext", said);
    setText(this.play, this.frame ? t.pause : ended ? t.again : t.play);
    this.skip.disabled = ended;
    this.node.dataset.state = this.frame ? "playing" : ended ? "ended" : "paused";
    setText(this.spoken, ended ? this.lanes.map(({ lane }) => `${lane.name}: ${lane.finish}`).join(". ") : "");
  }
}
