// Forms: what is too long for an address goes as a body; examples and buttons fill them in.

const LONGEST = 4000; // characters, as they are written in an address

for (const form of document.forms) {
  form.addEventListener("submit", () => {
    const query = new URLSearchParams(new FormData(form)).toString();
    form.method = query.length > LONGEST ? "post" : "get";
  });
}

for (const link of document.querySelectorAll(".examples a")) {
  link.addEventListener("click", (event) => {
    const form = document.querySelector("form");
    if (!form || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { pathname, searchParams, hash } = new URL(link.href);
    for (const field of form.querySelectorAll("textarea, input, select")) {
      const kept = field instanceof HTMLSelectElement ? field.value : ""; // the chosen model
      field.value = searchParams.get(field.name) ?? kept;
    }
    form.action = pathname + hash;
    form.requestSubmit();
  });
}

/** The field of the form that answered this page; null in a page that is a file. */
export function asked(name) {
  return document.getElementById(`ask-${name}`);
}

/** Ask again what this page answers, with another value of a field, and go to a part of it. */
export function again(field, value, part) {
  field.form.reset(); // what is being written is another question
  const was = field.value;
  field.value = value;
  field.form.action = `#${part}`;
  field.form.requestSubmit();
  field.value = was; // reset() leaves hidden fields as they are
}
