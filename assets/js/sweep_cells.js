// The runs of one cell of a sweep, and tables whose rows can be opened.

import { current, putOnStage } from "./current.js";
import { el, setText } from "./dom.js";
import { words } from "./words.js";

/** rows: {cells, label, act}: the first cell of a row with `act` is a button. */
export function table(head, rows) {
  const row = ({ cells, label, act }) => {
    const [first, ...rest] = cells;
    const button = act ? el("button", { type: "button", class: "sweep-open", "aria-label": label, title: label }, first) : first;
    button.addEventListener?.("click", act);
    return el("tr", {}, el("td", {}, button), ...rest.map((text) => el("td", {}, text)));
  };
  return el(
    "div",
    { class: "sweep-scroll", tabindex: 0 },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, ...rows.map(row)),
    ),
  );
}

export class CellRuns {
  constructor(server) {
    this.server = server;
    this.cell = null;
    this.title = el("h3", {});
    this.note = el("p", { class: "sweep-caption", role: "status" });
    this.list = el("div", {});
    const close = el("button", { type: "button", class: "action", "aria-label": words.sweep.close }, "×");
    close.addEventListener("click", () => this.close());
    this.node = el("section", { class: "sweep-runs" }, el("div", { class: "sweep-runs-head" }, this.title, close), this.note, this.list);
    this.close();
  }

  close() {
    this.cell = null;
    this.node.hidden = true;
  }

  async open(sweep, cell) {
    Object.assign(this, { sweep, cell });
    await this.refresh();
    this.node.scrollIntoView({ block: "nearest" });
    this.list.querySelector("button")?.focus({ preventScroll: true });
  }

  /** Ask for the runs of the cell; while a sweep goes on there may be more. */
  async refresh() {
    const { sweep, cell } = this;
    const answer = await this.server.get_cell({ sweep, cell }).catch(() => null);
    if (cell !== this.cell || sweep !== this.sweep) return;
    this.node.hidden = false;
    const found = answer === null ? { title: "", note: words.sweep.gone, head: [], rows: [] } : JSON.parse(answer);
    this.node.dataset.cell = cell;
    setText(this.title, found.title);
    setText(this.note, found.note);
    const drawn = JSON.stringify(found);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const rows = found.rows.map(({ run, open, cells }) => ({
      cells,
      label: words.sweep.open(cells[0]),
      act: open ? () => this.show(run) : null,
    }));
    this.list.replaceChildren(table(found.head, rows));
  }

  /** A run goes to the stage, and its first block to the Block tab. */
  async show(run) {
    const answer = await this.server.get_sweep_run({ sweep: this.sweep, run }).catch(() => null);
    if (answer === null) {
      setText(this.note, words.sweep.gone);
      return;
    }
    putOnStage(JSON.parse(answer));
    current.open(1);
  }
}
