// The runs that this page knows: its own, those opened from files, the recorded ones. The server keeps them; here are their names.

import { el } from "./dom.js";
import { words } from "./words.js";

const KINDS = ["live", "file", "recorded"];

class Shelf extends EventTarget {
  constructor() {
    super();
    this.entries = []; // {id, label, kind}
    this.made = 0;
    this.page = [...crypto.getRandomValues(new Uint32Array(4))].join("-"); // as whom this page opens files
  }

  /** The entries in the order of the menus: the latest run first. */
  get ordered() {
    return KINDS.flatMap((kind) => {
      const part = this.entries.filter((entry) => entry.kind === kind);
      return kind === "recorded" ? part : part.reverse();
    });
  }

  has(id) {
    return this.entries.some((entry) => entry.id === id);
  }

  add(id, label, kind) {
    if (this.has(id)) return;
    const twins = this.entries.filter((entry) => entry.name === label).length;
    this.entries.push({ id, label: twins ? `${label} (${twins + 1})` : label, name: label, kind });
    this.dispatchEvent(new Event("change"));
  }

  /** A run made on this page. */
  addLive(id, head) {
    if (this.has(id)) return;
    this.made += 1;
    this.add(id, words.runs.live(this.made, head), "live");
  }

  remove(ids) {
    this.entries = this.entries.filter((entry) => !ids.includes(entry.id));
    this.dispatchEvent(new Event("change"));
  }
}

export const shelf = new Shelf();

/** The entries as the content of a <select>, in groups. */
export function options() {
  return KINDS.map((kind) => [words.runs.kinds[kind], shelf.ordered.filter((entry) => entry.kind === kind)])
    .filter(([, entries]) => entries.length)
    .map(([label, entries]) => el("optgroup", { label }, ...entries.map(({ id, label: name }) => el("option", { value: id }, name))));
}
