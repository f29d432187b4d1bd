// Which run is on the stage: chosen from the shelf, or opened from a trace file by the button or by dropping it on the page.

import { el, setText } from "./dom.js";
import { options, shelf } from "./shelf.js";
import { words } from "./words.js";

const t = words.runs;
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);
const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

export class Menu {
  /** known: {recorded, max_bytes, max_files} of traces.py; server: its open_trace; show(id): Promise of whether it is on show. */
  constructor(known, server, show) {
    Object.assign(this, { known, server, show });
    this.select = el("select", { class: "run-select", "aria-label": t.choose });
    this.select.addEventListener("change", () => this.choose(this.select.value));
    this.input = el("input", { type: "file", multiple: true, accept: ".jsonl,.json,.txt,application/x-ndjson", class: "only-spoken", tabindex: -1, "aria-hidden": "true" });
    this.input.addEventListener("change", () => {
      this.open([...this.input.files]);
      this.input.value = ""; // the same file again is a change again
    });
    this.button = el("button", { type: "button", class: "action open-trace", title: t.openTitle }, t.open);
    this.button.addEventListener("click", () => this.input.click());
    this.said = el("div", { class: "menu-said", role: "alert" });
    this.target = el("div", { class: "drop-target", "aria-hidden": "true" }, el("p", {}, t.drop));
    this.node = el("div", { class: "menu" }, el("label", {}, t.label, this.select), this.button, this.input, this.said, this.target);
    for (const { id, label } of known.recorded) shelf.add(id, label, "recorded");
    shelf.addEventListener("change", () => this.list());
    this.list();
    this.listen();
  }

  list() {
    this.select.replaceChildren(...options());
    this.select.value = this.shown ?? "";
  }

  /** Another run is on the stage. */
  update(id) {
    this.shown = id;
    this.select.value = id ?? "";
  }

  async choose(id) {
    this.say([]);
    if (await this.show(id)) return;
    const label = shelf.entries.find((entry) => entry.id === id)?.label ?? id;
    this.say([t.gone(label)]);
    shelf.remove([id]);
  }

  /** Opens the files, after those that are being opened. */
  open(files) {
    this.opening = (this.opening ?? Promise.resolve()).then(() => this.openAll(files));
  }

  /** One after the other; shows the last good one, and says of the others what is wrong. */
  async openAll(files) {
    this.button.disabled = true;
    setText(this.button, t.opening);
    const said = [];
    let last = null;
    for (const file of files) {
      const answer = await this.send(file);
      if (answer.error) {
        said.push(t.refused(file.name, answer.error));
        continue;
      }
      shelf.add(answer.run, answer.label, "file");
      last = answer.run;
      const closed = shelf.entries.filter((entry) => answer.dropped.includes(entry.id)).map((entry) => entry.label);
      if (closed.length) said.push(t.closed(closed.join(", "), this.known.max_files));
      shelf.remove(answer.dropped);
    }
    this.button.disabled = false;
    setText(this.button, t.open);
    if (last) await this.choose(last);
    this.say(said);
  }

  async send(file) {
    const { max_bytes: most } = this.known;
    if (file.size > most) return { error: t.tooLarge(megabytes(file.size), megabytes(most)) };
    try {
      const text = await file.text();
      return JSON.parse(await this.server.open_trace({ text, file: file.name, page: shelf.page }));
    } catch {
      return { error: t.notSent };
    }
  }

  say(texts) {
    this.said.replaceChildren(...texts.map((text) => el("p", {}, text)));
  }

  /** A file can be dropped anywhere on the page; elsewhere the browser would leave the page for it. */
  listen() {
    const leave = () => this.target.classList.remove("over");
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.target.classList.add("over");
    });
    document.addEventListener("dragleave", (event) => event.relatedTarget === null && leave());
    document.addEventListener("drop", (event) => {
      leave();
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.open([...event.dataTransfer.files]);
    });
  }
}
