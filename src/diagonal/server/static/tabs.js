/** Tabs: one view is shown; arrows move between them; the address remembers which. */

export class Tabs {
  /** `shown(view)` is called with the name of the view. */
  constructor(root, shown) {
    this.tabs = [...root.querySelectorAll("[role=tab]")];
    this.shown = shown;
    for (const tab of this.tabs) tab.addEventListener("click", () => this.show(tab.dataset.view));
    root.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.show(location.hash.slice(1)));
  }

  /** Show a view; one that there is not shows the first. */
  show(view) {
    const chosen = this.tabs.find((tab) => tab.dataset.view === view && !tab.hidden) ?? this.tabs.find((tab) => !tab.hidden);
    for (const tab of this.tabs) {
      const isChosen = tab === chosen;
      tab.setAttribute("aria-selected", isChosen);
      tab.tabIndex = isChosen ? 0 : -1;
    }
    const panel = document.getElementById(chosen.getAttribute("aria-controls"));
    for (const one of document.querySelectorAll("[role=tabpanel]")) one.hidden = one !== panel;
    panel.setAttribute("aria-labelledby", chosen.id);
    document.body.dataset.view = chosen.dataset.view;
    history.replaceState(null, "", `#${chosen.dataset.view}`);
    this.shown(chosen.dataset.view);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const open = this.tabs.filter((tab) => !tab.hidden);
    const next = open[(open.indexOf(event.target) + step + open.length) % open.length];
    next.focus();
    this.show(next.dataset.view);
  }
}
