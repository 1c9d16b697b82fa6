// The plane of the latent space that a map shows: two latent dimensions or two principal components.

/** Return the choices of an axis as [value, text]: z for latent dimensions, p for principal components. */
export function axisChoices(latent) {
  const numbers = [...Array(latent).keys()];
  return [
    ...numbers.map((k) => [`z${k}`, `latent ${k + 1}`]),
    ...(latent > 1 ? numbers.map((k) => [`p${k}`, `component ${k + 1}`]) : []),
  ];
}

/** Return the axes that a map starts with: the latent dimensions if there are two, else principal components. */
export function firstAxes(latent) {
  return latent === 1 ? ["z0", "z0"] : latent === 2 ? ["z0", "z1"] : ["p0", "p1"];
}

/** Return the plane {origin, u, v} of two axes; `sliders` holds the coordinates along the other axes. */
export function planeOf(model, axes, sliders) {
  const K = model.latent;
  const principal = axes[0][0] === "p";
  const first = Number(axes[0].slice(1)), second = Number(axes[1].slice(1));
  const direction = (k) =>
    principal ? Array.from(model.directions.subarray(k * K, (k + 1) * K)) : unit(k, K);
  const origin = principal ? Array.from(model.center) : new Array(K).fill(0);
  for (let k = 0; k < K; k++) {
    if (k === first || (K > 1 && k === second)) continue;
    const at = sliders[k] ?? (principal ? 0 : model.center[k]);
    direction(k).forEach((part, i) => (origin[i] += at * part));
  }
  return { origin, u: direction(first), v: K === 1 ? [0] : direction(second) };
}

const unit = (k, K) => Array.from({ length: K }, (_, i) => (i === k ? 1 : 0));

/** Return the coordinates of a code in a plane. */
export function projected(plane, code) {
  let a = 0, b = 0;
  for (let k = 0; k < code.length; k++) {
    a += (code[k] - plane.origin[k]) * plane.u[k];
    b += (code[k] - plane.origin[k]) * plane.v[k];
  }
  return [a, b];
}

/** Return the coordinates of all codes [n, K]; a code of one number is spread along the second axis to be seen. */
export function projectedAll(plane, codes) {
  const [n, K] = codes.shape;
  const xs = new Float32Array(n), ys = new Float32Array(n);
  for (let i = 0; i < n; i++) {
    [xs[i], ys[i]] = projected(plane, codes.subarray(i * K, (i + 1) * K));
    if (K === 1) ys[i] = ((i * 0.618034) % 1) - 0.5;
  }
  return [xs, ys];
}

/** Return the code at coordinates of a plane. */
export const codeAt = (plane, a, b) => plane.origin.map((at, k) => at + a * plane.u[k] + b * plane.v[k]);
