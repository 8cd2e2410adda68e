// All heads of all layers as buttons, each a small picture of its weights.

import { choice, el } from "./dom.js";
import { thumbnail } from "./paint.js";

const THUMBNAIL = 48; // pixels

/**
 * Buttons in rows, a layer each, under `names`: called(layer, column) says what a button is for,
 * off(layer, column) whether it is paler. Returns the element, mark(layer, column), and
 * draw(layer, maps, sees), where sees(column) is what its picture shows of the places.
 */
export function overview(layers, names, called, choose, off = () => false) {
  const columns = names.length;
  const places = Array.from({ length: layers * columns }, (_, place) => [
    Math.floor(place / columns),
    place % columns,
  ]);
  const cells = places.map((place) => {
    const name = called(...place);
    const attributes = { "aria-label": name, title: name, class: off(...place) ? "off" : "" };
    return el("button", attributes, el("canvas"));
  });
  const element = el("div", { class: "heads" });
  element.style.gridTemplateColumns = `max-content repeat(${columns}, minmax(26px, 64px))`;
  const label = (text) => el("span", { class: "small", "aria-hidden": "true" }, text);
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
  return { element, mark: (layer, column) => markPlace(layer * columns + column), draw };
}
