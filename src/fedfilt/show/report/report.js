// Draws the figures of the report when they come into view, and hands out the numbers as CSV files.
(function () {
  const stored = JSON.parse(document.getElementById("stored").textContent);
  const narrow = window.matchMedia("(max-width: 760px)").matches;
  const config = { responsive: true, displaylogo: false, scrollZoom: false, displayModeBar: narrow ? false : "hover" };

  function key(place) {
    return place.dataset.figure.replace(/\{(\w+)\}/g, (_, name) => document.getElementById(name).value);
  }
  function draw(place) {
    const figure = stored.figures[key(place)];
    if (!figure || place.dataset.drawn === key(place)) return;
    place.dataset.drawn = key(place);
    const layout = Object.assign({}, figure.layout, { template: stored.template, autosize: true });
    Plotly.react(place.querySelector(".plot"), figure.data, layout, config);
  }
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  const places = [...document.querySelectorAll("figure[data-figure]")];
  const near = new Set();
  const watcher = new IntersectionObserver((seen) => seen.forEach((entry) => {
    if (entry.isIntersecting) { near.add(entry.target); draw(entry.target); } else near.delete(entry.target);
  }), { rootMargin: "300px" });
  places.forEach((place) => watcher.observe(place));
  document.querySelectorAll("select").forEach((select) => select.addEventListener("change", () => {
    near.forEach(draw);
    places.forEach((place) => idle(() => draw(place)));
  }));
  (function ahead(left) {  // the rest, one at a time, when the browser has nothing else to do
    if (left.length) idle(() => { draw(left[0]); ahead(left.slice(1)); });
  })(places);
  window.addEventListener("beforeprint", () => places.forEach(draw));
  document.querySelectorAll("button[data-csv]").forEach((button) => button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([stored.csv[button.dataset.csv]], { type: "text/csv" }));
    link.download = button.dataset.csv;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }));
})();
