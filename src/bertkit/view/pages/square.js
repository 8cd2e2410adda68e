// A matrix of values for pairs of tokens, which users explore with the pointer or the arrow keys.

import { el, moved } from "./dom.js";
import { inks, pixels } from "./paint.js";

const LABEL = 9; // Minimum size in pixels of a cell with a label.
const CELL = 28; // Maximum size in pixels of a cell.
const MARGIN = 96; // Maximum size in pixels of the labels; smaller on small screens.

/**
 * Create a matrix of the tokens in `rows` and `columns`. `say(row, column)` describes a cell, and
 * `choose(row, column)` is called when the user selects a cell. Returns the element, and
 * show(matrix, shade, row, column, sees), where shade(number) is between -1 and 1, and cells are
 * gray if sees(row, column) is false.
 */
export function square(name, rows, columns, say, choose) {
  const canvas = el("canvas", {
    class: "square",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "matrix",
    "aria-label": `${name}. Use the arrow keys to move between cells.`,
  });
  const output = el("output", { "aria-live": "polite" });
  const element = el("div", {}, canvas, output);
  const heat = document.createElement("canvas");
  const cursor = { row: 0, column: 0 };
  let [left, top, cell] = [0, 0, 1];

  function draw() {
    const room = element.parentElement?.clientWidth;
    if (!room || !heat.width) return;
    const { ink, soft, line, font } = inks();
    const context = canvas.getContext("2d");
    context.font = `12px ${font}`;
    const [beside, above] = [rows, columns].map((tokens) => {
      const widths = tokens.map(({ piece }) => context.measureText(piece).width);
      return Math.min(MARGIN, room / 4, Math.max(...widths) + 10);
    });
    const labeled = (room - beside) / columns.length >= LABEL;
    [left, top] = labeled ? [beside, above] : [0, 0];
    cell = Math.min(CELL, (room - left - 1) / columns.length);
    const [wide, high] = [cell * columns.length, cell * rows.length];
    const density = Math.max(1, window.devicePixelRatio);
    canvas.width = Math.round((left + wide + 1) * density);
    canvas.height = Math.round((top + high + 1) * density);
    canvas.style.width = `${left + wide + 1}px`;
    canvas.style.height = `${top + high + 1}px`;
    context.scale(density, density);
    context.imageSmoothingEnabled = cell * density < 1;
    context.drawImage(heat, left, top, wide, high);
    context.strokeStyle = line;
    context.strokeRect(left + 0.5, top + 0.5, wide - 1, high - 1);
    if (labeled) {
      context.font = `${Math.min(12, cell)}px ${font}`;
      context.textAlign = "right";
      context.textBaseline = "middle";
      rows.forEach(({ piece }, place) => {
        context.fillStyle = place === cursor.row ? ink : soft;
        context.fillText(piece, left - 6, top + (place + 0.5) * cell, left - 8);
      });
      columns.forEach(({ piece }, place) => {
        context.save();
        context.translate(left + (place + 0.5) * cell, top - 6);
        context.rotate(Math.PI / 2);
        context.fillStyle = place === cursor.column ? ink : soft;
        context.fillText(piece, 0, 0, top - 8);
        context.restore();
      });
    }
    context.strokeStyle = ink;
    const [x, y] = [left + cursor.column * cell, top + cursor.row * cell];
    context.strokeRect(x, y, Math.max(cell, 2), Math.max(cell, 2));
    output.textContent = say(cursor.row, cursor.column);
  }

  canvas.addEventListener("keydown", (event) => {
    const { row, column } = cursor;
    const [wide, count] = [columns.length, rows.length * columns.length];
    const place = moved(event.key, row * wide + column, wide, count);
    if (place === undefined) return;
    event.preventDefault();
    if (place >= 0 && place < count) choose(Math.floor(place / wide), place % wide);
  });
  const under = ({ offsetX, offsetY }) => {
    const [row, column] = [Math.floor((offsetY - top) / cell), Math.floor((offsetX - left) / cell)];
    return rows[row] && columns[column] ? [row, column] : null;
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

  function show(matrix, shade, row, column, sees = () => true) {
    const wide = columns.length;
    pixels(heat, wide, rows.length, (x, y) => (sees(y, x) ? shade(matrix.at(y * wide + x)) : null));
    Object.assign(cursor, { row, column });
    draw();
  }
  return { element, show };
}
