// A slider with buttons, which can play automatically.

import { el } from "./dom.js";

const PACE = 900; // Milliseconds per step.

/**
 * Create a slider with `count` positions and the label `name`. When it moves, it calls go(place). It shows
 * the text said(place), and screen readers read spoken(place). Returns the element and show(place).
 */
export function slider(name, count, go, said, spoken = said) {
  const last = count - 1;
  const id = `slider-${name.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  const input = el("input", { type: "range", min: 0, max: last, value: 0, id });
  const output = el("output", { for: id });
  const play = el("button", { type: "button", class: "quiet", onclick: toggle }, "Play");
  const [back, on] = [
    [`${name} back`, "◀", -1],
    [`${name} forward`, "▶", 1],
  ].map(([label, sign, by]) => {
    const attributes = { type: "button", class: "quiet", "aria-label": label };
    return el("button", { ...attributes, onclick: () => jump(at() + by) }, sign);
  });
  input.addEventListener("input", () => jump(at()));
  let timer = null;

  function at() {
    return Number(input.value);
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  function jump(place) {
    stop();
    go(place);
  }
  function toggle() {
    if (timer !== null) return stop();
    play.textContent = "Stop";
    go(at() === last ? 0 : at() + 1);
    timer = setInterval(() => (at() === last ? stop() : go(at() + 1)), PACE);
  }
  function show(place) {
    input.value = place;
    input.setAttribute("aria-valuetext", spoken(place));
    output.textContent = said(place);
    back.disabled = place === 0;
    on.disabled = place === last;
    if (place === last) stop();
  }
  const label = el("label", { for: id }, name);
  return { element: el("p", { class: "slider" }, play, back, on, label, input, output), show };
}
