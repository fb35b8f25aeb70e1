// Lets the other scripts in once the building is painted, and gives way to Dash's own building when that is drawn.
(function () {
  function add(found) {
    return new Promise((done) => {
      const script = document.createElement("script");
      for (const { name, value } of found.attributes) script.setAttribute(name, value);
      script.textContent = found.textContent;
      script.async = false; // in their order
      script.onload = script.onerror = done;
      document.body.append(script);
      if (!script.src) done();
    });
  }
  async function rest() {
    const scripts = [...document.getElementById("rest").content.querySelectorAll("script")];
    await Promise.all(scripts.filter((script) => script.src).map(add));
    scripts.filter((script) => !script.src).forEach(add);
    const watcher = new MutationObserver(function () {
      if (!document.querySelector("#building :is(.scatterlayer .point, .annotation)")) return;
      watcher.disconnect();
      document.getElementById("opening").remove();
      requestAnimationFrame(() => setTimeout(() => window.dash_clientside.set_props("ready", { data: true })));
    });
    watcher.observe(document.getElementById("react-entry-point"), { childList: true, subtree: true });
  }
  requestAnimationFrame(() => setTimeout(() => { // after it is painted
    performance.mark("first view");
    rest();
  }));
})();
