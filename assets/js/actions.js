// What a person takes away: the text on the clipboard, the run as a file of several kinds.

import { el, setText } from "./dom.js";
import { words } from "./words.js";

const TYPES = { csv: "text/csv", json: "application/json", html: "text/html" };

export class Actions {
  /**
   * store: the run on show; fetchTrace(run) -> Promise of the run as JSONL, or null, and fetchExport({run, kind}) of another
   * form of it. Without a server, null for either.
   */
  constructor(store, fetchTrace, fetchExport) {
    this.said = el("span", { class: "said", role: "status" });
    this.buttons = [];
    const button = (text, act, title = null) => {
      const node = el("button", { type: "button", class: "action", title }, text);
      node.disabled = true;
      node.addEventListener("click", act);
      this.buttons.push(node);
    };
    const file = async (fetch, kind, type) => {
      const run = store.run;
      this.say(words.actions.preparing);
      const content = await fetch(run).catch(() => null);
      if (content) save(content, `dflash-${run.replace(/[^\w-]/g, "").slice(0, 40)}.${kind}`, type);
      this.say(content ? "" : words.actions.noTrace);
    };
    button(words.actions.copy, async () => {
      this.say((await toClipboard(store.text)) ? words.actions.copied : words.actions.notCopied);
    });
    if (fetchTrace) button(words.actions.download, () => file(fetchTrace, "jsonl", "application/x-ndjson"));
    for (const [kind, [label, title]] of fetchExport ? Object.entries(words.actions.exports) : []) {
      button(label, () => file((run) => fetchExport({ run, kind }), kind, TYPES[kind]), title);
    }
    this.node = el("div", { class: "actions" }, this.said, ...this.buttons);
  }

  update(have) {
    for (const node of this.buttons) node.disabled = have === 0;
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

function save(text, name, type) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
