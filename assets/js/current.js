// The run on show, shared by the stage that receives it and the Block tab that looks into it.

class Current extends EventTarget {
  constructor() {
    super();
    this.begin(null, null);
  }

  begin(run, head) {
    this.run = run;
    this.head = head;
    this.views = [];
    this.words = new Map(); // token id -> text
    this.dispatchEvent(new Event("run"));
  }

  add(view) {
    this.views.push(view);
    for (const [id, text] of Object.entries(view.words ?? {})) this.words.set(Number(id), text);
    this.dispatchEvent(new Event("block"));
  }

  /** Show block i in the Block tab, at the judged token of place k if it is given. */
  open(i, k = null) {
    this.asked = { i, k };
    document.querySelector("#tabs button[data-tab-id=block]")?.click();
    this.dispatchEvent(new Event("open"));
  }
}

export const current = new Current();

/** Put another run on the stage: a payload with its head, as the server sends it. */
export function putOnStage(payload) {
  current.dispatchEvent(new CustomEvent("show", { detail: payload }));
}
