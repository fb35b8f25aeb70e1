// The table of runs: experiments and seeds fold, a search keeps only rows that contain all its words, a click chooses a
// run. What is unfolded is remembered here, because the page redraws the table when runs grow.
(function () {
  const turned = new Map();  // what the reader has opened or closed
  const table = () => document.getElementById("table");

  function state(button, key) {
    return turned.has(key) ? turned.get(key) : button.dataset.first === "true";
  }
  function show() {
    const place = table();
    if (!place) return;
    const field = document.getElementById("search");
    const words = (field ? field.value : "").toLowerCase().split(/[\s,]+/).filter(Boolean);
    const open = new Map(), found = new Map();
    place.querySelectorAll("tbody[data-kind=experiment] button").forEach((button) => {
      open.set(button.textContent, state(button, button.textContent));
    });
    place.querySelectorAll("tbody[data-kind=group]").forEach((group) => {
      const of = group.dataset.of, fits = words.every((word) => group.dataset.words.toLowerCase().includes(word));
      found.set(of, found.get(of) || fits);
      group.hidden = !fits || (!words.length && open.get(of) === false);
      const button = group.querySelector("[data-fold=seeds]");
      if (!button) return;
      const shown = state(button, group.dataset.key);
      button.setAttribute("aria-expanded", shown);
      group.querySelectorAll("tr[data-seed]").forEach((row) => { row.hidden = !shown; });
    });
    place.toggleAttribute("data-none", words.length > 0 && ![...found.values()].some(Boolean));
    place.querySelectorAll("tbody[data-kind=experiment]").forEach((head) => {
      const button = head.querySelector("button"), name = button.textContent;
      head.hidden = !found.get(name);
      button.setAttribute("aria-expanded", words.length > 0 || open.get(name));
    });
  }
  document.addEventListener("input", (event) => { if (event.target.id === "search") show(); });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("#table button");
    if (!button) return;
    if (button.dataset.run) return window.dash_clientside.set_props("run", { value: button.dataset.run });
    const key = button.dataset.fold === "seeds" ? button.closest("tbody").dataset.key : button.textContent;
    turned.set(key, !state(button, key));
    show();
  });
  let waiting;
  new MutationObserver((changes) => {
    if (waiting || !changes.some((one) => one.target.closest && one.target.closest("#table") || one.target.querySelector?.("#table"))) return;
    waiting = requestAnimationFrame(() => { waiting = undefined; show(); });
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
