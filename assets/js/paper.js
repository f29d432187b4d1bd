// What printing needs of the scripts; the rest is in everywhere.css.

/** Paper is white: a dark page is light while it is printed. */
export function printInLight() {
  let dark = [];
  window.addEventListener("beforeprint", () => {
    dark = [document.documentElement, document.body].filter((node) => node.classList.contains("dark"));
    for (const node of dark) node.classList.remove("dark");
  });
  window.addEventListener("afterprint", () => dark.forEach((node) => node.classList.add("dark")));
}

const PAPER = 660; // pixels across a sheet of A4 or Letter
let printing = false;

/** The width of a chart in this node, on the screen or on paper. */
export const plotWidth = (node) => (printing ? Math.min(PAPER, node.clientWidth) : node.clientWidth);

/** Calls draw() before the browser takes its picture for paper, and after it. */
export function onPrint(draw) {
  for (const [type, begins] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(type, () => {
      printing = begins;
      draw();
    });
  }
}
