// A square of numbers between tokens, to be read with the pointer or the arrow keys.

import { el, moved } from "./dom.js";
import { inks, pixels } from "./paint.js";

const LABEL = 9; // pixels of a cell at least, for its token to be written beside it
const CELL = 28; // and at most
const MARGIN = 96; // for these words, of which a small screen gives less

/**
 * The square of `tokens`. `say(row, column)` puts a cell into words, `choose(row, column)` is told
 * the cell that one goes to. Returns the element, and show(matrix, shade, row, column), which shades
 * each number in -1 … 1.
 */
export function square(name, tokens, say, choose) {
  const count = tokens.length;
  const canvas = el("canvas", {
    class: "square",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "matrix",
    "aria-label": `${name}. Arrow keys go from cell to cell.`,
  });
  const output = el("output", { "aria-live": "polite" });
  const element = el("div", {}, canvas, output);
  const heat = document.createElement("canvas");
  const cursor = { row: 0, column: 0 };
  let margin = 0;
  let cell = 1;

  function draw() {
    const room = element.parentElement?.clientWidth;
    if (!room || !heat.width) return;
    const { ink, soft, line, font } = inks();
    const context = canvas.getContext("2d");
    context.font = `12px ${font}`;
    const widths = tokens.map(({ piece }) => context.measureText(piece).width);
    const words = Math.min(MARGIN, room / 4, Math.max(...widths) + 10);
    const labelled = (room - words) / count >= LABEL;
    margin = labelled ? words : 0;
    cell = Math.min(CELL, (room - margin - 1) / count);
    const side = cell * count;
    const density = Math.max(1, window.devicePixelRatio);
    canvas.width = canvas.height = Math.round((margin + side + 1) * density);
    canvas.style.width = canvas.style.height = `${margin + side + 1}px`;
    context.scale(density, density);
    context.imageSmoothingEnabled = cell * density < 1;
    context.drawImage(heat, margin, margin, side, side);
    context.strokeStyle = line;
    context.strokeRect(margin + 0.5, margin + 0.5, side - 1, side - 1);
    if (labelled) {
      context.font = `${Math.min(12, cell)}px ${font}`;
      context.textAlign = "right";
      context.textBaseline = "middle";
      tokens.forEach(({ piece }, place) => {
        const middle = margin + (place + 0.5) * cell;
        context.fillStyle = place === cursor.row ? ink : soft;
        context.fillText(piece, margin - 6, middle, margin - 8);
        context.save();
        context.translate(middle, margin - 6);
        context.rotate(Math.PI / 2);
        context.fillStyle = place === cursor.column ? ink : soft;
        context.fillText(piece, 0, 0, margin - 8);
        context.restore();
      });
    }
    context.strokeStyle = ink;
    const [x, y] = [margin + cursor.column * cell, margin + cursor.row * cell];
    context.strokeRect(x, y, Math.max(cell, 2), Math.max(cell, 2));
    output.textContent = say(cursor.row, cursor.column);
  }

  canvas.addEventListener("keydown", (event) => {
    const { row, column } = cursor;
    const place = moved(event.key, row * count + column, count, count * count);
    if (place === undefined) return;
    event.preventDefault();
    if (place >= 0 && place < count * count) choose(Math.floor(place / count), place % count);
  });
  const under = ({ offsetX, offsetY }) => {
    const [column, row] = [offsetX, offsetY].map((at) => Math.floor((at - margin) / cell));
    const inside = (place) => place >= 0 && place < count;
    return inside(row) && inside(column) ? [row, column] : null;
  };
  canvas.addEventListener("click", (event) => {
    const place = under(event);
    if (place) choose(...place);
  });
  canvas.addEventListener("pointermove", (event) => {
    const place = under(event);
    if (place) output.textContent = say(...place);
  });
  canvas.addEventListener("pointerleave", () => {
    output.textContent = say(cursor.row, cursor.column);
  });
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  function show(matrix, shade, row, column) {
    pixels(heat, count, count, (x, y) => shade(matrix.at(y * count + x)));
    Object.assign(cursor, { row, column });
    draw();
  }
  return { element, show };
}
