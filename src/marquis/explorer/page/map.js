// One map of codes. Everything that does not move with the mouse is drawn once, into a bitmap larger than the view;
// while the map is panned or zoomed the bitmap is moved, and drawn anew when the hand rests.

import { el, sharp, themed } from "./dom.js";
import { pixel } from "./palette.js";
import { codeAt, projected, projectedAll } from "./plane.js";
import { drawPoints, drawThumbnails, inside, nearest } from "./points.js";

const MARGIN = 0.3, REST = 140, THUMBNAIL = 36;

export class LatentMap {
  /** `on` has the functions hover(code, x, y), pick(row, data), lasso(polygon), moved(view). */
  constructor(number, model, on) {
    Object.assign(this, { number, model, on, mode: "look", marks: {}, colours: new Uint32Array(0), extra: null });
    this.canvas = el("canvas", {
      className: "map", tabIndex: 0, role: "application",
      "aria-label": `Map of codes, ${model.name}. Arrow keys move the cursor, Enter selects the nearest point, plus and minus zoom.`,
    });
    this.base = document.createElement("canvas");
    this.layer = document.createElement("canvas");
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  // --- what is shown ---

  /** Show the codes in a plane; `extra` are the codes of a second data set. */
  setPlane(plane, extra) {
    this.plane = plane;
    [this.xs, this.ys] = projectedAll(plane, this.model.codes);
    this.extra = extra ? projectedAll(plane, extra) : null;
    if (!this.view) this.fit();
    this.refresh();
  }

  setView(view) {
    if (view) this.view = { ...view };
    else this.fit();
    this.refresh();
  }

  setColours(colours, dimmed, extraColours, extraDimmed) {
    Object.assign(this, { colours, dimmed, extraColours, extraDimmed });
    this.refresh();
  }

  /** Show values [size, size] on the box of the plane behind the points, light to dark. */
  setBackground(values, box, low, high) {
    this.background = null;
    if (values) {
      const size = values.shape[0], canvas = document.createElement("canvas");
      canvas.width = canvas.height = size;
      const image = new ImageData(size, size), pixels = new Uint32Array(image.data.buffer);
      const channels = (name) => [1, 3, 5].map((at) => parseInt(themed(name).slice(at, at + 2), 16));
      const from = channels("--field-low"), to = channels("--field-high");
      for (let row = 0; row < size; row++)
        for (let k = 0; k < size; k++) {
          const share = Math.min(1, Math.max(0, (values[row * size + k] - low) / (high - low || 1)));
          pixels[(size - 1 - row) * size + k] = pixel(from.map((c, i) => c + (to[i] - c) * share));
        }
      canvas.getContext("2d").putImageData(image, 0, 0);
      this.background = { canvas, box };
    }
    this.refresh();
  }

  /** Mark a row, an ellipse, neighbours, a cursor, curves: what lies above the points. */
  mark(marks) {
    Object.assign(this.marks, marks);
    this.draw();
  }

  // --- the view: a centre and a number of pixels per unit ---

  fit() {
    const box = this.box(0.06);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width) return;
    this.view = {
      a: (box[0] + box[1]) / 2, b: (box[2] + box[3]) / 2,
      k: Math.min(width / (box[1] - box[0]), height / (box[3] - box[2])),
    };
  }

  /** Return the extent of all points with a margin: [low a, high a, low b, high b]. */
  box(margin = 0.15) {
    const ends = [this.xs, this.ys].map((values) => {
      let low = Infinity, high = -Infinity;
      for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
      const pad = margin * (high - low || 1);
      return [low - pad, high + pad];
    });
    return ends.flat();
  }

  /** Return the box that a background covers: all points, in the shape of the map, with a margin. */
  field() {
    const [left, right, low, high] = this.box(0), { clientWidth: width, clientHeight: height } = this.canvas;
    const unit = 0.75 * Math.max((right - left) / width, (high - low) / height || 0, 1e-9);
    const [a, b] = [(left + right) / 2, (low + high) / 2];
    return [a - unit * width, a + unit * width, b - unit * height, b + unit * height].map((value) => Number(value.toPrecision(8)));
  }

  toScreen(width = this.canvas.clientWidth, height = this.canvas.clientHeight) {
    const { a, b, k } = this.view;
    return { x: (value) => width / 2 + (value - a) * k, y: (value) => height / 2 - (value - b) * k };
  }

  place(x, y) {
    const { a, b, k } = this.view;
    return [a + (x - this.canvas.clientWidth / 2) / k, b - (y - this.canvas.clientHeight / 2) / k];
  }

  codeAt(x, y) {
    return codeAt(this.plane, ...this.place(x, y));
  }

  // --- drawing ---

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !this.xs) return;
    this.context = sharp(this.canvas, width, height);
    this.canvas.style.width = this.canvas.style.height = "";
    if (!this.view) this.fit();
    this.refresh();
  }

  /** Draw the bitmap anew at the next frame. */
  refresh() {
    this.stale = true;
    this.draw();
  }

  /** Draw the bitmap anew when the hand rests. */
  refreshAtRest() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.refresh(), REST);
    this.draw();
  }

  draw() {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = null;
      if (this.context && this.view) this.frame();
    });
  }

  renderBase() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * ratio * (1 + 2 * MARGIN));
    const height = Math.round(this.canvas.clientHeight * ratio * (1 + 2 * MARGIN));
    if (this.base.width !== width || this.base.height !== height)
      for (const canvas of [this.base, this.layer]) Object.assign(canvas, { width, height });
    const context = this.base.getContext("2d");
    context.clearRect(0, 0, width, height);
    const { a, b, k } = this.view;
    const view = { x: (v) => width / 2 + (v - a) * k * ratio, y: (v) => height / 2 - (v - b) * k * ratio };
    if (this.background) {
      const [left, right, low, high] = this.background.box;
      context.imageSmoothingEnabled = true;
      const [x, y] = [view.x(left), view.y(high)];
      context.drawImage(this.background.canvas, x, y, view.x(right) - x, view.y(low) - y);
    }
    const image = new ImageData(width, height);
    const radius = Math.round((this.xs.length > 20000 ? 1 : this.xs.length > 2000 ? 2 : 3) * ratio);
    const inSight = drawPoints(image, this.xs, this.ys, this.colours, view, radius, this.dimmed);
    if (this.extra) drawPoints(image, ...this.extra, this.extraColours, view, Math.max(1, radius - 1), this.extraDimmed);
    this.layer.getContext("2d").putImageData(image, 0, 0);
    context.drawImage(this.layer, 0, 0);
    drawThumbnails(context, this.thumbnails, this.xs, this.ys, this.colours, view, width, height, inSight, THUMBNAIL * ratio);
    this.baseView = { ...this.view, ratio };
    this.stale = false;
  }

  frame() {
    if (this.stale) this.renderBase();
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const context = this.context, was = this.baseView, { a, b, k } = this.view;
    context.clearRect(0, 0, width, height);
    const zoom = k / was.k;
    const w = (this.base.width / was.ratio) * zoom, h = (this.base.height / was.ratio) * zoom;
    context.imageSmoothingEnabled = zoom !== 1;
    context.drawImage(this.base, width / 2 + (was.a - a) * k - w / 2, height / 2 - (was.b - b) * k - h / 2, w, h);
    this.drawMarks(context, this.toScreen());
    this.frames = (this.frames ?? 0) + 1;
  }

  drawMarks(context, view) {
    const { row, rowPlace, neighbours, ellipse, cursor, curves, ends, polygon } = this.marks;
    const ring = (a, b, radius, colour, width = 2) => {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      context.arc(view.x(a), view.y(b), radius, 0, 7);
      context.stroke();
    };
    const ink = themed("--ink"), accent = themed("--accent");
    for (const i of neighbours ?? []) ring(this.xs[i], this.ys[i], 5, accent, 1.5);
    const at = rowPlace ?? (row >= 0 && row !== null ? [this.xs[row], this.ys[row]] : null);
    if (at) ring(...at, 8, ink, 2.5);
    if (ellipse) this.drawEllipse(context, view, ellipse, accent);
    for (const { codes, colour, dashed } of curves ?? []) {
      context.strokeStyle = colour;
      context.lineWidth = 2.5;
      context.setLineDash(dashed ? [6, 4] : []);
      context.beginPath();
      for (const code of codes) context.lineTo(...((p) => [view.x(p[0]), view.y(p[1])])(projected(this.plane, code)));
      context.stroke();
      context.setLineDash([]);
    }
    for (const code of ends ?? []) ring(...projected(this.plane, code), 6, themed("--path"), 3);
    if (polygon?.length) {
      context.strokeStyle = accent;
      context.fillStyle = `${accent}22`;
      context.lineWidth = 1.5;
      context.beginPath();
      for (const [a, b] of polygon) context.lineTo(view.x(a), view.y(b));
      context.closePath();
      context.fill();
      context.stroke();
    }
    if (cursor) {
      const [x, y] = ((p) => [view.x(p[0]), view.y(p[1])])(projected(this.plane, cursor));
      context.strokeStyle = ink;
      context.lineWidth = 1;
      context.beginPath();
      for (const [dx, dy] of [[9, 0], [0, 9]]) {
        context.moveTo(x - dx, y - dy);
        context.lineTo(x + dx, y + dy);
      }
      context.stroke();
    }
  }

  /** Draw the ellipse of two standard deviations of a code whose covariance [K, K] is given. */
  drawEllipse(context, view, { code, covariance }, colour) {
    const { u, v } = this.plane, K = code.length;
    const along = (p, q) => p.reduce((sum, pi, i) => sum + pi * q.reduce((s, qj, j) => s + covariance[i * K + j] * qj, 0), 0);
    const [aa, ab, bb] = [along(u, u), along(u, v), along(v, v)];
    const mean = (aa + bb) / 2, half = Math.hypot((aa - bb) / 2, ab);
    const axes = [mean + half, Math.max(0, mean - half)].map((value) => 2 * Math.sqrt(value) * this.view.k);
    const [x, y] = projected(this.plane, code);
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.beginPath();
    context.ellipse(view.x(x), view.y(y), ...axes, -0.5 * Math.atan2(2 * ab, aa - bb), 0, 7);
    context.stroke();
  }

  // --- hands ---

  listen() {
    const { canvas } = this;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let from = null, moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      [from, moved] = [{ at: at(event), view: { ...this.view } }, false];
      if (this.mode === "lasso") this.mark({ polygon: [this.place(...at(event))] });
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      if (from) {
        moved ||= Math.hypot(x - from.at[0], y - from.at[1]) > 4;
        if (this.mode === "lasso") return this.mark({ polygon: [...this.marks.polygon, this.place(x, y)] });
        if (moved) this.pan(from.view, x - from.at[0], y - from.at[1]);
      }
      if (!from || !moved) this.on.hover(this.codeAt(x, y), x, y);
    });
    canvas.addEventListener("pointerup", (event) => {
      const [x, y] = at(event);
      if (from && this.mode === "lasso") this.on.lasso(this.marks.polygon ?? []);
      else if (from && !moved) this.pick(x, y);
      else if (moved) this.on.moved(this.view);
      from = null;
    });
    canvas.addEventListener("pointercancel", () => (from = null));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...at(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  pan(view, dx, dy) {
    this.view = { ...view, a: view.a - dx / view.k, b: view.b + dy / view.k };
    this.refreshAtRest();
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const [a, b] = this.place(x, y);
    this.view.k = Math.min(1e7, Math.max(1e-5, this.view.k * factor));
    const [c, d] = this.place(x, y);
    this.view.a += a - c;
    this.view.b += b - d;
    this.refreshAtRest();
    this.on.moved(this.view);
  }

  pick(x, y) {
    const view = this.toScreen();
    const row = nearest(this.xs, this.ys, view, x, y, 14);
    const other = this.extra ? nearest(...this.extra, view, x, y, 14) : -1;
    this.on.pick(row >= 0 ? row : other, row >= 0 ? "main" : "second", this.codeAt(x, y));
  }

  nearestTo(x, y) {
    return nearest(this.xs, this.ys, this.toScreen(), x, y, 40);
  }

  rowsIn(polygon) {
    return inside(polygon, this.xs, this.ys);
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const keys = this.keyPlace ?? [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2];
    if (step) {
      this.keyPlace = [keys[0] + 12 * step[0], keys[1] + 12 * step[1]];
      this.on.hover(this.codeAt(...this.keyPlace), ...this.keyPlace);
    } else if (event.key === "Enter") this.pick(...keys);
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") {
      this.setView(null);
      this.on.moved(null);
    } else return;
    event.preventDefault();
  }
}
