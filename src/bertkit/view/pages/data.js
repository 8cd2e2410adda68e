// The data of the page: one JSON document, whose arrays are deflated and encoded in base64.

/** Return the document. */
export function read() {
  return JSON.parse(document.getElementById("data").textContent);
}

const decoded = new WeakMap();

/** Return a promise of an array of the document: its shape, and at(i), value i in row-major order. */
export function numbers(array) {
  if (!decoded.has(array)) decoded.set(array, decode(array));
  return decoded.get(array);
}

/** Return the subarray at the given first indices. */
export function part(array, ...indices) {
  let offset = 0;
  let inner = size(array);
  indices.forEach((index, axis) => {
    inner /= array.shape[axis];
    offset += index * inner;
  });
  return { shape: array.shape.slice(indices.length), at: (i) => array.at(offset + i) };
}

/**
 * Return whether a query token can attend to a key token in a layer: the distance is within the local
 * window, and if the model is causal, the key is not after the query. Rollout (layer null) has no window.
 */
export function sees({ causal, windows }, layer, query, key) {
  return !(causal && key > query) && Math.abs(key - query) <= (windows[layer] ?? Infinity);
}

/** Return the values of an array as a list. */
export function list(array) {
  return Array.from({ length: size(array) }, (_, i) => array.at(i));
}

/** Return the largest value of an array. */
export function largest(array) {
  let found = -Infinity;
  for (let i = size(array) - 1; i >= 0; i--) found = Math.max(found, array.at(i));
  return found;
}

function size({ shape }) {
  return shape.reduce((a, b) => a * b, 1);
}

async function decode({ type, shape, low, high, power, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = await new Response(stream).arrayBuffer();
  if (type === "float32") {
    const values = new Float32Array(raw);
    return { shape, at: (i) => values[i] };
  }
  const codes = type === "float16" ? new Uint16Array(raw) : new Uint8Array(raw);
  const table =
    type === "float16"
      ? HALVES
      : Float32Array.from({ length: 256 }, (_, b) => low + (high - low) * (b / 255) ** power);
  return { shape, at: (i) => table[codes[i]] };
}

/** Values of all IEEE 754 binary16 numbers, because some browsers lack Float16Array. */
const HALVES = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = (bits & 1023) / 1024;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction) : sign * 2 ** -14 * fraction;
});
