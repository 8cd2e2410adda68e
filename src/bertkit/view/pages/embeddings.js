// How the text becomes pieces, and each piece a vector.

import { list, numbers } from "./data.js";
import { el, fixed, table } from "./dom.js";
import { fullAt, strip } from "./paint.js";
import { figure } from "./picture.js";

const NAMES = {
  token: "piece",
  position: "+ position",
  segment: "+ segment",
  sum: "= sum",
  norm: "after LayerNorm",
};

export async function embeddings(found, section) {
  const { width, parts } = found.embeddings;
  const values = await Promise.all(parts.map(async (one) => list(await numbers(one.values))));
  const shown = values[0].length / found.tokens.length;
  const [added, normalized] = ["sum", "norm"].map((name) =>
    fullAt(values[parts.findIndex((one) => one.name === name)]),
  );
  const vector = ({ name, norms }, at, place) => {
    const own = values[at].slice(place * shown, (place + 1) * shown);
    const norm = el("span", { class: "small" }, fixed(norms[place], 2));
    return el("span", { class: "vector" }, strip(own, name === "norm" ? normalized : added), norm);
  };
  const rows = found.tokens.map((token, place) => [
    ...word(found, token, place),
    el("td", {}, token.piece),
    String(token.id),
    token.word === null ? "" : `${token.start}–${token.end}`,
    "AB"[token.segment],
    ...parts.map((one, at) => vector(one, at, place)),
  ]);
  const vectors = parts.map(({ name }) => NAMES[name]);
  const names = ["word", "piece", "id", "characters", "segment", ...vectors];
  const made = table("The pieces of the text and their vectors' norms", names, rows);
  const caption =
    `The first ${shown} of ${width} numbers of each vector, blue above zero and orange below, and ` +
    "the vector’s norm. The sum and what is added up share one scale.";
  section.append(figure("Pieces and embeddings", caption, made));
}

/** The cell of a word, beside the first of its pieces; none beside the others. */
function word(found, token, place) {
  if (token.word === null) return [el("th", { scope: "row", class: "special" }, "")];
  const { text, first, end } = found.words[token.word];
  return place === first ? [el("th", { scope: "rowgroup", rowspan: end - first }, text)] : [];
}
