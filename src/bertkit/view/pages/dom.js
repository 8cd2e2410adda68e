// Elements, created without parsing text as HTML, and groups of buttons with arrow keys.

/** Create an element. Attributes that begin with "on" are listeners. Children are elements or text. */
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
 * Make a radio group of the buttons of an element: Tab reaches the selected button, and arrow keys
 * select other buttons. Returns a function that marks the button at an index as selected.
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
    // Move from the button with the focus, because the selection can be updated later.
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

/** Return the index to which a key moves from `place`, in rows of `columns`, or undefined. */
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

/** Create buttons for the tokens of a text, with line breaks like a text. */
export function flow(tokens) {
  const chips = tokens.map((token) =>
    el("button", token.word === null ? { class: "special" } : {}, token.piece),
  );
  return { element: el("div", { class: "flow" }, ...chips), chips };
}

/** Format a number with a typographic minus sign. */
export function fixed(number, digits) {
  return number.toFixed(digits).replace("-", "−");
}

const COLUMNS = 5; // Minimum number of columns of a wide table, as in figures.py.

/**
 * Create a table with a caption for screen readers, names of columns, and rows of texts or elements.
 * Small screens show each row of a wide table as a block of named cells.
 */
export function table(caption, names, rows, foot = []) {
  const wide = names.length >= COLUMNS;
  const cells = (row) =>
    row.map((given, column) => {
      const made = given instanceof HTMLTableCellElement;
      const [kind, scope] = column ? ["td", {}] : ["th", { scope: "row" }];
      const cell = made ? given : el(kind, scope, given);
      // A cell that spans several rows is only in the first of these rows.
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

/** Show the locations and the code of the functions that compute a section. */
export function sources(found, names) {
  const places = names.map((name) => {
    const { path, line, name: what, code } = found.sources[name];
    const place = el("summary", {}, el("code", {}, `${path}:${line}`), ` ${what}`);
    return el("details", {}, place, el("pre", {}, code));
  });
  return el("div", { class: "sources" }, "Computed by", ...places);
}
