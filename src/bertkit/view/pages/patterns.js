// Heads by what they look at: their names, and one pattern chosen among those that are there.

import { choice, el, fixed } from "./dom.js";

const PATTERNS = {
  previous: ["previous token", "on the token before"],
  next: ["next token", "on the token behind"],
  same: ["same word", "on the word itself, here and elsewhere"],
  delimiter: ["delimiters", "on special tokens and punctuation"],
  broad: ["broad", "of the entropy of equal weights: it looks at everything a little"],
  mixed: ["mixed", ""],
};

/** What a head looks at in this text, in words. */
export function told({ kind, shares }) {
  const [name, where] = PATTERNS[kind];
  if (kind === "mixed") return `${name}, no pattern has more than half`;
  return `${name}, ${fixed(100 * shares[kind], 0)}% ${where}`;
}

/** Buttons for the patterns of heads, the number of each: the element, and mark(kind or null). */
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
  const mark = choice(element, "What heads look at", (place) => choose(kinds[place]));
  return { element, mark: (kind) => mark(kinds.indexOf(kind)) };
}

/** The head of a pattern, as a layer and a column, that has most of it. */
export function clearest(patterns, kind) {
  const places = patterns.flatMap((heads, layer) =>
    heads.map((one, column) => ({ layer, column, one })),
  );
  const own = places.filter(({ one }) => one.kind === kind);
  const most = ({ one }) => one.shares[kind] ?? -one.shares.broad; // of the mixed the narrowest
  const { layer, column } = own.reduce((a, b) => (most(b) > most(a) ? b : a));
  return { layer, column };
}
