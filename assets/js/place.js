// Where on the page a visitor is, in its address: the tab and, of the Block tab, the block, its place, and the recorded run.
// The controls are there already (address.js). A run that was made here has no name in an address: its controls make it again.

import { current } from "./current.js";
import { goTo, openTab, tabs } from "./tabs.js";

const WRITE_MS = 250; // Safari allows a hundred changes in half a minute
const RECORDED = /^recorded-[\w-]+$/;

export class Place {
  /** show(run) -> Promise: puts a recorded run on the stage, if there is one of that name. */
  constructor(show) {
    this.first = current.run;
    this.restore(show).finally(() => this.listen());
  }

  async restore(show) {
    const query = new URLSearchParams(location.search);
    const [run, tab] = [query.get("run"), query.get("tab")];
    const whole = (name) => (/^[1-9]\d{0,4}$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null);
    if (run !== current.run && RECORDED.test(run ?? "")) await show(run);
    if (tabs().has(tab)) goTo(tab);
    const [i, k] = [whole("block"), whole("place")];
    if (tab !== "block" || !i) return;
    if (run === null) current.promise(i, k);
    else if (run === current.run) current.open(Math.min(i, current.views.length - 1), k);
  }

  listen() {
    const write = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.write(), WRITE_MS);
    };
    for (const event of ["look", "run"]) current.addEventListener(event, write);
    const bar = document.querySelector("#tabs [role=tablist]");
    if (bar) new MutationObserver(write).observe(bar, { subtree: true, attributeFilter: ["aria-selected"] });
  }

  write() {
    const query = new URLSearchParams(location.search);
    const set = (name, value) => (value ? query.set(name, value) : query.delete(name));
    const tab = openTab();
    set("tab", tab === "run" ? null : tab); // the one a visitor finds open
    if (!current.promised) {
      const ours = RECORDED.test(current.run ?? "");
      // A run that was opened from a file or a sweep: no address leads there, the controls are not its own.
      const reachable = ours || !current.head?.recorded;
      const seen = tab === "block" && reachable ? current.seen : null;
      const recorded = ours && (seen || current.run !== this.first);
      set("block", seen?.i);
      set("place", seen?.k);
      set("run", recorded ? current.run : null);
    }
    const address = `${location.pathname}${query.size ? `?${query}` : ""}${location.hash}`;
    try {
      history.replaceState(history.state, "", address);
    } catch {
      // The next step writes it.
    }
  }
}
