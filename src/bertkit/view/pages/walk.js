// The steps of a layer for the state of one token.

import { list, numbers, part } from "./data.js";
import { el, fixed, table } from "./dom.js";
import { fullAt, strip } from "./paint.js";

const POST = [
  ["norm", ["y = norm(x + a)"], "the sum, normalized"],
  ["inner", ["u = g(W", sub("1"), " y)"], "first layer of the feed-forward network, with activation"],
  ["feed-forward", ["f = W", sub("2"), " u"], "output of the feed-forward network"],
  ["second sum", ["y + f"], "the residual connection"],
  ["second norm", ["x′ = norm(y + f)"], "the sum, normalized: the output of the layer"],
];
const PRE = [
  ["second norm", ["norm(y)"], "normalized input of the feed-forward network"],
  ["inner", ["u = g(W", sub("1"), " norm(y))"], "first layer of the feed-forward network, with activation"],
  ["feed-forward", ["f = W", sub("2"), " u"], "output of the feed-forward network"],
  ["second sum", ["x′ = y + f"], "the residual connection: the output of the layer"],
  ["final norm", ["norm(x′)"], "final normalization after the last layer"],
];

/** Steps on the residual path; in a post-norm layer also the norms. */
const PAST = ["state", "sum", "second sum", "final norm"];

/** Create a subscript of a formula. */
function sub(text) {
  return { sub: text };
}

/** Return a table of the steps of the token `at.query` through a layer, and its caption. */
export async function walk(found, at) {
  const { tokens, model } = found;
  const { piece } = tokens[at.query];
  if (found.walk === null || found.steps === null || at.column >= model.heads) {
    const caption =
      at.column >= model.heads
        ? "Choose a single head to follow a state through the layer."
        : "The page does not contain the vectors of the layer, because the text is too long, or this " +
          "layer type is not supported.";
    return { caption, table: el("div") };
  }
  const { heads, steps } = found.walk[at.layer];
  const vectors = await Promise.all(
    steps.map(async ({ values }) => list(part(await numbers(values), at.query))),
  );
  const place = (name) => steps.findIndex((step) => step.name === name);
  const before = steps[1].name === "norm"; // Whether the layer is pre-norm.
  const projections = await numbers(found.steps[at.layer]);
  const projected = [0, 1, 2].map((which) => list(part(projections, which, at.column, at.query)));
  const taken = list(part(await numbers(heads), at.column, at.query));
  const values = fullAt([...projected[2], ...taken]);
  const own = ["inner", "norm", "second norm", "final norm"]; // Each has its own color scale.
  const shared = steps.flatMap(({ name }, at) => (own.includes(name) ? [] : vectors[at]));
  const scaleOf = (name) => fullAt(own.includes(name) ? vectors[place(name)] : shared);
  const past = before ? PAST : [...PAST, "norm", "second norm"];

  // Steps that are not on the residual path are indented.
  const row = (formula, says, numbers, scale, norm, aside = true) => {
    const name = [el("b", {}, ...formula.map(written)), el("span", { class: "small" }, says)];
    const step = el("span", { class: aside ? "step branch" : "step" }, ...name);
    return [step, strip(numbers, scale), fixed(norm, 2)];
  };
  const step = (name, formula, says) => {
    const which = place(name);
    if (which < 0) return [];
    const norm = steps[which].norms[at.query];
    return [row(formula, says, vectors[which], scaleOf(name), norm, !past.includes(name))];
  };
  const projection = (letter, which, says) => {
    const formula = [`${letter} = W`, sub(letter.toUpperCase()), before ? " norm(x)" : " x"];
    const scale = which === 2 ? values : fullAt([...projected[0], ...projected[1]]);
    return row(formula, says, projected[which], scale, Math.hypot(...projected[which]));
  };
  const from = at.layer ? `the output of layer ${at.layer}` : "the embedding";
  const head = `head ${at.column + 1}`;
  const turned = found.rotary ? ", rotated by its position (RoPE)" : "";
  const rows = [
    ...step("state", ["x"], from),
    ...(before ? step("norm", ["norm(x)"], "normalized input of attention") : []),
    projection("q", 0, `the query of ${head}${turned}`),
    projection("k", 1, `the key of ${head}${turned}`),
    projection("v", 2, `the value of ${head}`),
    row(
      ["h", sub(String(at.column + 1)), " = Σ softmax · v"],
      `the output of ${head}: the weighted sum of all values`,
      taken,
      values,
      Math.hypot(...taken),
    ),
    ...step(
      "attention",
      ["a = W", sub("O"), " [h", sub("1"), " … h", sub(String(model.heads)), "]"],
      `the output projection of the concatenated outputs of ${model.heads} heads`,
    ),
    ...step("sum", [before ? "y = x + a" : "x + a"], "the residual connection"),
    ...(before ? PRE : POST).flatMap((one) => step(...one)),
  ];
  const caption =
    `The steps of the state x of “${piece}” in layer ${at.layer + 1}, head ${at.column + 1}. The strips show ` +
    "the first values of each vector: blue is positive, orange is negative. The states and the vectors that " +
    "are added to them have the same color scale. Biases are not shown in the formulas.";
  const made = table("The chosen token in the layer, step by step", ["step", "values", "norm"], rows);
  made.classList.add("walk");
  return { caption, table: made };
}

/** Create a part of a formula. */
function written(given) {
  return typeof given === "string" ? given : el("sub", {}, given.sub);
}
