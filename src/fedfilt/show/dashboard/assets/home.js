// Fetches the home every two seconds, updates the page if anything has changed, and shows times in the reader's time
// zone. A hidden tab fetches nothing.
(function () {
  const place = document.getElementById("home"), lost = document.getElementById("lost");
  let shown = "";

  function local() {
    const day = { day: "numeric", month: "short" }, clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    const today = new Date(1000 * place.querySelector("[data-now]").dataset.now).toDateString();
    for (const element of place.querySelectorAll("[data-at]")) {
      const time = new Date(1000 * element.dataset.at);
      const before = time.toDateString() === today ? "" : time.toLocaleDateString("en-GB", day) + " ";
      element.textContent = before + time.toLocaleTimeString("en-GB", clock);
    }
  }
  async function look() {
    if (document.hidden) return;
    try {
      const answer = await fetch("_home" + window.location.search);
      if (!answer.ok) throw new Error(answer.status);
      const text = await answer.text();
      lost.hidden = true;
      if (text === shown) return;
      const focused = place.contains(document.activeElement) && document.activeElement.id;
      const unfolded = [...place.querySelectorAll("details[open]")].map((details) => details.id);
      shown = text;
      place.innerHTML = text;
      local();
      for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
      if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    } catch (error) {
      lost.textContent = "The dashboard does not respond. What you see may be out of date.";
      lost.hidden = false;
    }
  }
  local();
  window.fedfilt_look = look;
  window.setInterval(look, 2000);
  document.addEventListener("visibilitychange", look);
})();
