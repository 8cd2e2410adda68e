// Attention patterns of heads, and a filter for them.

import { choice, el, fixed } from "./dom.js";

const PATTERNS = {
  previous: ["previous token", "on the previous token"],
  next: ["next token", "on the next token"],
  same: ["same word", "on the same word, here and elsewhere"],
  delimiter: ["delimiters", "on special tokens and punctuation"],
  broad: ["broad", "of the entropy of equal weights"],
  mixed: ["mixed", ""],
};

/** Describe the pattern of a head in this text. */
export function told({ kind, shares }) {
  const [name, where] = PATTERNS[kind];
  if (kind === "mixed") return `${name}, no pattern receives more than half of the weight`;
  return `${name}, ${fixed(100 * shares[kind], 0)}% ${where}`;
}

/** Create buttons for the patterns with their counts. Returns the element and mark(kind or null). */
export function filter(patterns, choose) {
  const all = patterns.flat();
  const count = (kind) => all.filter((one) => one.kind === kind).length;
  const kinds = [null, ...Object.keys(PATTERNS).filter(count)];
  const chips = kinds.map((kind) =>
    el(
      "button",
      {},
      kind ? PATTERNS[kind][0] : "all heads",
      el("span", { class: "small" }, ` ${kind ? count(kind) : all.length}`),
    ),
  );
  const element = el("div", { class: "flow chips" }, ...chips);
  const mark = choice(element, "Attention patterns", (place) => choose(kinds[place]));
  return { element, mark: (kind) => mark(kinds.indexOf(kind)) };
}

/** Return the layer and column of the head with the largest weight of a pattern. */
export function clearest(patterns, kind) {
  const places = patterns.flatMap((heads, layer) =>
    heads.map((one, column) => ({ layer, column, one })),
  );
  const own = places.filter(({ one }) => one.kind === kind);
  // There is no weight for the pattern of mixed heads, so choose the head with the lowest entropy.
  const most = ({ one }) => one.shares[kind] ?? -one.shares.broad;
  const { layer, column } = own.reduce((a, b) => (most(b) > most(a) ? b : a));
  return { layer, column };
}
