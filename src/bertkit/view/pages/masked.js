// Each word masked once, or yet to come, and what the model would put in its place.

import { choice, el, flow, table } from "./dom.js";
import { figure } from "./picture.js";
import { bar } from "./steps.js";

const MASKED = {
  name: "Masked words",
  word: "The masked word",
  choose: "Choose the word that is masked.",
  of: (text, pieces) =>
    pieces > 1
      ? `“${text}” is masked, its ${pieces} pieces at once; a table for each.`
      : `“${text}” is masked.`,
};
const NEXT = {
  name: "Next words",
  word: "The word that comes next",
  choose: "Choose a word: the model sees those before it.",
  of: (text, pieces) =>
    `What may come where “${text}” stands` +
    (pieces > 1 ? `; a table for each of its ${pieces} pieces, which sees those before.` : "."),
};

export function masked(found, section) {
  if (found.masked === null) {
    const why = "This model has no trained head for masked words; a pretrained one has.";
    section.append(el("p", { class: "note" }, why));
    return;
  }
  const shown = found.words.slice(0, found.masked.length);
  const says = found.causal ? NEXT : MASKED;
  const text = flow(shown.map(({ text }) => ({ piece: text, word: text })));
  const mark = choice(text.element, says.word, show);
  const answers = el("div", { class: "candidates" });
  const left = found.words.length - shown.length;
  const caption = left
    ? `Of ${found.words.length} words the first ${shown.length}: more would take long.`
    : says.choose;
  const said = el("span", { "aria-live": "polite" });
  section.append(
    figure(says.name, caption, text.element),
    figure("What the model would put there", said, answers),
  );

  function show(place) {
    const { text, first, end } = shown[place];
    mark(place);
    const pieces = found.tokens.slice(first, end).map(({ piece }) => piece);
    said.textContent = says.of(text, pieces.length);
    const tables = pieces.map((own, at) => instead(own, found.masked[place][at]));
    answers.replaceChildren(...tables);
  }
  show(found.causal ? Math.min(1, shown.length - 1) : 0); // the first has nothing before it
}

/** The candidates of a place, and which of them stood there; none before the first token. */
function instead(own, candidates) {
  if (!candidates.length) return el("p", { class: "note" }, "Nothing stands before it.");
  const rows = candidates.map(({ token, score }) => {
    const stood = token === own;
    return [token, bar(score, stood ? "own" : ""), stood ? "stood there" : ""];
  });
  const absent = candidates.every(({ token }) => token !== own);
  const foot = absent ? [[own, "not among them", "stood there"]] : [];
  const names = [`instead of ${own}`, "probability", ""];
  return table(`The likeliest pieces for ${own}`, names, rows, foot);
}
