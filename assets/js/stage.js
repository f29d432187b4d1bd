// The stage: draws one run from the payload strings the server sends. Builds its nodes once; every update only adds.

import { Actions } from "./actions.js";
import { Card } from "./card.js";
import { Charts } from "./charts.js";
import { current } from "./current.js";
import { el } from "./dom.js";
import { Figures } from "./figures.js";
import { Legend } from "./legend.js";
import { Menu } from "./menu.js";
import { printInLight } from "./paper.js";
import { Place } from "./place.js";
import { addStyles, loadPlotly } from "./served.js";
import { shelf } from "./shelf.js";
import { Status } from "./status.js";
import { Store } from "./store.js";
import { Strip } from "./strip.js";
import { words } from "./words.js";

/** The place at which the verdict on a block rejected its draft, or null. */
const stoppedAt = (view) => (view.next === "resampled" && !view.cut ? view.kept + 1 : null);

/**
 * element, props, watch, server: what gr.HTML hands to js_on_load. boot: {states, templates, theme} from stage.py, and
 * {runs} of traces.py where runs can be chosen and opened.
 * urls: {css, plotly}, where the app serves the style sheet and plotly.min.js.
 */
export async function start({ element, props, watch, server, boot, urls }) {
  printInLight();
  const root = el("div", { class: "stage" }, el("h2", { class: "only-spoken" }, words.title));
  const status = new Status();
  const figures = new Figures();
  const card = new Card(root, boot.states);
  const open = (view, place) => {
    strip.unpin();
    current.open(view.i, place);
  };
  const strip = new Strip(boot.states, (token, chip, view, pinned) =>
    token ? card.show(token, chip, view, store.head, pinned ? open : null) : card.hide(),
    open,
  );
  const legend = new Legend(boot.states, (state, shown) => strip.toggle(state, shown));
  const t = words.block;
  const openNext = (among, none) => actions.say(current.openNext(among) ? "" : none);
  const charts = new Charts(boot.templates, () => loadPlotly(urls.plotly), {
    lengths: (i) => current.open(i),
    histogram: (n) => openNext({ fits: (view) => view.tau === n, said: t.ofLength(n) }, t.noneOfLength(n)),
    positions: (k) => openNext({ fits: (view) => stoppedAt(view) === k, said: t.stoppedAt(k), k }, t.noneStoppedAt(k)),
  });
  const store = new Store((request) => server.get_run(request), {
    run(head) {
      status.showRun(head);
      shelf.addLive(store.run, head);
      menu?.update(store.run);
      current.begin(store.run, head);
      strip.clear();
      strip.follow = !head.recorded; // a recorded run comes whole, and is read from its beginning
      strip.setPrompt(head.prompt, head.prompt_tokens);
      charts.clear(store.run, head);
      figures.clear();
      figures.update(null, null, head);
      actions.say("");
    },
    block(view) {
      current.add(view);
      strip.append(view);
      charts.append(view);
    },
    payload(payload) {
      status.update(payload);
      figures.update(payload.stats, payload.plain, store.head);
      charts.setStats(payload.stats);
      actions.update(store.have);
      if (["done", "stopped"].includes(payload.status)) current.end();
      root.dataset.run = store.run;
      root.dataset.blocks = store.have;
    },
    gap: (open) => actions.say(open ? words.actions.gap : ""),
  });
  const actions = new Actions(
    store,
    server.get_trace ? (run) => server.get_trace(run) : null,
    boot.runs ? (asked) => server.get_export(asked) : null,
  );

  const show = async (id) => {
    asked = id;
    const answer = await server.get_run({ run: id, start: 0 }).catch(() => null);
    if (asked !== id) return true; // another one was chosen meanwhile
    if (!answer) return false;
    store.accept(JSON.parse(answer));
    if (!["running", "loading", "waiting"].includes(store.last.status)) strip.toTop();
    return true;
  };
  let asked = null;
  const menu = boot.runs ? new Menu(boot.runs, server, show) : null;
  const listOpened = () => {
    const opened = shelf.entries.filter((entry) => entry.kind === "file").map(({ label, id }) => [label, id]);
    root.dataset.opened = JSON.stringify(opened); // for the Lossless? tab
  };
  shelf.addEventListener("change", listOpened);
  listOpened();

  await addStyles(boot.theme, urls.css);
  root.append(...(menu ? [menu.node] : []), status.node, legend.node, strip.node, actions.node, figures.node, charts.node, card.node);
  element.replaceChildren(root);
  root.addEventListener("keydown", (event) => event.key === "Escape" && strip.unpin());
  current.addEventListener("find", () => strip.reveal(current.seen?.i));

  const update = () => {
    if (props.value) store.accept(JSON.parse(props.value));
  };
  watch("value", update);
  current.addEventListener("show", ({ detail }) => store.accept(detail));
  update();
  new Place(show);
}
