// One map of codes. Everything that does not move with the mouse is drawn once, into a bitmap larger than the view;
// while the map is panned or zoomed the bitmap is moved, and drawn anew when it rests.

import { extent } from "./arrays.js";
import { el, sharp, themed } from "./dom.js";
import { codeAt, projectedAll } from "./latent-plane.js";
import { drawAxes, drawMarks } from "./map-marks.js";
import { crowded, drawPoints, drawThumbnails, inside, nearest } from "./map-points.js";
import { channels, pixel } from "./palette.js";

const MARGIN = 0.3, REST = 140, THUMBNAIL = 36; // share of the view around it, milliseconds without a move, pixels

export class LatentMap {
  /** `on` has the functions hover(code, x, y, byKey), pick(row, data, code), lasso(polygon), moved(view). */
  constructor(number, model, on) {
    Object.assign(this, { number, model, on, mode: "inspect", tab: "decode", marks: {}, thumbnails: {}, colours: new Uint32Array(0), extra: null, rest: REST });
    this.canvas = el("canvas", {
      className: "map", tabIndex: 0, role: "application",
      "aria-label": `Map of codes, ${model.name}. Arrow keys move the cursor, Enter selects the nearest point, plus and minus zoom, 0 shows all.`,
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
    this.fitted = !view;
    if (view) this.view = { ...view };
    else this.fit();
    this.refresh();
  }

  /** Return whether a view is the one that is shown: then its bitmap can stay. */
  shows(view) {
    return ["a", "b", "k"].every((name) => view[name] === this.view?.[name]);
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
      const from = channels(themed("--field-low")), to = channels(themed("--field-high"));
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

  /** Return the extent of all points with a margin, of a second data set at most as much again: [low a, high a, low b, high b]. */
  box(margin = 0.15) {
    const ends = [this.xs, this.ys].map((values, axis) => {
      let [low, high] = extent(values);
      const span = high - low || 1;
      if (this.extra) {
        const [left, right] = extent(this.extra[axis]);
        [low, high] = [Math.min(low, Math.max(left, low - span / 2)), Math.max(high, Math.min(right, high + span / 2))];
      }
      return [low - margin * span, high + margin * span];
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
    if (!this.view || this.fitted) this.fit();
    this.refresh();
  }

  /** Draw the bitmap anew at the next frame. */
  refresh() {
    this.stale = true;
    this.draw();
  }

  /** Draw the bitmap anew when the map has come to rest. */
  refreshAtRest() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.refresh(), this.rest);
    this.draw();
  }

  draw() {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = null;
      if (this.context && this.view) this.frame();
    });
  }

  /** Return what is drawn: the second data set below, hollow, and the points of the map. */
  sets() {
    const points = { xs: this.xs, ys: this.ys, colours: this.colours, dimmed: this.dimmed, thumbnails: this.thumbnails.main };
    if (!this.extra) return [points];
    const [xs, ys] = this.extra;
    return [{ xs, ys, colours: this.extraColours, dimmed: this.extraDimmed, thumbnails: this.thumbnails.second, hollow: true }, points];
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
    const radius = Math.round((this.xs.length > 20000 ? 1 : this.xs.length > 2000 ? 3 : 4) * ratio), paper = themed("--paper");
    const inSight = this.sets().map((set) => [set, drawPoints(context, set, view, radius, paper, this.layer)]), edge = THUMBNAIL * ratio;
    if (!crowded(inSight, view, edge)) for (const [set, rows] of inSight) drawThumbnails(context, set, view, rows, edge);
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
    context.imageSmoothingEnabled = false; // faster, and only seen while the map moves
    context.drawImage(this.base, width / 2 + (was.a - a) * k - w / 2, height / 2 - (was.b - b) * k - h / 2, w, h);
    drawAxes(context, this, this.toScreen(), width, height);
    drawMarks(context, this, this.toScreen());
    this.frames = (this.frames ?? 0) + 1;
  }

  // --- mouse and keyboard ---

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
    this.fitted = false;
    this.view = { ...view, a: view.a - dx / view.k, b: view.b + dy / view.k };
    this.refreshAtRest();
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const [a, b] = this.place(x, y);
    this.fitted = false;
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

  /** Return the rows inside a polygon, of the points of the map or of the second data set. */
  rowsIn(polygon, data = "main") {
    return data === "main" ? inside(polygon, this.xs, this.ys) : this.extra ? inside(polygon, ...this.extra) : [];
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const keys = this.keyPlace ?? [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2];
    if (step) {
      this.keyPlace = [keys[0] + 12 * step[0], keys[1] + 12 * step[1]];
      this.on.hover(this.codeAt(...this.keyPlace), ...this.keyPlace, true);
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
