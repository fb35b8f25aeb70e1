// Arrow keys on the building choose the next or previous device; [ and ] go one round back or forward.
document.addEventListener("keydown", function (event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const place = document.activeElement;
  const typing = place && ["INPUT", "TEXTAREA", "SELECT"].includes(place.tagName);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step && place && place.id === "buildings") {
    const field = document.getElementById("device");
    const next = Math.min(Math.max(Number(field.value || 0) + step, 0), Number(field.max));
    window.dash_clientside.set_props("device", { value: next });
    event.preventDefault();
  }
  const back = { "[": -1, "]": 1 }[event.key];
  if (back && !typing) {
    const slider = document.querySelector("#round [role=slider]");
    if (!slider) return;
    const low = Number(slider.getAttribute("aria-valuemin")), high = Number(slider.getAttribute("aria-valuemax"));
    const next = Math.min(Math.max(Number(slider.getAttribute("aria-valuenow")) + back, low), high);
    window.dash_clientside.set_props("round", { value: next });
  }
});
