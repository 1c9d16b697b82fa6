// Points of the map: few as discs with an outline, many as pixels written straight into image data, and thumbnails.

import { cssOfPixel, pixel } from "./palette.js";

const THUMBNAILS = 350; // points in sight up to which images are shown
const APART = 0.65; // share of different places among them below which they would hide each other
const FINE = 5000; // points in sight up to which they are drawn one by one
const FAINT = [172, 172, 172];

/** Return the numbers of the points in sight, faint ones first. */
function inSightOf(xs, ys, view, width, height, margin, dimmed) {
  const faint = [], bright = [];
  for (let i = 0; i < xs.length; i++) {
    const x = view.x(xs[i]), y = view.y(ys[i]);
    if (x < -margin || y < -margin || x >= width + margin || y >= height + margin) continue;
    (dimmed?.[i] ? faint : bright).push(i);
  }
  return faint.concat(bright);
}

/** Draw points; `set` has xs, ys, colours, dimmed, and `hollow` for those of a second data set. Returns those in sight. */
export function drawPoints(context, set, view, radius, paper, layer) {
  const { width, height } = context.canvas;
  const rows = inSightOf(set.xs, set.ys, view, width, height, radius + 2, set.dimmed);
  if (rows.length > FINE) drawPixels(context, set, view, radius, rows, layer);
  else drawShapes(context, set, view, radius, rows, paper);
  return rows;
}

/** Draw points one by one, with an outline that keeps neighbours apart: discs, or hollow diamonds. */
function drawShapes(context, { xs, ys, colours, dimmed, hollow }, view, radius, rows, paper) {
  const faint = cssOfPixel(pixel(FAINT));
  context.lineWidth = hollow ? Math.max(1.5, radius / 2.2) : 1;
  for (const i of rows) {
    const x = view.x(xs[i]), y = view.y(ys[i]), colour = dimmed?.[i] ? faint : cssOfPixel(colours[i]);
    context.globalAlpha = dimmed?.[i] ? 0.45 : 1;
    context.beginPath();
    if (hollow) {
      for (const [dx, dy] of [[0, -1], [1, 0], [0, 1], [-1, 0]]) context.lineTo(x + dx * radius, y + dy * radius);
      context.closePath();
      context.strokeStyle = colour;
      context.stroke();
      continue;
    }
    context.arc(x, y, radius, 0, 7);
    context.fillStyle = colour;
    context.fill();
    context.strokeStyle = paper;
    context.stroke();
  }
  context.globalAlpha = 1;
}

/** Draw points as pixels: discs, or crosses for a second data set. */
function drawPixels(context, { xs, ys, colours, dimmed, hollow }, view, radius, rows, layer) {
  const { width, height } = context.canvas;
  const image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer), faint = pixel(FAINT, 110);
  const halves = Array.from({ length: 2 * radius + 1 }, (_, k) => {
    const dy = k - radius;
    return hollow ? (dy ? 0 : radius) : Math.round(Math.sqrt(Math.max(0, (radius + 0.4) ** 2 - dy * dy)));
  });
  for (const i of rows) {
    const x = Math.round(view.x(xs[i])), y = Math.round(view.y(ys[i])), colour = dimmed?.[i] ? faint : colours[i];
    for (let row = Math.max(0, y - radius); row <= Math.min(height - 1, y + radius); row++) {
      const half = halves[row - y + radius];
      const left = Math.max(0, x - half), right = Math.min(width - 1, x + half);
      if (left <= right) pixels.fill(colour, row * width + left, row * width + right + 1);
    }
  }
  layer.getContext("2d").putImageData(image, 0, 0);
  context.drawImage(layer, 0, 0);
}

/** Sheets of thumbnails, loaded when they are first needed; `loaded` is called when one has arrived. */
export class Thumbnails {
  constructor(source, data, about, loaded) {
    Object.assign(this, { source, data, about, loaded, sheets: new Map() });
  }

  /** Return the image of a row and where on its sheet it is, or null while it loads. */
  of(row) {
    const number = Math.floor(row / this.about.sheet);
    if (!this.sheets.has(number)) {
      const image = new Image();
      image.onload = () => this.loaded();
      image.src = this.source.sheet(this.data, number);
      this.sheets.set(number, image);
    }
    const image = this.sheets.get(number);
    if (!image.complete || !image.naturalWidth) return null;
    const across = 32, at = row % this.about.sheet;
    const width = image.naturalWidth / across;
    const height = (width * this.about.shape[1]) / this.about.shape[2];
    return { image, x: (at % across) * width, y: Math.floor(at / across) * height, width, height };
  }

  /** Draw a row's thumbnail into a context. */
  draw(context, row, x, y, edge) {
    const part = this.of(row);
    if (part) context.drawImage(part.image, part.x, part.y, part.width, part.height, x, y, edge, (edge * part.height) / part.width);
    return Boolean(part);
  }
}

/** Return whether thumbnails of the points in sight, [set, rows] each, would be too many or hide each other. */
export function crowded(inSight, view, edge) {
  const total = inSight.reduce((sum, [, rows]) => sum + rows.length, 0), places = new Set();
  if (total > THUMBNAILS) return true;
  for (const [{ xs, ys }, rows] of inSight) for (const i of rows) places.add(`${Math.floor(view.x(xs[i]) / edge)} ${Math.floor(view.y(ys[i]) / edge)}`);
  return places.size < APART * total;
}

/** Draw thumbnails of the points in sight, framed in the point's colour, dashed for a second data set. */
export function drawThumbnails(context, { xs, ys, colours, dimmed, hollow, thumbnails }, view, rows, edge) {
  if (!thumbnails) return;
  context.lineWidth = Math.max(2, edge / 16);
  context.setLineDash(hollow ? [4, 3] : []);
  for (const i of rows) {
    const x = view.x(xs[i]) - edge / 2, y = view.y(ys[i]) - edge / 2;
    context.globalAlpha = dimmed?.[i] ? 0.2 : 1;
    if (!thumbnails.draw(context, i, x, y, edge)) continue;
    context.strokeStyle = cssOfPixel(colours[i]);
    context.strokeRect(x, y, edge, edge);
  }
  context.globalAlpha = 1;
  context.setLineDash([]);
}

/** Return the number of the point nearest to a place on the screen, within `reach` pixels, or -1. */
export function nearest(xs, ys, view, x, y, reach) {
  let best = -1, least = reach * reach;
  for (let i = 0; i < xs.length; i++) {
    const dx = view.x(xs[i]) - x, dy = view.y(ys[i]) - y;
    const distance = dx * dx + dy * dy;
    if (distance < least) [best, least] = [i, distance];
  }
  return best;
}

/** Return which points lie inside a polygon of coordinates [[a, b], ...] (even-odd rule). */
export function inside(polygon, xs, ys) {
  const rows = [];
  for (let i = 0; i < xs.length; i++) {
    let odd = false;
    for (let k = 0, j = polygon.length - 1; k < polygon.length; j = k++) {
      const [ax, ay] = polygon[k], [bx, by] = polygon[j];
      if (ay > ys[i] !== by > ys[i] && xs[i] < ((bx - ax) * (ys[i] - ay)) / (by - ay) + ax) odd = !odd;
    }
    if (odd) rows.push(i);
  }
  return rows;
}
