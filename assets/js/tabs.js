// The tabs of the page, by their ids. On a narrow screen Gradio moves some into a menu, where they have a label only.

/** Ids of all tabs, and their labels. */
export function tabs() {
  const items = (window.gradio_config?.components ?? []).filter(({ type }) => type === "tabitem");
  return new Map(items.map(({ props }) => [props.id, props.label]));
}

export const openTab = () => document.querySelector("#tabs [role=tab][aria-selected=true]")?.dataset.tabId ?? null;

export function goTo(id) {
  const label = tabs().get(id);
  const inMenu = () => [...document.querySelectorAll("#tabs .overflow-dropdown button")].find((button) => button.textContent.trim() === label);
  (document.querySelector(`#tabs [role=tab][data-tab-id="${id}"]`) ?? inMenu())?.click();
}
