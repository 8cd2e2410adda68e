// Overview of all heads of all layers: buttons with thumbnails of their weights.

import { choice, el } from "./dom.js";
import { thumbnail } from "./paint.js";

const THUMBNAIL = 48; // Size in pixels.

/**
 * Create rows of buttons, one row per layer, under `names`. called(layer, column) returns the label of
 * a button, about(layer, column) its tooltip, and off(layer, column) whether it is switched off.
 * Returns the element, mark(layer, column), keep(of), which fades buttons if of(layer, column) is
 * false, and draw(layer, maps, sees), where sees(column) returns which cells of a map are visible.
 */
export function overview(layers, names, called, choose, off = () => false, about = called) {
  const columns = names.length;
  const places = Array.from({ length: layers * columns }, (_, place) => [
    Math.floor(place / columns),
    place % columns,
  ]);
  const cells = places.map((place) => {
    const name = called(...place);
    const attributes = { "aria-label": name, title: about(...place) };
    if (off(...place)) attributes.class = "off";
    return el("button", attributes, el("canvas"));
  });
  const element = el("div", { class: "heads" });
  element.style.gridTemplateColumns = `max-content repeat(${columns}, minmax(14px, 64px))`;
  const label = (text) => {
    const long = text.length > 2 ? " long" : ""; // Vertical text in narrow columns.
    return el("span", { class: `small${long}`, "aria-hidden": "true" }, text);
  };
  element.append(label("layer"), ...names.map(label));
  cells.forEach((cell, place) => {
    if (place % columns === 0) element.append(label(String(place / columns + 1)));
    element.append(cell);
  });
  const markPlace = choice(element, "Layer and head", (place) => choose(...places[place]), columns);

  function draw(layer, maps, sees) {
    maps.forEach((map, column) => {
      const picture = cells[layer * columns + column].firstChild;
      thumbnail(picture, map, THUMBNAIL, sees(column));
    });
  }

  function keep(of) {
    cells.forEach((cell, place) => cell.classList.toggle("pale", !of(...places[place])));
  }
  return { element, mark: (layer, column) => markPlace(layer * columns + column), keep, draw };
}
