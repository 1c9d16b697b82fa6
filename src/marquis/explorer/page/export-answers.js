// The source of answers of an export: everything was computed beforehand, on a grid of the plane and for every row.

import { rowOf, unpacked } from "./arrays.js";
import { curveLength, pathTo, shortestFrom } from "./grid-geodesics.js";
import { codeAt, projected } from "./latent-plane.js";

const CURVE = 33, NEAREST = 8, ORDERED = 50;

/** A list of images that lie on PNG sheets, as arrays of numbers. */
class Sheets {
  constructor({ images, shape, count, low, high }) {
    Object.assign(this, { shape, count, low, high, images, loaded: new Map() });
  }

  async of(number) {
    const per = 1024, sheet = Math.floor(number / per);
    if (!this.loaded.has(sheet)) this.loaded.set(sheet, this.load(sheet));
    const { data, width } = await this.loaded.get(sheet);
    const [channels, rows, columns] = this.shape, at = number % per;
    const left = (at % 32) * columns, top = Math.floor(at / 32) * rows;
    const values = new Float32Array(channels * rows * columns);
    for (let c = 0; c < channels; c++)
      for (let y = 0; y < rows; y++)
        for (let x = 0; x < columns; x++)
          values[(c * rows + y) * columns + x] = this.low + ((this.high - this.low) * data[4 * ((top + y) * width + left + x) + c]) / 255;
    values.shape = this.shape;
    return values;
  }

  async load(sheet) {
    const image = new Image();
    image.src = `data:image/png;base64,${this.images[sheet]}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    return { data: context.getImageData(0, 0, canvas.width, canvas.height).data, width: canvas.width };
  }
}

/** Return a function of a number that gives an array, from sheets or from a packed array [n, ...]. */
function listed(held) {
  if (held.images) {
    const sheets = new Sheets(held);
    return (number) => sheets.of(number);
  }
  return async (number) => rowOf(held, number);
}

/** Return the answers of an export from what is written into its page. */
export function answersFromExport(held) {
  const all = unpacked(held);
  const { about } = all;
  const parts = all.models.map((model) => ({
    ...model,
    grid: Object.fromEntries(Object.entries(model.grid).map(([name, value]) => [name, listed(value)])),
    rows: Object.fromEntries(Object.entries(model.rows).map(([name, value]) => [name, listed(value)])),
  }));
  const originals = about.kind === "image" ? listed(all.originals) : async (row) => rowOf(about.values, row);

  const cellOf = (part, code) => {
    const [a, b] = projected(part.plane, code), [left, right, low, high] = part.box, { size } = part;
    const clamp = (value) => Math.min(size - 1, Math.max(0, Math.floor(value)));
    return clamp((size * (b - low)) / (high - low)) * size + clamp((size * (a - left)) / (right - left));
  };
  const placeOf = (part, cell) => {
    const [left, right, low, high] = part.box, { size } = part;
    return [left + ((right - left) * ((cell % size) + 0.5)) / size, low + ((high - low) * (Math.floor(cell / size) + 0.5)) / size];
  };
  const widthOf = ({ box, size }) => [(box[1] - box[0]) / size, (box[3] - box[2]) / size];

  async function curve(part, codes, length) {
    const cells = codes.map((code) => cellOf(part, code));
    const [mean, std] = await Promise.all(["mean", "std"].map((name) => Promise.all(cells.map((cell) => part.grid[name](cell)))));
    const stacked = (rows) => Object.assign(Float32Array.from(rows.flatMap((row) => [...row])), { shape: [rows.length, ...rows[0].shape] });
    const flat = Object.assign(Float32Array.from(codes.flat()), { shape: [codes.length, codes[0].length] });
    const spread = cells.map((cell) => part.backgrounds.std[cell]);
    return { codes: flat, mean: stacked(mean), std: stacked(std), spread, length };
  }

  const nearestRows = (model, code, count, without) => {
    const { codes } = about.models[model], [n, K] = codes.shape, rows = [];
    for (let i = 0; i < n; i++) {
      if (i === without) continue;
      let distance = 0;
      for (let k = 0; k < K; k++) distance += (codes[i * K + k] - code[k]) ** 2;
      rows.push([distance, i]);
    }
    return rows.sort((a, b) => a[0] - b[0]).slice(0, count);
  };

  return {
    saved: true,
    about: async () => about,
    second: async () => all.second ?? { rows: 0, models: [] },
    sheet: (data, number) => `data:image/png;base64,${(data === "main" ? all.originals : all.second.sheets).images[number]}`,
    async decode(model, code) {
      const part = parts[model], cell = cellOf(part, code);
      const names = Object.keys(part.grid).filter((name) => name.startsWith("sample"));
      const [mean, std, total, ...samples] = await Promise.all(["mean", "std", "total_std", ...names].map((name) => part.grid[name](cell)));
      const joined = Float32Array.from(samples.flatMap((row) => [...row]));
      return { mean, std, total_std: total, samples: Object.assign(joined, { shape: [samples.length, ...mean.shape] }) };
    },
    async background(model, quantity, plane, box, size) {
      const part = parts[model], values = new Float32Array(size * size);
      for (let row = 0; row < size; row++)
        for (let k = 0; k < size; k++) {
          const a = box[0] + ((box[1] - box[0]) * (k + 0.5)) / size, b = box[2] + ((box[3] - box[2]) * (row + 0.5)) / size;
          values[row * size + k] = part.backgrounds[quantity][cellOf(part, codeAt(plane, a, b))];
        }
      return Object.assign(values, { shape: [size, size] });
    },
    async explain(model, row, data) {
      if (data !== "main") throw new Error("an export explains the points of the map, not those of the second data set");
      const part = parts[model], { networks, codes, code_std: stds, latent: K } = about.models[model];
      const [original, reconstruction, std] = await Promise.all([originals(row), part.rows.reconstruction(row), part.rows.std(row)]);
      const difference = original.map((value, i) => value - reconstruction[i]);
      const held = part.rows.contributions ? await part.rows.contributions(row) : null;
      const contributions = held ?? difference.map((value, i) => value * value + (std[i] * std[i] * (networks - 1)) / networks);
      const code = codes.subarray(row * K, (row + 1) * K), spread = stds.subarray(row * K, (row + 1) * K);
      const covariance = await part.rows.covariance(row);
      return {
        original, reconstruction, difference, std, contributions, code, code_std: spread, code_covariance: covariance,
        score: held ? part.contributions_of : "error", score_value: contributions.reduce((sum, value) => sum + value, 0),
        neighbours: nearestRows(model, code, NEAREST, row).map(([, i]) => i),
      };
    },
    async order(model, row) {
      const part = parts[model], { codes, latent: K } = about.models[model], codeOf = (i) => codes.subarray(i * K, (i + 1) * K);
      const near = nearestRows(model, codeOf(row), ORDERED, row);
      const { distance } = shortestFrom(part.metric, widthOf(part), cellOf(part, codeOf(row)));
      const sorted = near.map(([, i]) => [distance[cellOf(part, codeOf(i))], i]).sort((a, b) => a[0] - b[0]);
      return { rows: sorted.map(([, i]) => i), geodesic: sorted.map(([value]) => value) };
    },
    async path(model, start, end) {
      const part = parts[model], along = (share) => start.map((value, k) => value + (end[k] - value) * share);
      const straight = Array.from({ length: CURVE }, (_, k) => along(k / (CURVE - 1)));
      const shortest = shortestFrom(part.metric, widthOf(part), cellOf(part, start)), last = cellOf(part, end);
      const places = pathTo(shortest, last, (cell) => placeOf(part, cell), CURVE);
      const codes = places.map(([a, b]) => codeAt(part.plane, a, b));
      [codes[0], codes[CURVE - 1]] = [[...start], [...end]];
      const onPlane = (curve) => curve.map((code) => projected(part.plane, code)), length = (curve) => curveLength(part.metric, onPlane(curve), (code) => cellOf(part, codeAt(part.plane, ...code)));
      return { geodesic: await curve(part, codes, length(codes)), straight: await curve(part, straight, length(straight)), note: "It runs on the grid of the export." };
    },
    impute: async () => { throw new Error("imputation needs the model: run `marquis explore`"); },
    upload: async () => { throw new Error("a second data set needs the model: run `marquis explore`"); },
  };
}
