// Draws the figures of the report when they come into view, and hands out the numbers as CSV files.
(function () {
  const stored = JSON.parse(document.getElementById("stored").textContent);
  const narrow = window.matchMedia("(max-width: 760px)").matches;
  const config = { responsive: true, displaylogo: false, scrollZoom: false, displayModeBar: narrow ? false : "hover" };
  const by = (id) => document.getElementById(id);
  const keys = [...document.querySelectorAll(".key")];
  const hidden = new Set();  // groups whose curves are not shown

  function key(place) {
    return place.dataset.figure.replace(/\{(\w+)\}/g, (_, name) => by(name).value);
  }
  function figure(place) {
    const name = key(place), found = stored.figures[stored.names[name]];
    return found && name.startsWith("scatter-") ? opposed(found, name.slice(8)) : found;
  }
  // Two rules device by device, on the seeds that both have
  function opposed(figure, test) {
    const chosen = ["horizontal", "vertical"].map((id) => by(id).value);
    const [one, other] = chosen.map((number) => stored.devices[test][number]);
    const words = chosen.map((number) => keys[number].dataset.group);
    const x = [], y = [], text = [];
    for (const seed of Object.keys(one).filter((seed) => seed in other)) {
      one[seed].forEach((value, device) => {
        const its = other[seed][device];
        if (value === null || its === null || its === undefined) return;
        x.push(value); y.push(its); text.push(`device ${device}, seed ${seed}`);
      });
    }
    if (figure.data.length < 2) return figure;  // it says why there is nothing to see
    const [diagonal, dots] = figure.data, title = figure.layout.title.text, look = swatch(keys[chosen[1]]);
    const less = dots.meta === "less is better";
    const better = x.filter((value, i) => (less ? y[i] < value : y[i] > value)).length;
    const axis = (name, words) => Object.assign({}, figure.layout[name],
      { title: Object.assign({}, figure.layout[name].title, { text: folded(words) }) });
    return {
      data: [diagonal, Object.assign({}, dots, { x, y, text, marker: Object.assign({}, dots.marker, look) })],
      layout: Object.assign({}, figure.layout, {
        xaxis: axis("xaxis", words[0]), yaxis: axis("yaxis", words[1]),
        title: Object.assign({}, figure.layout.title, { text: title.replace(/\d+ of \d+/, `${better} of ${x.length}`) }),
      }),
    };
  }
  function folded(words, width = 40) {  // in lines that a phone has room for
    const pieces = words.split(" ").flatMap((word) => word.match(new RegExp(`.{1,${width}}`, "g")) || []);
    return pieces.reduce((lines, word) => {
      if (lines.length && (lines[lines.length - 1] + " " + word).length <= width) lines[lines.length - 1] += " " + word;
      else lines.push(word);
      return lines;
    }, []).join("<br>");
  }
  function swatch(button) {
    const svg = button.querySelector("svg");
    return { color: svg.querySelector("path").getAttribute("stroke"), symbol: svg.dataset.symbol };
  }

  function draw(place) {
    const found = figure(place), name = key(place);
    const shared = "shared" in place.dataset && keys.length > 0;
    const marks = [name, ...(shared ? hidden : []), ...(name.startsWith("scatter-") ? [by("horizontal").value, by("vertical").value] : [])];
    if (!found || place.dataset.drawn === marks.join("\n")) return;
    place.dataset.drawn = marks.join("\n");
    const layout = Object.assign({}, found.layout, { template: stored.template, autosize: true });
    let data = found.data;
    if (shared) {  // one key for all of them, above
      data = data.map((trace) => Object.assign({}, trace, { visible: !hidden.has(trace.legendgroup) }));
      layout.showlegend = false;
      if (layout.margin.b > 60) {
        layout.height -= layout.margin.b - 60;
        layout.margin = Object.assign({}, layout.margin, { b: 60 });
      }
    }
    Plotly.react(place.querySelector(".plot"), data, layout, config);
  }
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  const places = [...document.querySelectorAll("figure[data-figure]")];
  const near = new Set();
  const watcher = new IntersectionObserver((seen) => seen.forEach((entry) => {
    if (entry.isIntersecting) { near.add(entry.target); draw(entry.target); } else near.delete(entry.target);
  }), { rootMargin: "300px" });
  places.forEach((place) => watcher.observe(place));
  function again() {
    near.forEach(draw);
    places.forEach((place) => idle(() => draw(place)));
  }
  document.querySelectorAll("select").forEach((select) => select.addEventListener("change", () => {
    if (select.id === "run") by("chosen").textContent = select.selectedOptions[0].textContent;
    again();
  }));
  (function ahead(left) {  // the rest, one at a time, when the browser has nothing else to do
    if (left.length) idle(() => { draw(left[0]); ahead(left.slice(1)); });
  })(places);

  function press(button, on) {
    button.setAttribute("aria-pressed", on);
    hidden[on ? "delete" : "add"](button.dataset.group);
  }
  keys.forEach((button) => button.addEventListener("click", () => {
    press(button, button.getAttribute("aria-pressed") !== "true");
    again();
  }));
  if (by("only")) by("only").addEventListener("input", () => {
    const words = by("only").value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    keys.forEach((button) => press(button, words.every((word) => button.textContent.toLowerCase().includes(word))));
    again();
  });
  // The marks of the key, as Plotly draws them
  const swatches = [...document.querySelectorAll("svg.swatch")], symbols = [...new Set(swatches.map((s) => s.dataset.symbol))];
  if (symbols.length) {
    const place = document.body.appendChild(document.createElement("div"));
    place.className = "drawing";
    const traces = symbols.map((symbol) => ({ x: [0], y: [0], mode: "markers", marker: { symbol, size: 10 } }));
    Plotly.newPlot(place, traces, { width: 200, height: 200 }, { staticPlot: true }).then(() => {
      const paths = [...place.querySelectorAll(".scatterlayer .trace")].map((trace) => trace.querySelector("path.point"));
      swatches.forEach((svg) => {
        const found = paths[symbols.indexOf(svg.dataset.symbol)];
        if (!found) return;
        const mark = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
        const colour = svg.querySelector("path").getAttribute("stroke"), open = svg.dataset.symbol.endsWith("-open");
        const set = { d: found.getAttribute("d"), transform: "translate(17,8)", fill: open ? "#ffffff" : colour, stroke: colour };
        Object.entries(set).forEach(([name, value]) => mark.setAttribute(name, value));
      });
      Plotly.purge(place);
      place.remove();
    });
  }

  window.addEventListener("beforeprint", () => places.forEach(draw));
  document.querySelectorAll("button[data-csv]").forEach((button) => button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([stored.csv[button.dataset.csv]], { type: "text/csv" }));
    link.download = button.dataset.csv;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }));
})();
