// Figures, and saving figures as pictures.

import { el } from "./dom.js";
import { inks } from "./paint.js";

const LARGEST = 16000; // Size in pixels; browsers reject larger canvases.
const [WORD, SIGN] = [/\S+/g, /\P{M}\p{M}*/gu];

/** Create a figure with a caption (text or element), a button to save it, and its content. */
export function figure(name, caption, content) {
  // Without a focusable element, the box itself must be focusable to scroll with the keyboard.
  const reached = content.querySelector("button, [tabindex]");
  const region = reached ? {} : { tabindex: 0, role: "region", "aria-label": name };
  const box = el("div", { class: "scroll", ...region }, content);
  const button = el("button", { type: "button", class: "quiet" }, "Save as picture");
  button.setAttribute("aria-label", `Save as picture: ${name}`);
  button.addEventListener("click", () => {
    box.classList.add("whole"); // Sticky headers of tables would cover rows.
    save(picture(content), name);
    box.classList.remove("whole");
  });
  return el("figure", {}, el("figcaption", {}, el("span", {}, caption), button), box);
}

/** Draw an element on a canvas: backgrounds, rules, canvases, and words at their positions. */
export function picture(element) {
  const { left, top, width, height } = element.getBoundingClientRect();
  const margin = 12;
  const [wide, high] = [width + 2 * margin, height + 2 * margin];
  const scale = Math.min(2, LARGEST / Math.max(wide, high));
  const canvas = el("canvas", { width: Math.ceil(wide * scale), height: Math.ceil(high * scale) });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = inks().paper;
  context.fillRect(0, 0, wide, high);
  context.translate(margin - left, margin - top);
  context.textBaseline = "middle";
  context.imageSmoothingEnabled = false;
  for (const node of [element, ...element.querySelectorAll("*")]) {
    const style = getComputedStyle(node);
    const box = node.getBoundingClientRect();
    if (box.width <= 1 || style.visibility === "hidden") continue;
    context.fillStyle = style.backgroundColor;
    context.fillRect(box.left, box.top, box.width, box.height);
    context.fillStyle = style.borderBottomColor;
    const rule = parseFloat(style.borderBottomWidth);
    context.fillRect(box.left, box.bottom - rule, box.width, rule);
    if (node instanceof HTMLCanvasElement && node.width) {
      context.drawImage(node, box.left, box.top, box.width, box.height);
    }
    if (node instanceof SVGPathElement) draw(context, node, style);
    context.strokeStyle = context.fillStyle = style.color;
    if (node.getAttribute("aria-checked") === "true") {
      context.strokeRect(box.left, box.top, box.width, box.height);
    }
    const size = parseFloat(style.fontSize) * shrunk(node.ownerSVGElement);
    context.font = style.font.replace(style.fontSize, `${size}px`);
    for (const child of node.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) write(context, child);
    }
  }
  return canvas;
}

/** Draw a text word by word, because it can have several lines. Draw broken words by character. */
function write(context, text, pattern = WORD, from = 0, to = text.length) {
  for (const { 0: part, index } of text.data.slice(from, to).matchAll(pattern)) {
    const range = document.createRange();
    range.setStart(text, from + index);
    range.setEnd(text, from + index + part.length);
    const [box, ...more] = range.getClientRects();
    if (more.length && pattern === WORD) {
      write(context, text, SIGN, from + index, from + index + part.length);
    } else if (box) {
      context.fillText(part, box.left, box.top + box.height / 2);
    }
  }
}

/** Return the scale at which the page shows an SVG. */
function shrunk(svg) {
  return svg ? svg.getBoundingClientRect().width / svg.width.baseVal.value : 1;
}

/** Draw a path of an SVG at its size in the page. */
function draw(context, path, style) {
  const { left, top } = path.ownerSVGElement.getBoundingClientRect();
  const scale = shrunk(path.ownerSVGElement);
  const shape = new Path2D(path.getAttribute("d"));
  context.save();
  context.translate(left, top);
  context.scale(scale, scale);
  context.setLineDash(style.strokeDasharray.match(/[\d.]+/g) ?? []);
  context.globalAlpha = style.opacity;
  context.lineWidth = parseFloat(style.strokeWidth);
  [context.fillStyle, context.strokeStyle] = [style.fill, style.stroke];
  if (style.fill !== "none") context.fill(shape);
  if (style.stroke !== "none") context.stroke(shape);
  context.restore();
}

function save(canvas, name) {
  canvas.toBlob((blob) => {
    const url = URL.createObjectURL(blob);
    const file = `${name.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}.png`;
    el("a", { href: url, download: file }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000); // The browser has saved the file by then.
  });
}
