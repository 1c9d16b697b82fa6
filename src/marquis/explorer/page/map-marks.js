// What is drawn above the points of a map: axes, the selected row with its ellipse, curves, a lasso, the cursor.

import { themed } from "./dom.js";
import { projected } from "./latent-plane.js";

const TICK = 90; // pixels between two numbers of an axis, at least

/** Return round numbers between low and high, at least `step` apart. */
function ticks(low, high, step) {
  const power = 10 ** Math.floor(Math.log10(step));
  const round = power * ([1, 2, 5, 10].find((factor) => factor * power >= step) ?? 10);
  const count = Math.floor(high / round) - Math.ceil(low / round) + 1;
  return Array.from({ length: Math.max(0, count) }, (_, k) => Number(((Math.ceil(low / round) + k) * round).toPrecision(10)));
}

/** Draw faint lines with numbers along the lower and the left edge, and the names of the axes. */
export function drawAxes(context, map, view, width, height) {
  const [left, top] = map.place(0, 0), [right, bottom] = map.place(width, height), step = TICK / map.view.k;
  const [across, up] = map.axisNames ?? ["", ""];
  context.save();
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  context.strokeStyle = themed("--axis");
  context.fillStyle = themed("--soft");
  context.beginPath();
  const horizontal = ticks(left, right, step), vertical = up ? ticks(bottom, top, step) : [];
  for (const value of horizontal) { context.moveTo(Math.round(view.x(value)) + 0.5, 0); context.lineTo(Math.round(view.x(value)) + 0.5, height); }
  for (const value of vertical) { context.moveTo(0, Math.round(view.y(value)) + 0.5); context.lineTo(width, Math.round(view.y(value)) + 0.5); }
  context.stroke();
  context.textAlign = "center";
  for (const value of horizontal) if (view.x(value) > 30 && view.x(value) < width - 135) context.fillText(String(value), view.x(value), height - 6);
  context.textAlign = "left";
  for (const value of vertical) if (view.y(value) > 34 && view.y(value) < height - 22) context.fillText(String(value), 6, view.y(value) - 3);
  context.font = "600 12px system-ui, sans-serif";
  context.fillText(up ? `↑ ${up}` : "", 6, 16);
  context.textAlign = "right";
  context.fillText(`${across} →`, width - 8, height - 6);
  context.restore();
}

/** Stroke the current path in a colour, above a wider line in the colour of the paper. */
function stroke(context, colour, width, dashes = []) {
  context.lineJoin = context.lineCap = "round";
  context.setLineDash(dashes);
  context.strokeStyle = themed("--paper");
  context.lineWidth = width + 2.5;
  context.stroke();
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.stroke();
  context.setLineDash([]);
}

/** Draw the marks of a map; `map.tab` says which panel is open, and so which of them matter. */
export function drawMarks(context, map, view) {
  const { row, rowPlace, neighbours, ellipse, cursor, curves, ends, polygon } = map.marks, { tab } = map;
  const ink = themed("--ink"), accent = themed("--accent"), path = themed("--path");
  const onScreen = (code) => ((place) => [view.x(place[0]), view.y(place[1])])(projected(map.plane, code));
  const ring = (x, y, radius, colour, width) => {
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    stroke(context, colour, width);
  };
  const explains = tab === "point" || tab === "missing";
  for (const i of explains ? neighbours ?? [] : []) ring(view.x(map.xs[i]), view.y(map.ys[i]), 6, accent, 1.5);
  const at = rowPlace ?? (row >= 0 && row !== null ? [map.xs[row], map.ys[row]] : null);
  if (at) ring(view.x(at[0]), view.y(at[1]), 8, ink, 2.5);
  if (ellipse && explains) drawEllipse(context, map, view, ellipse, accent);
  if (tab === "path") {
    for (const { codes, colour, dashed } of curves ?? []) {
      context.beginPath();
      for (const code of codes) context.lineTo(...onScreen(code));
      stroke(context, colour, 2.5, dashed ? [7, 6] : []);
    }
    for (const code of ends ?? []) ring(...onScreen(code), 6, path, 3);
  }
  if (polygon?.length && (tab === "selection" || map.mode === "lasso")) {
    context.beginPath();
    for (const [a, b] of polygon) context.lineTo(view.x(a), view.y(b));
    context.closePath();
    context.fillStyle = `${accent}22`;
    context.fill();
    stroke(context, accent, 1.5);
  }
  if (cursor) {
    const [x, y] = onScreen(cursor);
    context.beginPath();
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(x + 3 * dx, y + 3 * dy);
      context.lineTo(x + 11 * dx, y + 11 * dy);
    }
    stroke(context, ink, 1.5);
  }
}

/** Draw the ellipse of two standard deviations of a code whose covariance [K, K] is given. */
function drawEllipse(context, map, view, { code, covariance }, colour) {
  const { u, v } = map.plane, K = code.length;
  const along = (p, q) => p.reduce((sum, pi, i) => sum + pi * q.reduce((s, qj, j) => s + covariance[i * K + j] * qj, 0), 0);
  const [aa, ab, bb] = [along(u, u), along(u, v), along(v, v)];
  const mean = (aa + bb) / 2, half = Math.hypot((aa - bb) / 2, ab);
  const axes = [mean + half, Math.max(0, mean - half)].map((value) => 2 * Math.sqrt(value) * map.view.k);
  const [x, y] = projected(map.plane, code);
  context.beginPath();
  context.ellipse(view.x(x), view.y(y), ...axes, -0.5 * Math.atan2(2 * ab, aa - bb), 0, 7);
  stroke(context, colour, 2);
}
