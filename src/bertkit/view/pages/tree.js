// The hypotheses of beam search at each step, as a tree. Each one extends a hypothesis of the step before.

import { el, fixed } from "./dom.js";
import { inks } from "./paint.js";

const ENDS = { kept: "", ended: "complete", dropped: "dropped" };

/** Create the tree of the steps `beams`. Returns the element and show(step), which marks a step. */
export function tree(beams) {
  const lines = el("canvas", { "aria-hidden": "true" });
  const boxes = beams.map((step) => step.map(box));
  const rows = Array.from({ length: Math.max(...beams.map((step) => step.length)) }, (_, rank) =>
    el("tr", {}, ...boxes.map((step) => el("td", {}, step[rank] ?? ""))),
  );
  const heads = beams.map((_, step) => el("th", { scope: "col" }, String(step + 1)));
  const table = el(
    "table",
    {},
    el("caption", { class: "hidden" }, "The texts of each step, most probable first"),
    el("thead", {}, el("tr", {}, ...heads)),
    el("tbody", {}, ...rows),
  );
  const element = el("div", { class: "tree" }, lines, table);

  function draw() {
    if (!table.offsetWidth) return;
    const density = Math.max(1, window.devicePixelRatio);
    lines.width = table.offsetWidth * density;
    lines.height = table.offsetHeight * density;
    lines.style.width = `${table.offsetWidth}px`;
    lines.style.height = `${table.offsetHeight}px`;
    const context = lines.getContext("2d");
    context.scale(density, density);
    const { accent, line } = inks();
    for (const wins of [false, true]) {
      context.strokeStyle = wins ? accent : line;
      context.lineWidth = wins ? 2.5 : 1.5;
      beams.forEach((step, at) =>
        step.forEach((beam, rank) => {
          if (at && beam.wins === wins) join(context, boxes[at - 1][beam.before], boxes[at][rank]);
        }),
      );
    }
  }
  new ResizeObserver(draw).observe(table);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  function show(step) {
    heads.forEach((head, at) => {
      if (at === step) head.setAttribute("aria-current", "step");
      else head.removeAttribute("aria-current");
    });
    const { offsetLeft, offsetWidth } = heads[Math.min(step, heads.length - 1)];
    const box = element.parentElement; // The parent scrolls.
    if (box) box.scrollLeft = offsetLeft + (offsetWidth - box.clientWidth) / 2;
  }
  return { element, show };
}

/** Create a box with the last token and the score of a text. */
function box({ token, score, state, wins }) {
  const said = [ENDS[state], wins ? "part of the result" : ""].filter(Boolean).join(", ");
  const number = el("span", { class: "small" }, fixed(score, 2));
  const hidden = said ? [el("span", { class: "hidden" }, `, ${said}`)] : [];
  return el("span", { class: `beam ${state}${wins ? " wins" : ""}` }, el("b", {}, token), number, ...hidden);
}

function join(context, from, to) {
  const [x, y] = [from.offsetLeft + from.offsetWidth, from.offsetTop + from.offsetHeight / 2];
  const [right, low] = [to.offsetLeft, to.offsetTop + to.offsetHeight / 2];
  const middle = (x + right) / 2;
  context.beginPath();
  context.moveTo(x, y);
  context.bezierCurveTo(middle, y, middle, low, right, low);
  context.stroke();
}
