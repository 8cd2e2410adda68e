// Tokens of the text and their embeddings.

import { list, numbers } from "./data.js";
import { el, fixed, table } from "./dom.js";
import { fullAt, strip } from "./paint.js";
import { figure } from "./picture.js";

const NAMES = {
  token: "token",
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
  const names = ["word", "text", "id", "characters", "segment", ...vectors];
  const made = table("The tokens of the text and the norms of their vectors", names, rows);
  const caption =
    `The first ${shown} of ${width} values of each vector (blue is positive, orange is negative) and ` +
    "the norm of the vector. The sum and its terms have the same color scale.";
  section.append(figure("Tokens and embeddings", caption, made));
}

/** Return the cell of a word in the row of its first token, and no cell in the rows of its other tokens. */
function word(found, token, place) {
  if (token.word === null) return [el("th", { scope: "row", class: "special" }, "")];
  const { text, first, end } = found.words[token.word];
  return place === first ? [el("th", { scope: "rowgroup", rowspan: end - first }, text)] : [];
}
