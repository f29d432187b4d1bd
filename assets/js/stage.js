// The stage: draws one run from the payload strings the server sends. Builds its nodes once; every update only adds.

import { Actions } from "./actions.js";
import { Card } from "./card.js";
import { Charts } from "./charts.js";
import { current } from "./current.js";
import { el } from "./dom.js";
import { Figures } from "./figures.js";
import { Legend } from "./legend.js";
import { addStyles, loadPlotly } from "./served.js";
import { Status } from "./status.js";
import { Store } from "./store.js";
import { Strip } from "./strip.js";
import { words } from "./words.js";

/**
 * element, props, watch, server: what gr.HTML hands to js_on_load. boot: {states, templates, theme} from stage.py.
 * urls: {css, plotly}, where the app serves the style sheet and plotly.min.js.
 */
export async function start({ element, props, watch, server, boot, urls }) {
  const root = el("div", { class: "stage" });
  const status = new Status();
  const figures = new Figures();
  const card = new Card(root, boot.states);
  const strip = new Strip(boot.states, (token, chip, view) =>
    token ? card.show(token, chip, view, store.head) : card.hide(),
    (view, place) => current.open(view.i, place),
  );
  const legend = new Legend(boot.states, (state, shown) => strip.toggle(state, shown));
  const charts = new Charts(boot.templates, () => loadPlotly(urls.plotly), (i) => strip.reveal(i));
  const store = new Store((request) => server.get_run(request), {
    run(head) {
      status.showRun(head);
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
      root.dataset.run = store.run;
      root.dataset.blocks = store.have;
    },
    gap: (open) => actions.say(open ? words.actions.gap : ""),
  });
  const actions = new Actions(store, (run) => server.get_trace(run));

  await addStyles(boot.theme, urls.css);
  root.append(status.node, legend.node, strip.node, actions.node, figures.node, charts.node, card.node);
  element.replaceChildren(root);
  root.addEventListener("keydown", (event) => event.key === "Escape" && card.hide());

  const update = () => {
    if (props.value) store.accept(JSON.parse(props.value));
  };
  watch("value", update);
  current.addEventListener("show", ({ detail }) => store.accept(detail));
  update();
}
