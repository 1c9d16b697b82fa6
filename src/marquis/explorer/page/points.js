// Points as pixels: many of them are written straight into image data, few as thumbnails.

import { pixel } from "./palette.js";

const THUMBNAILS = 350; // points in sight up to which images are shown

/** Draw points as squares into image data; `dimmed` says which ones are faint. Returns how many are in sight. */
export function drawPoints(image, xs, ys, colours, view, radius, dimmed) {
  const { width, height } = image;
  const pixels = new Uint32Array(image.data.buffer);
  let inSight = 0;
  const put = (i, colour) => {
    const x = Math.round(view.x(xs[i])), y = Math.round(view.y(ys[i]));
    if (x < -radius || y < -radius || x >= width + radius || y >= height + radius) return;
    inSight++;
    const left = Math.max(0, x - radius), right = Math.min(width - 1, x + radius);
    for (let row = Math.max(0, y - radius); row <= Math.min(height - 1, y + radius); row++)
      pixels.fill(colour, row * width + left, row * width + right + 1);
  };
  const faint = pixel([172, 172, 172]);
  if (dimmed) for (let i = 0; i < xs.length; i++) if (dimmed[i]) put(i, faint);
  for (let i = 0; i < xs.length; i++) if (!dimmed || !dimmed[i]) put(i, colours[i]);
  return inSight;
}

/** Sheets of thumbnails, loaded when they are first needed; `loaded` is called when one has arrived. */
export class Thumbnails {
  constructor(source, data, about, loaded) {
    Object.assign(this, { source, data, about, loaded, sheets: new Map() });
  }

  /** Return {image, x, y, width, height} of a row, or null while its sheet is on the way. */
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

/** Draw thumbnails of the points in sight, with a frame in the point's colour, if there are few enough. */
export function drawThumbnails(context, thumbnails, xs, ys, colours, view, width, height, inSight, edge) {
  if (!thumbnails || inSight > THUMBNAILS) return;
  context.lineWidth = 2;
  for (let i = 0; i < xs.length; i++) {
    const x = view.x(xs[i]), y = view.y(ys[i]);
    if (x < -edge || y < -edge || x > width + edge || y > height + edge) continue;
    if (!thumbnails.draw(context, i, x - edge / 2, y - edge / 2, edge)) continue;
    const c = colours[i];
    context.strokeStyle = `rgb(${c & 255} ${(c >> 8) & 255} ${(c >> 16) & 255})`;
    context.strokeRect(x - edge / 2, y - edge / 2, edge, edge);
  }
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
  const found = [];
  for (let i = 0; i < xs.length; i++) {
    let odd = false;
    for (let k = 0, j = polygon.length - 1; k < polygon.length; j = k++) {
      const [ax, ay] = polygon[k], [bx, by] = polygon[j];
      if (ay > ys[i] !== by > ys[i] && xs[i] < ((bx - ax) * (ys[i] - ay)) / (by - ay) + ax) odd = !odd;
    }
    if (odd) found.push(i);
  }
  return found;
}
