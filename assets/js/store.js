// The blocks of the run on show, in order and without gaps. Payloads repeat blocks and may miss some: both are mended here.

const RETRY_MS = 2000;
const TRIES = 3;
const GHOSTS = new Set(["rejected", "unjudged", "cut"]);

/** On the page, but not part of the text. */
export const isGhost = (chip) => GHOSTS.has(chip.s);

/** Part of the text that a person copies. */
export const isText = (chip) => !isGhost(chip) && !chip.special;

export class Store {
  /**
   * fetchRun({run, start}) -> Promise of a payload string with all blocks from `start`.
   * on.run(head): a new run; on.block(view): the next block; on.payload(payload): after its blocks; on.gap(open).
   */
  constructor(fetchRun, on) {
    this.fetchRun = fetchRun;
    this.on = on;
    this.run = null;
    this.past = new Set();
    this.clear();
  }

  clear() {
    this.head = null;
    this.last = null;
    this.have = 0;
    this.wanted = 0;
    this.pieces = [];
    this.pending = new Map();
    this.mending = false;
  }

  /** The output so far, without ghosts, special tokens and the prompt. */
  get text() {
    return this.pieces.join("");
  }

  get missing() {
    return this.wanted > this.have || (!this.head && this.wanted > 0);
  }

  accept(payload) {
    if (payload.run !== this.run) {
      if (this.past.has(payload.run) && !payload.head) return; // a straggler of a run that was replaced
      this.past.add(payload.run);
      this.run = payload.run;
      this.clear();
    }
    this.take(payload);
    this.last = payload;
    this.on.payload(payload);
    if (this.missing) this.mend();
  }

  take(payload) {
    if (payload.head && !this.head) {
      this.head = payload.head;
      this.on.run(payload.head);
    }
    this.wanted = Math.max(this.wanted, payload.n);
    for (const view of payload.w) if (view.i >= this.have) this.pending.set(view.i, view);
    if (!this.head) return;
    for (let view; (view = this.pending.get(this.have)); this.have += 1) {
      this.pending.delete(this.have);
      for (const chip of view.chips) if (isText(chip)) this.pieces.push(chip.t);
      this.on.block(view);
    }
  }

  /** Ask the server for what is missing. One question at a time, and no more than a few without an answer. */
  async mend() {
    if (this.mending) return;
    this.mending = true;
    const run = this.run;
    for (let tries = 0; this.missing && tries < TRIES; ) {
      const before = this.have;
      const answer = await this.ask(run, this.head ? this.have : 0);
      if (this.run !== run) return;
      // Only the blocks: its status and figures may be older than those of a payload that came meanwhile.
      if (answer) this.take(answer);
      if (this.have === before) {
        tries += 1;
        this.on.gap(true);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
        if (this.run !== run) return;
      }
    }
    this.mending = false;
    this.on.gap(this.missing);
    if (this.head) this.on.payload(this.last);
  }

  async ask(run, start) {
    try {
      const answer = JSON.parse(await this.fetchRun({ run, start }));
      return answer.run === run ? answer : null;
    } catch {
      return null;
    }
  }
}
