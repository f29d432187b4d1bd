// The start of a run's web page (dflash_ui/offline_page.py): the same stage and Block tab, fed from the file itself.

import { start as startBlock } from "./block.js";
import { current } from "./current.js";
import { start as startStage } from "./stage.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark", dark.matches);
dark.addEventListener("change", follow);
follow();

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const { payload, boot } = JSON.parse(await unpacked("data"));
const plotly = URL.createObjectURL(new Blob([await unpacked("plotly")], { type: "text/javascript" }));
const common = { props: { value: JSON.stringify(payload) }, watch() {}, server: {}, boot, urls: { css: "", plotly } };
const block = document.getElementById("block");
await startStage({ ...common, element: document.getElementById("stage") });
await startBlock({ ...common, element: block });
current.addEventListener("open", () => block.scrollIntoView());
