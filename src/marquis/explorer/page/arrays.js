// Arrays of the wire: base64 of little-endian numbers with a shape become typed arrays with a `shape`.

const KINDS = { f4: Float32Array, i4: Int32Array, u1: Uint8Array };

/** Return an answer with every packed array unpacked. */
export function unpacked(value) {
  if (Array.isArray(value)) return value.map(unpacked);
  if (value === null || typeof value !== "object") return value;
  if ("data" in value && "shape" in value && "type" in value) {
    const text = atob(value.data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const array = new KINDS[value.type](bytes.buffer);
    array.shape = value.shape;
    return array;
  }
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, unpacked(part)]));
}

/** Return row i of an array [n, ...] without copying it. */
export function rowOf(array, i) {
  const size = array.length / array.shape[0];
  const row = array.subarray(i * size, (i + 1) * size);
  row.shape = array.shape.slice(1);
  return row;
}

/** Return the least and the greatest finite number, [0, 1] if there is none. */
export function extent(array) {
  let low = Infinity, high = -Infinity;
  for (const value of array) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

/** Return the quantile q of the finite numbers. */
export function quantile(array, q) {
  const sorted = Float64Array.from(array).filter(Number.isFinite).sort();
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : 0;
}

/** Return a number in few significant digits, a dash for what is not one. */
export function short(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}
