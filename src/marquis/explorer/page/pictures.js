// Images of rows: pixels, differences of either sign, and standard deviations, each with its scale.

import { extent, short } from "./arrays.js";
import { el } from "./dom.js";
import { shade } from "./palette.js";

/** Return a canvas that shows an image [C, H, W] between low and high, enlarged to about `edge` pixels. */
export function picture(values, shape, { low = 0, high = 1, palette = "grey", edge = 96, label = "" } = {}) {
  const [channels, height, width] = shape;
  const canvas = el("canvas", { width, height, className: "picture", role: "img", "aria-label": label, title: label });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const size = height * width;
  for (let i = 0; i < size; i++) {
    const share = (c) => (values[c * size + i] - low) / (high - low || 1);
    const colour = channels === 3 ? [0, 1, 2].map((c) => 255 * share(c)) : shade(share(0), palette);
    image.data.set([...colour, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  canvas.style.width = `${edge}px`;
  canvas.style.height = `${(edge * height) / width}px`;
  return canvas;
}

/** Return one number per pixel of an image with several channels: their sum. */
export function perPixel(values, [channels, height, width]) {
  const sums = new Float32Array(height * width);
  for (let i = 0; i < values.length; i++) sums[i % sums.length] += values[i];
  return channels === 1 ? values : sums;
}

/** Return a figure of an image with its name below; `range` is what is black and white. */
export function imageFigure(values, shape, range, name, edge = 96) {
  return captioned(picture(values, shape, { low: range[0], high: range[1], edge, label: name }), name);
}

/** Return a figure of numbers of either sign, with the scale: blue below zero, white at zero, orange above. */
export function signedFigure(values, shape, name, edge = 96) {
  const sums = perPixel(values, shape);
  const most = Math.max(...extent(sums).map(Math.abs)) || 1;
  const options = { low: -most, high: most, palette: "diverging", edge, label: `${name}, from ${short(-most, 2)} (blue) to ${short(most, 2)} (orange)` };
  return captioned(picture(sums, [1, ...shape.slice(1)], options), name, scaleBar("diverging", short(-most, 2), short(most, 2)));
}

/** Return a figure of numbers from zero up to `most`, dark to bright, with the scale. */
export function positiveFigure(values, shape, name, { most = null, edge = 96 } = {}) {
  const sums = perPixel(values, shape), top = most || extent(sums)[1] || 1;
  const options = { low: 0, high: top, palette: "sequential", edge, label: `${name}, from 0 (dark) to ${short(top, 2)} (bright)` };
  return captioned(picture(sums, [1, ...shape.slice(1)], options), name, scaleBar("sequential", "0", short(top, 2)));
}

/** Return a figure of what each entry adds to a score: around zero if some take away from it, else from least to most. */
export function contributionFigure(values, shape, name, edge = 96) {
  const sums = perPixel(values, shape), [least, high] = extent(sums), low = least < 0.01 * high ? 0 : least;
  if (least < 0) return signedFigure(values, shape, name, edge);
  const options = { low, high, palette: "sequential", edge, label: `${name}, from ${short(low, 2)} (dark) to ${short(high, 2)} (bright)` };
  return captioned(picture(sums, [1, ...shape.slice(1)], options), name, scaleBar("sequential", short(low, 2), short(high, 2)));
}

/** Return a bar in the colours of a palette between two numbers. */
export const scaleBar = (palette, low, high) =>
  el("span", { className: "scale" }, el("span", {}, low), el("span", { className: `ramp ${palette}` }), el("span", {}, high));

/** Return a figure: a picture with a caption below, and a scale. */
export const captioned = (content, caption, ...more) => el("figure", {}, content, el("figcaption", {}, caption), ...more);
