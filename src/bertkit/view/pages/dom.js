// Elements, made without ever reading text as HTML, and groups of buttons for the arrow keys.

/** An element; attributes that begin with "on" are listeners, children are elements or text. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/**
 * Make the buttons of a group a choice of one: Tab reaches the chosen one, arrow keys choose others.
 * Returns what marks the chosen one by its place.
 */
export function choice(group, label, choose, columns = 1) {
  const buttons = [...group.querySelectorAll("button")];
  let chosen = 0;
  group.setAttribute("role", "radiogroup");
  group.setAttribute("aria-label", label);
  buttons.forEach((button, place) => {
    button.type = "button";
    button.tabIndex = -1;
    button.setAttribute("role", "radio");
    button.setAttribute("aria-checked", "false");
    button.addEventListener("click", () => choose(place));
  });
  group.addEventListener("keydown", (event) => {
    // from the button with the focus: what draws may still be on its way to the chosen one
    const place = moved(event.key, buttons.indexOf(event.target), columns, buttons.length);
    if (place === undefined || !buttons[place]) return;
    event.preventDefault();
    buttons[place].focus();
    choose(place);
  });
  return (place) => {
    for (const [at, on] of [[chosen, false], [place, true]]) {
      buttons[at].setAttribute("aria-checked", on);
      buttons[at].tabIndex = on ? 0 : -1;
    }
    chosen = place;
  };
}

/** The place that a key leads to from another, in rows of `columns`; undefined for other keys. */
export function moved(key, place, columns, count) {
  const to = {
    ArrowLeft: place - 1,
    ArrowRight: place + 1,
    ArrowUp: place - columns,
    ArrowDown: place + columns,
    Home: 0,
    End: count - 1,
  };
  return to[key];
}

/** The tokens of a text as buttons that flow like it. */
export function flow(tokens) {
  const chips = tokens.map((token) =>
    el("button", token.word === null ? { class: "special" } : {}, token.piece),
  );
  return { element: el("div", { class: "flow" }, ...chips), chips };
}

/** A number as people write it. */
export function fixed(number, digits) {
  return number.toFixed(digits).replace("-", "−");
}

const COLUMNS = 5; // columns from which on a table is wide, as in figures.py

/**
 * A table: a caption for screen readers, names of columns, and rows of texts or elements. A phone
 * shows each row of a wide one as a block of cells, which have their names with them.
 */
export function table(caption, names, rows, foot = []) {
  const wide = names.length >= COLUMNS;
  const cells = (row) =>
    row.map((given, column) => {
      const made = given instanceof HTMLTableCellElement;
      const [kind, scope] = column ? ["td", {}] : ["th", { scope: "row" }];
      const cell = made ? given : el(kind, scope, given);
      // one that spans rows is in the first of them alone
      if (wide) cell.dataset.name = names[names.length - row.length + column];
      return cell;
    });
  return el(
    "table",
    wide ? { class: "wide" } : {},
    el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells(row)))),
    el("tfoot", {}, ...foot.map((row) => el("tr", {}, ...cells(row)))),
  );
}

/** Where in the repository a section's numbers are computed, and the code that does it. */
export function sources(found, names) {
  const places = names.map((name) => {
    const { path, line, name: what, code } = found.sources[name];
    const place = el("summary", {}, el("code", {}, `${path}:${line}`), ` ${what}`);
    return el("details", {}, place, el("pre", {}, code));
  });
  return el("div", { class: "sources" }, "Computed by", ...places);
}
