// Pictures of rows: images as pixels, rows of a table as lines with numbers and bars.

import { extent, short } from "./arrays.js";
import { el } from "./dom.js";
import { css, shade } from "./palette.js";

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

/** Return a picture of numbers of either sign: blue below zero, white at zero, orange above. */
export function signedPicture(values, shape, options) {
  const sums = perPixel(values, shape);
  const most = Math.max(...extent(sums).map(Math.abs)) || 1;
  return picture(sums, [1, ...shape.slice(1)], { low: -most, high: most, palette: "diverging", ...options });
}

/** Return a picture of numbers from zero up, dark to light. */
export function positivePicture(values, shape, options) {
  const sums = perPixel(values, shape);
  return picture(sums, [1, ...shape.slice(1)], { low: 0, high: extent(sums)[1] || 1, palette: "sequential", ...options });
}

/** Return a figure: a picture with a caption below. */
export const captioned = (content, caption) => el("figure", {}, content, el("figcaption", {}, caption));

/** Return the text of a cell: a number in few digits, or the name of the level of a categorical column. */
export const cellText = (value, levels) => (levels && !Number.isNaN(value) ? levels[Math.round(value)] ?? "(new)" : short(value));

/** Return a table with one line per column; `fields` are [heading, numbers], `bars` a signed number for each line. */
export function lines(columns, fields, { bars = null, order = null, label = "", levels = {} } = {}) {
  const most = bars ? Math.max(...extent(bars).map(Math.abs)) || 1 : 1;
  const numbers = order ?? columns.map((_, k) => k);
  const headings = ["column", ...(bars ? ["contribution"] : []), ...fields.map(([name]) => name)];
  const head = el("tr", {}, ...headings.map((name) => el("th", { scope: "col" }, name)));
  const body = numbers.map((k) => {
    const line = el("tr", {}, el("th", { scope: "row", title: columns[k] }, columns[k]));
    if (bars) {
      const bar = el("span", { className: "bar" });
      bar.style.width = `${(40 * Math.abs(bars[k])) / most}px`;
      bar.style.background = css(shade(bars[k] > 0 ? 1 : 0, "diverging"));
      line.append(el("td", { className: "bars" }, bar, " ", short(bars[k])));
    }
    line.append(...fields.map(([, values]) => el("td", {}, cellText(values[k], levels[k]))));
    return line;
  });
  return el("div", { className: "scroll" }, el("table", { "aria-label": label }, el("thead", {}, head), el("tbody", {}, ...body)));
}
