// Attention as lines between the tokens that look, on the left, and those looked at.

import { largest, list, part } from "./data.js";
import { choice, el } from "./dom.js";
import { color } from "./paint.js";

const MOST = 64; // tokens; of a longer text only those that the chosen one looks at most
const ROW = 22; // pixels, as in page.css
const WIDE = 200;

/** Lines between `tokens`: the element, a caption, and show(weights, query). */
export function between(tokens, choose) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const [left, right] = [el("div"), el("div", { "aria-hidden": "true" })];
  const element = el("div", { class: "lines" }, left, canvas, right);
  const whole = tokens.length <= MOST;
  let places = [];
  let mark = null;

  function lay(shown) {
    if (shown.join() === places.join()) return;
    places = shown;
    left.replaceChildren(...places.map((place) => el("button", {}, tokens[place].piece)));
    right.replaceChildren(...places.map((place) => el("span", {}, tokens[place].piece)));
    mark = choice(left, "The token that looks", (at) => choose(places[at]));
  }

  function show(weights, query) {
    const focused = left.contains(document.activeElement);
    lay(whole ? tokens.map((_, place) => place) : strongest(list(part(weights, query)), query));
    mark(places.indexOf(query));
    if (focused) left.children[places.indexOf(query)].focus();
    const density = Math.max(1, window.devicePixelRatio);
    const high = places.length * ROW;
    canvas.width = WIDE * density;
    canvas.height = high * density;
    canvas.style.height = `${high}px`;
    const context = canvas.getContext("2d");
    context.scale(density, density);
    const draw = (place, strength, width) => {
      const row = part(weights, place);
      const most = largest(row);
      const from = (places.indexOf(place) + 0.5) * ROW;
      places.forEach((key, at) => {
        const to = (at + 0.5) * ROW;
        context.strokeStyle = color((strength * row.at(key)) / most);
        context.lineWidth = width;
        context.beginPath();
        context.moveTo(2, from);
        context.bezierCurveTo(WIDE / 2, from, WIDE / 2, to, WIDE - 2, to);
        context.stroke();
      });
    };
    if (whole) places.filter((place) => place !== query).forEach((place) => draw(place, 0.12, 1));
    draw(query, 1, 2);
    const row = part(weights, query);
    const most = largest(row);
    [...right.children].forEach((word, at) => {
      word.style.backgroundColor = color((0.6 * row.at(places[at])) / most);
    });
  }

  const caption = whole
    ? "From the token that looks, on the left, to those it takes from; the others are faint."
    : `Of ${tokens.length} tokens the ${MOST} that the chosen one takes most from.`;
  return { element, caption, show };
}

/** The places of the largest weights, and the query's own, in the order of the text. */
function strongest(row, query) {
  const order = row.map((_, place) => place).sort((a, b) => row[b] - row[a]);
  return [...new Set([query, ...order])].slice(0, MOST).sort((a, b) => a - b);
}
