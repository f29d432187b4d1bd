// The run on show, shared by the stage that receives it and the Block tab that looks into it.

import { goTo } from "./tabs.js";

class Current extends EventTarget {
  constructor() {
    super();
    this.begin(null, null);
  }

  begin(run, head) {
    this.run = run;
    this.head = head;
    this.views = [];
    this.seen = null;
    this.asked = null;
    this.words = new Map(); // token id -> text
    this.dispatchEvent(new Event("run"));
  }

  add(view) {
    this.views.push(view);
    for (const [id, text] of Object.entries(view.words ?? {})) this.words.set(Number(id), text);
    if (this.promised && !this.head.recorded && view.i >= this.promised.i) this.keepPromise();
    this.dispatchEvent(new Event("block"));
  }

  keepPromise() {
    this.asked = this.promised;
    this.promised = null;
    this.dispatchEvent(new Event("open"));
  }

  /** The run on show has ended. One that did not get as far as the promised block shows its last. */
  end() {
    if (this.promised && this.head && !this.head.recorded) this.keepPromise();
  }

  /** Show block i in the Block tab, at the judged token of place k if it is given. among: what openNext was asked for. */
  open(i, k = null, among = null) {
    this.asked = { i, k, among };
    goTo("block");
    this.dispatchEvent(new Event("open"));
  }

  /** Open the next block that fits(view), after the one on show and round the end; false if there is none. said: what they are. */
  openNext(among) {
    const found = this.fitting(among);
    if (!found.length) return false;
    this.open(found.find((i) => i > (this.seen?.i ?? 0)) ?? found[0], among.k, among);
    return true;
  }

  /** Numbers of the blocks that are among these: {fits(view), said, k}. */
  fitting({ fits }) {
    return this.views.filter((view) => view.n_drafted && fits(view)).map((view) => view.i);
  }

  /** A link leads to block i of a run that is still to be made: it is shown as soon as it is there. */
  promise(i, k) {
    this.promised = { i, k };
    this.dispatchEvent(new Event("block"));
  }

  /** Point out the block on show in the text of the Run tab. */
  find() {
    goTo("run");
    this.dispatchEvent(new Event("find"));
  }

  /** The Block tab now shows block i at place k; null for no block. */
  look(i, k) {
    this.seen = i === null ? null : { i, k };
    this.dispatchEvent(new Event("look"));
  }
}

export const current = new Current();

/** Put another run on the stage: a payload with its head, as the server sends it. */
export function putOnStage(payload) {
  current.dispatchEvent(new CustomEvent("show", { detail: payload }));
}
