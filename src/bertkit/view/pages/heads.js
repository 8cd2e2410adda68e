// All heads of all layers as buttons, each a small picture of its weights.

import { choice, el } from "./dom.js";
import { thumbnail } from "./paint.js";

const THUMBNAIL = 48; // pixels

/**
 * Buttons in rows, a layer each, under `names`: called(layer, column) says what a button is for,
 * about(layer, column) more of it, off(layer, column) whether it is paler. Returns the element,
 * mark(layer, column), keep(of), which pales those of which of(layer, column) is false, and
 * draw(layer, maps, sees), where sees(column) is what its picture shows of the places.
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
    const long = text.length > 2 ? " long" : ""; // for narrow columns
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
