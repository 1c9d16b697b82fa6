// Geodesics of an export: shortest paths on the grid of a metric that was computed beforehand.

const STEPS = [];
for (let dx = -2; dx <= 2; dx++) for (let dy = -2; dy <= 2; dy++) if (Math.abs(dx) + Math.abs(dy) && (Math.abs(dx) !== 2 || Math.abs(dy) !== 2)) STEPS.push([dx, dy]);

/** Return distances and predecessors of all cells from one cell; `metric` is [size, size, 2, 2], `cell` the width and height of a cell. */
export function shortestFrom(metric, cell, from) {
  const size = metric.shape[0];
  const distance = new Float64Array(size * size).fill(Infinity), before = new Int32Array(size * size).fill(-1);
  const done = new Uint8Array(size * size);
  const queue = [[0, from]];
  distance[from] = 0;
  while (queue.length) {
    const [, at] = queue.pop();
    if (done[at]) continue;
    done[at] = 1;
    const x = at % size, y = Math.floor(at / size);
    for (const [dx, dy] of STEPS) {
      const nx = x + dx, ny = y + dy;
      if (nx < 0 || ny < 0 || nx >= size || ny >= size) continue;
      const next = ny * size + nx;
      const total = distance[at] + stepLength(metric, cell, at, next, dx, dy);
      if (total >= distance[next]) continue;
      distance[next] = total;
      before[next] = at;
      insert(queue, [total, next]);
    }
  }
  return { distance, before };
}

function stepLength(metric, cell, at, next, dx, dy) {
  const a = dx * cell[0], b = dy * cell[1];
  const square = (k) => metric[4 * k] * a * a + 2 * metric[4 * k + 1] * a * b + metric[4 * k + 3] * b * b;
  return Math.sqrt(Math.max(0, (square(at) + square(next)) / 2));
}

/** Keep the queue ordered, nearest last. */
function insert(queue, entry) {
  let low = 0, high = queue.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (queue[middle][0] > entry[0]) low = middle + 1;
    else high = middle;
  }
  queue.splice(low, 0, entry);
}

/** Return `count` places at equal steps along the path to a cell, from places [a, b] of its cells, smoothed a little. */
export function pathTo({ before }, to, places, count) {
  let path = [];
  for (let at = to; at >= 0; at = before[at]) path.push(places(at));
  path.reverse();
  for (let round = 0; round < 3; round++)
    path = path.map((p, k) => (k && k < path.length - 1 ? p.map((value, i) => (path[k - 1][i] + 2 * value + path[k + 1][i]) / 4) : p));
  return Array.from({ length: count }, (_, k) => {
    const at = (k / (count - 1)) * (path.length - 1), left = Math.min(path.length - 1, Math.floor(at)), right = Math.min(path.length - 1, left + 1);
    return path[left].map((value, i) => value + (path[right][i] - value) * (at - left));
  });
}

/** Return the length of a curve of places [a, b]; `cellAt` gives the number of a place's cell. */
export function curveLength(metric, curve, cellAt) {
  let length = 0;
  for (let k = 1; k < curve.length; k++) {
    const [a, b] = curve[k].map((value, i) => value - curve[k - 1][i]), at = 4 * cellAt(curve[k]);
    length += Math.sqrt(Math.max(0, metric[at] * a * a + 2 * metric[at + 1] * a * b + metric[at + 3] * b * b));
  }
  return length;
}
