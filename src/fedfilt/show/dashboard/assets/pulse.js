// Polls the run every four seconds at next to no cost: a small answer holds the line at the top, the latest events, and a
// mark that changes when something needs redrawing. Only then do Dash's callbacks run, and only for what is in sight.
(function () {
  const last = {};
  let lost = false;

  function set(id, props) {
    const text = JSON.stringify(props);
    if (last[id] === text) return;
    last[id] = text;
    window.dash_clientside.set_props(id, props);
  }
  function visible() {
    const inside = (box) => box.width > 0 && box.bottom > 0 && box.top < window.innerHeight;
    return [...document.querySelectorAll(".dash-graph")]
      .filter((graph) => inside(graph.getBoundingClientRect())).map((graph) => graph.id);
  }
  async function look() {
    if (document.hidden || !document.getElementById("status-words")) return;
    try {
      const answer = await fetch("_pulse?run=" + encodeURIComponent(window.fedfilt_run || ""));
      const found = await answer.json();
      set("status-words", { children: found.words, className: "state " + found.state });
      set("events", { children: found.events });
      set("to-home", { hidden: !found.homes });
      set("visible", { data: visible() });
      if (last.mark !== found.mark) set("status-bar", { value: found.done, max: found.planned });
      last.mark = found.mark;
      set("pulse", { data: found.mark });
      if (lost) window.dash_clientside.set_props("said", { children: "" });
      lost = false;
    } catch (error) {
      if (lost) return;
      lost = true;
      window.dash_clientside.set_props("said", { children: "The dashboard does not respond; it may have been stopped." });
    }
  }
  window.fedfilt_look = look;
  window.setInterval(look, 4000);
  document.addEventListener("visibilitychange", look);
  let still;
  document.addEventListener("scroll", function () { // redraw what comes into sight
    clearTimeout(still);
    still = setTimeout(look, 150);
  }, { passive: true });
})();
