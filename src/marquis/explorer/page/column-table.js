// Rows of a table, column by column: numbers, names of categories, and where they lie among the data.

import { extent, short } from "./arrays.js";
import { el, svg } from "./dom.js";

const HEIGHT = 16, PAD = 4;

/** Return the text of a cell: a number in few digits, or the name of the level of a categorical column. */
export const cellText = (value, levels) => (levels && !Number.isNaN(value) ? levels[Math.round(value)] ?? "(new)" : short(value));

/** Return a mean with its standard deviation, where there is one, as text. */
export function withStd(mean, std, levels) {
  return levels || !(std > 0) ? cellText(mean, levels) : `${short(mean)} ± ${short(std, 2)}`;
}

const ranges = new WeakMap();
/** Return the smallest and largest value of each column of the data. */
function rangesOf({ values, columns }) {
  if (!ranges.has(values)) ranges.set(values, columns.map((_, k) => extent(values.filter((_, i) => i % columns.length === k))));
  return ranges.get(values);
}

/**
 * Return a line from the smallest to the largest value of a column with marks on it: a band [low, high], a filled dot
 * (`mean`), short lines (`samples`) and a hollow dot (`value`). Categories have none.
 */
export function rangeLine(about, k, { band = null, mean = null, value = null, samples = [] }, width = 96) {
  if (about.levels[k]) return "";
  const [low, high] = rangesOf(about)[k];
  const x = (v) => PAD + (width - 2 * PAD) * Math.min(1, Math.max(0, (v - low) / (high - low || 1)));
  const middle = HEIGHT / 2, marks = [svg("line", { x1: PAD, x2: width - PAD, y1: middle, y2: middle, class: "range" })];
  if (band && band.every(Number.isFinite)) marks.push(svg("rect", { x: x(band[0]), y: 4, width: Math.max(1.5, x(band[1]) - x(band[0])), height: HEIGHT - 8, rx: 2, class: "band" }));
  for (const each of samples) if (Number.isFinite(each)) marks.push(svg("line", { x1: x(each), x2: x(each), y1: 3, y2: HEIGHT - 3, class: "sample" }));
  if (Number.isFinite(mean)) marks.push(svg("circle", { cx: x(mean), cy: middle, r: 3, class: "mean" }));
  if (Number.isFinite(value)) marks.push(svg("circle", { cx: x(value), cy: middle, r: 3.5, class: "value" }));
  const label = `from ${short(low)} to ${short(high)} in the data`;
  return svg("svg", { width: width, height: HEIGHT, class: "range-line", role: "img", "aria-label": label }, ...marks);
}

/** Return a bar with its number: orange to the right for what adds to a score, blue for what takes away from it. */
export function bar(value, most) {
  const box = el("span", { className: `bar ${value > 0 ? "more" : "less"}` });
  box.style.width = `${(44 * Math.abs(value)) / most}px`;
  return el("span", { className: "bars" }, box, short(value, 2));
}

/** Return a table with one line per column of the data; `cells(k)` gives what stands in the line of column k. */
export function columnTable(columns, headings, cells, { order = columns.map((_, k) => k), label = "" } = {}) {
  const head = el("tr", {}, ...["column", ...headings].map((name) => el("th", { scope: "col" }, name)));
  const body = order.map((k) => el("tr", {}, el("th", { scope: "row", title: columns[k] }, columns[k]), ...cells(k).map((cell) => el("td", {}, cell))));
  return el("div", { className: "scroll" }, el("table", { "aria-label": label }, el("thead", {}, head), el("tbody", {}, ...body)));
}
