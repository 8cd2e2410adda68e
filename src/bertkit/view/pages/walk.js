// What a layer makes of a token's state, step by step, and what is added to what.

import { list, numbers, part } from "./data.js";
import { el, fixed, table } from "./dom.js";
import { fullAt, strip } from "./paint.js";

const POST = [
  ["norm", ["y = norm(x + a)"], "the sum, normalized"],
  ["inner", ["u = g(W", sub("1"), " y)"], "into the feed-forward network, and its activation"],
  ["feed-forward", ["f = W", sub("2"), " u"], "what it adds"],
  ["second sum", ["y + f"], "the residual connection: the state goes past it, too"],
  ["second norm", ["x′ = norm(y + f)"], "the sum, normalized: the state that the layer hands on"],
];
const PRE = [
  ["second norm", ["norm(y)"], "normalized before it is read"],
  ["inner", ["u = g(W", sub("1"), " norm(y))"], "into the feed-forward network, and its activation"],
  ["feed-forward", ["f = W", sub("2"), " u"], "what it adds"],
  ["second sum", ["x′ = y + f"], "past it, too: the state that the layer hands on"],
  ["final norm", ["norm(x′)"], "after the last layer all is normalized once more"],
];

/** The states, and what is added to them; in a post-norm layer also the norms of that. */
const PAST = ["state", "sum", "second sum", "final norm"];

/** A part of a formula that stands lower. */
function sub(text) {
  return { sub: text };
}

/** A table of the way of the token `at.query` through a layer, and what to say of it. */
export async function walk(found, at) {
  const { tokens, model } = found;
  const { piece } = tokens[at.query];
  if (found.walk === null || found.steps === null || at.column >= model.heads) {
    const caption =
      at.column >= model.heads
        ? "Choose a single head to follow a state through the layer."
        : "The vectors of the layer are not in the page: the text is too long, or the model has more in " +
          "its layers than this.";
    return { caption, table: el("div") };
  }
  const { heads, steps } = found.walk[at.layer];
  const vectors = await Promise.all(
    steps.map(async ({ values }) => list(part(await numbers(values), at.query))),
  );
  const place = (name) => steps.findIndex((step) => step.name === name);
  const before = steps[1].name === "norm"; // a pre-norm layer
  const projections = await numbers(found.steps[at.layer]);
  const projected = [0, 1, 2].map((which) => list(part(projections, which, at.column, at.query)));
  const taken = list(part(await numbers(heads), at.column, at.query));
  const values = fullAt([...projected[2], ...taken]);
  const own = ["inner", "norm", "second norm", "final norm"]; // scales; the others share one
  const shared = steps.flatMap(({ name }, at) => (own.includes(name) ? [] : vectors[at]));
  const scaleOf = (name) => fullAt(own.includes(name) ? vectors[place(name)] : shared);
  const past = before ? PAST : [...PAST, "norm", "second norm"];

  // what is computed aside before it is added stands aside
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
  const from = at.layer ? `the state that layer ${at.layer} hands on` : "the embedding";
  const head = `head ${at.column + 1}`;
  const turned = found.rotary ? ", turned by its position (RoPE)" : "";
  const rows = [
    ...step("state", ["x"], from),
    ...(before ? step("norm", ["norm(x)"], "normalized before it is read") : []),
    projection("q", 0, `the query of ${head}: what it looks for${turned}`),
    projection("k", 1, `its key: what others find it by${turned}`),
    projection("v", 2, "its value: what others take from it"),
    row(
      ["h", sub(String(at.column + 1)), " = Σ softmax · v"],
      `what ${head} takes from the values of all tokens`,
      taken,
      values,
      Math.hypot(...taken),
    ),
    ...step(
      "attention",
      ["a = W", sub("O"), " [h", sub("1"), " … h", sub(String(model.heads)), "]"],
      `the ${model.heads} heads side by side, mixed: what attention adds`,
    ),
    ...step("sum", [before ? "y = x + a" : "x + a"], "the residual connection: the state goes past it, too"),
    ...(before ? PRE : POST).flatMap((one) => step(...one)),
  ];
  const caption =
    `“${piece}” in layer ${at.layer + 1}, head ${at.column + 1}: what is made of its state x, and what is ` +
    `added to it. The first numbers of each vector, blue above zero and orange below, and its norm. ` +
    "The states and what is added to them share one scale; each W has its bias, where the model has one.";
  const made = table("The way of the chosen token through the layer", ["step", "numbers", "norm"], rows);
  made.classList.add("walk");
  return { caption, table: made };
}

/** A part of a formula. */
function written(given) {
  return typeof given === "string" ? given : el("sub", {}, given.sub);
}
