// One row of attention, step by step: q · k, divided by √d, softmax, the weighted sum of values.

import { list, numbers, part, sees } from "./data.js";
import { el, fixed, table } from "./dom.js";
import { fullAt, strip } from "./paint.js";

/** Return a table of the selected row, and its caption. `weights` are the weights that the model computed. */
export async function steps(found, at, weights) {
  const { tokens, model } = found;
  const own = list(part(weights, at.query));
  const layer = at.column > model.heads ? null : at.layer;
  const keys = tokens.map((_, key) => key).filter((key) => sees(found, layer, at.query, key));
  if (at.column >= model.heads || found.steps === null) {
    const digits = tokens.length > 64 ? 4 : 3;
    const rows = keys.map((key) => [tokens[key].piece, bar(own[key], "", digits)]);
    const caption =
      at.column >= model.heads
        ? "The attention weights of the chosen token. Choose a single head to see how they are computed."
        : "The attention weights of the chosen token. The text is too long to include queries, keys, and " +
          "values in the page. Use a shorter text to see them.";
    const made = table("Attention weights of the chosen token", ["key", "weight"], rows);
    return { caption, table: made };
  }
  const vectors = await numbers(found.steps[at.layer]);
  const vector = (which, token) => list(part(vectors, which, at.column, token));
  const query = vector(0, at.query);
  const [ks, vs] = [1, 2].map((which) => keys.map((key) => vector(which, key)));
  const result = computed(query, ks, vs);
  const scales = [query, ks.flat(), vs.flat(), result.mixed].map(fullAt);
  const [products, scores] = [result.products, result.scores].map(aligned);
  const rows = keys.map((key, place) => [
    tokens[key].piece,
    strip(ks[place], scales[1]),
    products[place],
    scores[place],
    bar(result.softmax[place]),
    strip(vs[place], scales[2]),
    strip(vs[place].map((v) => v * result.softmax[place]), scales[3]),
  ]);
  const sum = result.softmax.reduce((a, b) => a + b, 0);
  const norm = el("span", { class: "small" }, `norm ${fixed(Math.hypot(...result.mixed), 2)}`);
  const mixed = el("span", { class: "vector" }, strip(result.mixed, scales[3]), norm);
  const foot = [["sum", "", "", "", bar(sum), "", mixed]];
  const off = Math.max(...keys.map((key, place) => Math.abs(result.softmax[place] - own[key])));
  const names = ["key", "k", "q · k", `÷ √${query.length}`, "softmax", "v", "softmax × v"];
  const made = table("Computation of the weights of the chosen token", names, rows, foot);
  const about = el("p", { class: "query" }, `q of ${tokens[at.query].piece} `, strip(query, scales[0]));
  const caption =
    "The dot products of the query q of the chosen token with all keys k are scaled. Softmax converts them " +
    "to weights, and the output is the weighted sum of the values v. This page computes them from q, k, " +
    `and v of the model; the maximum difference from the model’s weights is ${off.toExponential(0)}.`;
  return { caption, table: el("div", {}, about, made) };
}

/** Compute softmax(q k / √d) v of one query. Vaswani et al. 2017, equation 1. */
function computed(query, keys, values) {
  const products = keys.map((key) => key.reduce((sum, k, i) => sum + k * query[i], 0));
  const scores = products.map((product) => product / Math.sqrt(query.length));
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  const total = powers.reduce((a, b) => a + b, 0);
  const softmax = powers.map((power) => power / total);
  const mixed = query.map((_, i) => values.reduce((sum, v, key) => sum + softmax[key] * v[i], 0));
  return { products, scores, softmax, mixed };
}

/** Format numbers with aligned decimal points. */
function aligned(numbers) {
  const texts = numbers.map((number) => fixed(number, 2));
  const longest = Math.max(...texts.map((text) => text.length));
  return texts.map((text) => text.padStart(longest, "\u2007"));
}

/** Create a bar and a number for a fraction. */
export function bar(share, kind = "", digits = 3) {
  const filled = el("i");
  filled.style.width = `${100 * share}%`;
  const number = el("span", {}, fixed(share, digits));
  return el("span", { class: `bar ${kind}` }, el("b", {}, filled), number);
}
