// Numbers as colors: blue for positive and orange for negative values, on any background.

import { el } from "./dom.js";

const BLUE = [58, 124, 224];
const ORANGE = [226, 106, 32];
const GRAY = [128, 128, 128];
const FAINT = 0.3; // Opacity of masked cells.

/** Return the color of t between -1 and 1; 0 is transparent. */
export function color(t) {
  return `rgb(${(t < 0 ? ORANGE : BLUE).join(" ")} / ${Math.min(1, Math.abs(t))})`;
}

/** Draw at(column, row), a number between -1 and 1, for each pixel of a canvas. null is gray. */
export function pixels(canvas, width, height, at) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const t = at(column, row);
      const place = 4 * (row * width + column);
      image.data.set(t === null ? GRAY : t < 0 ? ORANGE : BLUE, place);
      image.data[place + 3] = 255 * (t === null ? FAINT : Math.min(1, Math.abs(t)));
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Create a strip of colors for a row of numbers. The numbers ±scale have the full color. */
export function strip(values, scale) {
  const canvas = el("canvas", { class: "strip", "aria-hidden": "true" });
  return pixels(canvas, values.length, 1, (column) => values[column] / scale);
}

/** Return the value that has the full color: 2.5 times the root mean square, to limit outliers. */
export function fullAt(values) {
  return 2.5 * Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length) || 1;
}

/**
 * Draw a matrix in at most `most` × `most` pixels. A pixel shows the largest value of its cells, or
 * is gray if sees(row, column) is false for all of them.
 */
export function thumbnail(canvas, matrix, most, sees) {
  const [rows, columns] = matrix.shape;
  const [high, wide] = [Math.min(rows, most), Math.min(columns, most)];
  const found = new Float32Array(high * wide).fill(-1);
  for (let row = 0; row < rows; row++) {
    const y = wide * Math.floor((row * high) / rows);
    for (let column = 0; column < columns; column++) {
      if (!sees(row, column)) continue;
      const place = y + Math.floor((column * wide) / columns);
      found[place] = Math.max(found[place], matrix.at(row * columns + column));
    }
  }
  const largest = found.reduce((a, b) => Math.max(a, b));
  return pixels(canvas, wide, high, (x, y) => {
    const most = found[y * wide + x];
    return most < 0 ? null : Math.sqrt(most / largest);
  });
}

/** Return the current colors of text, rules, and background, and the font. */
export function inks() {
  const style = getComputedStyle(document.documentElement);
  const [ink, soft, line, paper, accent] = ["ink", "soft", "line", "paper", "accent"].map((name) =>
    style.getPropertyValue(`--${name}`),
  );
  return { ink, soft, line, paper, accent, font: getComputedStyle(document.body).fontFamily };
}
