// What a person takes away: the text on the clipboard, the run as a file.

import { el, setText } from "./dom.js";
import { words } from "./words.js";

export class Actions {
  /** store: the run on show; fetchTrace(run) -> Promise of the run as JSONL, or null. */
  constructor(store, fetchTrace) {
    this.said = el("span", { class: "said", role: "status" });
    const button = (text, act) => {
      const node = el("button", { type: "button", class: "action" }, text);
      node.disabled = true;
      node.addEventListener("click", act);
      return node;
    };
    this.copy = button(words.actions.copy, async () => {
      this.say((await toClipboard(store.text)) ? words.actions.copied : words.actions.notCopied);
    });
    this.download = button(words.actions.download, async () => {
      const run = store.run;
      const trace = await fetchTrace(run).catch(() => null);
      if (trace) save(trace, `dflash-${run.replace(/[^\w-]/g, "")}.jsonl`);
      this.say(trace ? "" : words.actions.noTrace);
    });
    this.node = el("div", { class: "actions" }, this.said, this.copy, this.download);
  }

  update(have) {
    this.copy.disabled = this.download.disabled = have === 0;
  }

  say(text) {
    setText(this.said, text);
  }
}

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard API without https, as on a machine in the local network.
    const area = el("textarea", { class: "only-spoken", "aria-hidden": "true" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus({ preventScroll: true });
    return done;
  }
}

function save(text, name) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
