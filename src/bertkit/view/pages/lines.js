// Attention as lines from query tokens on the left to key tokens on the right.

import { largest, list, part } from "./data.js";
import { choice, el } from "./dom.js";
import { color } from "./paint.js";

const MOST = 64; // Maximum number of tokens. For longer texts, only the largest weights are shown.
const ROW = 22; // Height in pixels, as in page.css.
const WIDE = 200;

/**
 * Draw lines from `lookers` to `tokens`. Returns the element, a caption, and show(weights, query). If
 * the text `grows`, tokens after the query are not shown. `label` is the label of the left column.
 */
export function between(lookers, tokens, choose, { label, grows = false }) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const [left, right] = [el("div"), el("div", { "aria-hidden": "true" })];
  const element = el("div", { class: "lines" }, left, canvas, right);
  const whole = tokens.length <= MOST;
  let [from, to] = [[], []];
  let mark = null;

  function lay(row, query) {
    const before = [from, to].join("|");
    to = whole ? tokens.map((_, place) => place) : strongest(row, grows ? [] : [query]);
    from = grows ? lookers.map((_, place) => place).slice(0, query + 1).slice(-MOST) : to;
    if ([from, to].join("|") === before) return;
    left.replaceChildren(...from.map((place) => el("button", {}, lookers[place].piece)));
    right.replaceChildren(...to.map((place) => el("span", {}, tokens[place].piece)));
    mark = choice(left, label, (at) => choose(from[at]));
  }

  function show(weights, query) {
    const focused = left.contains(document.activeElement);
    lay(list(part(weights, query)), query);
    mark(from.indexOf(query));
    if (focused) left.children[from.indexOf(query)].focus();
    const density = Math.max(1, window.devicePixelRatio);
    const high = Math.max(from.length, to.length) * ROW;
    canvas.width = WIDE * density;
    canvas.height = high * density;
    canvas.style.height = `${high}px`;
    const context = canvas.getContext("2d");
    context.scale(density, density);
    const draw = (place, strength, width) => {
      const row = part(weights, place);
      const most = largest(row);
      const start = (from.indexOf(place) + 0.5) * ROW;
      to.forEach((key, at) => {
        const end = (at + 0.5) * ROW;
        context.strokeStyle = color((strength * row.at(key)) / most);
        context.lineWidth = width;
        context.beginPath();
        context.moveTo(2, start);
        context.bezierCurveTo(WIDE / 2, start, WIDE / 2, end, WIDE - 2, end);
        context.stroke();
      });
    };
    if (whole) from.filter((place) => place !== query).forEach((place) => draw(place, 0.12, 1));
    draw(query, 1, 2);
    const row = part(weights, query);
    const most = largest(row);
    [...right.children].forEach((word, at) => {
      word.style.backgroundColor = color((0.6 * row.at(to[at])) / most);
    });
  }

  const caption = whole
    ? "Attention weights from the query token on the left to the key tokens. The lines of other queries are faint."
    : `Only the ${MOST} of ${tokens.length} tokens with the largest weights of the query token are shown.`;
  return { element, caption, show };
}

/** Return the indices of the largest weights and of `and`, in the order of the text. */
function strongest(row, and) {
  const order = row.map((_, place) => place).sort((a, b) => row[b] - row[a]);
  return [...new Set([...and, ...order])].slice(0, MOST).sort((a, b) => a - b);
}
