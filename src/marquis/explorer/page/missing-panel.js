// The panel "Missing values": entries of the selected row are hidden, and the model fills them in.

import { rowOf, short } from "./arrays.js";
import { cellText, columnTable, rangeLine } from "./column-table.js";
import { byId, el, latest, modelHeading, replaceKeepingFocus } from "./dom.js";
import { imageFigure, picture, positiveFigure } from "./pictures.js";
import { change, onChange, state } from "./state.js";

const INTERVAL = 1.96; // standard deviations on either side of 95 % of a normal distribution

export function missingPanel(app) {
  const panel = byId("missing"), { about } = app, image = about.kind === "image";
  const title = el("h2", {}, "Missing values"), hint = el("p", { className: "hint" }), tools = el("div", { className: "row" }), sheet = el("div", {});
  const results = about.models.map((model, number) => {
    const content = el("div", {}), ask = latest((...question) => app.source.impute(number, ...question));
    return { content, ask, section: el("section", {}, ...modelHeading(about, model), content) };
  });
  panel.append(title, hint, el("div", { className: "paper" }, sheet, tools), ...results.map(({ section }) => section));
  let held = { key: null }; // the row that is shown, with its values
  const [channels, height, width] = image ? about.shape : [1, 1, 0];
  if (image)
    for (const [name, chosen] of [["top", (y) => y < height / 2], ["bottom", (y) => y >= height / 2], ["left", (y, x) => x < width / 2], ["right", (y, x) => x >= width / 2]])
      tools.append(el("button", { type: "button", onclick: () => change({ missing: entries(chosen) }) }, `hide ${name}`));
  tools.append(el("button", { type: "button", onclick: () => change({ missing: [] }) }, "restore all"));

  const entries = (chosen) => {
    const numbers = [];
    for (let c = 0; c < channels; c++)
      for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) if (chosen(y, x)) numbers.push((c * height + y) * width + x);
    return numbers;
  };

  /** Return the row's image, on which the mouse hides pixels, or restores them where it starts on a hidden one. */
  function paintable(original) {
    let hidden = new Set();
    const [low, high] = about.range, edge = 196;
    const label = "The selected row: paint over pixels to hide them, over hidden ones to restore them";
    const canvas = picture(original, about.shape, { low, high, edge, label });
    const cover = el("canvas", { width: edge, height: (edge * height) / width, id: "paint", className: "paint", role: "img", "aria-label": label, title: label });
    const context = cover.getContext("2d"), cell = edge / width;
    const draw = () => {
      context.clearRect(0, 0, cover.width, cover.height);
      for (const i of hidden) {
        const x = (i % width) * cell, y = Math.floor((i % (height * width)) / width) * cell;
        context.fillStyle = "#d55e00";
        context.fillRect(x, y, cell + 0.5, cell + 0.5);
      }
    };
    const brush = Math.max(0, Math.round(width / 28));
    let painting = false, restoring = null, last = null;
    const dab = ([px, py]) => {
      restoring ??= hidden.has(Math.floor(py) * width + Math.floor(px));
      for (const i of entries((y, x) => Math.abs(x + 0.5 - px) <= brush + 0.5 && Math.abs(y + 0.5 - py) <= brush + 0.5)) hidden[restoring ? "delete" : "add"](i);
    };
    const paint = (event) => { // along the way from the last place, so that a fast hand leaves no gaps
      const box = cover.getBoundingClientRect();
      const place = [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height], from = last ?? place;
      const steps = Math.max(1, Math.ceil(2 * Math.hypot(place[0] - from[0], place[1] - from[1])));
      for (let k = 1; k <= steps; k++) dab(from.map((value, i) => value + ((place[i] - value) * k) / steps));
      last = place;
      draw();
    };
    cover.addEventListener("pointerdown", (event) => { cover.setPointerCapture(event.pointerId); [painting, restoring, last] = [true, null, null]; paint(event); });
    cover.addEventListener("pointermove", (event) => painting && paint(event));
    cover.addEventListener("pointerup", () => { painting = false; change({ missing: [...hidden].sort((a, b) => a - b) }); });
    const update = () => { if (!painting) { hidden = new Set(state.missing); draw(); } }; // a stroke goes on while answers arrive
    return { element: el("div", { className: "stack" }, canvas, cover), update };
  }

  /** Return the row's cells with a box each; ticked cells are missing. */
  function cells(original) {
    const hidden = new Set(state.missing);
    const boxes = about.columns.map((name, k) => {
      const absent = Number.isNaN(original[k]);
      const box = el("input", { type: "checkbox", checked: hidden.has(k) || absent, disabled: absent,
        onchange: () => change({ missing: box.checked ? [...state.missing, k].sort((a, b) => a - b) : state.missing.filter((i) => i !== k) }) });
      const value = absent ? "missing in the data" : cellText(original[k], about.levels[k]);
      return el("label", { className: `cell ${box.checked ? "cleared" : ""}` }, box, el("span", {}, name), el("span", { className: "number" }, value));
    });
    return el("fieldset", {}, el("legend", {}, "Tick what should be missing"), ...boxes);
  }

  function filled(answer, original) {
    const samples = [...Array(answer.samples.shape[0]).keys()].map((s) => rowOf(answer.samples, s));
    if (image) {
      const few = samples.map((row, s) => picture(row, about.shape, { low: about.range[0], high: about.range[1], edge: 84, label: `imputation ${s + 1}` }));
      return [el("div", { className: "row" }, imageFigure(answer.mean, about.shape, about.range, "mean of the imputations", 150),
        positiveFigure(answer.std.map((s) => INTERVAL * s), about.shape, "half width of the 95 % interval", { edge: 150 })),
      el("h4", {}, "Imputations"), el("div", { className: "row samples" }, ...few)];
    }
    const order = [...answer.missing.keys()].filter((k) => answer.missing[k]);
    const line = (k) => {
      const levels = about.levels[k], low = answer.mean[k] - INTERVAL * answer.std[k], high = answer.mean[k] + INTERVAL * answer.std[k];
      const interval = levels ? `samples: ${[...new Set(samples.map((row) => cellText(row[k], levels)))].join(", ")}` : `${short(low)} to ${short(high)}`;
      return [cellText(answer.mean[k], levels), interval, rangeLine(about, k, { band: [low, high], mean: answer.mean[k], value: original[k], samples: samples.map((row) => row[k]) })];
    };
    const note = "Band: 95 % interval. Short lines: samples. Filled dot: imputed. Hollow dot: the value that was hidden.";
    return order.length ? [columnTable(about.columns, ["imputed", "95 % interval", "data range"], line, { order, label: "Imputations" }), el("p", { className: "hint" }, note)] : [];
  }

  async function show() {
    const possible = !app.source.saved && state.row !== null && state.row < app.count(state.data);
    title.textContent = possible ? `Missing values of ${app.nameOf(state.row, state.data)}` : "Missing values";
    hint.textContent = app.source.saved ? "Imputation needs the model: run `marquis explore`. An export has precomputed results only."
      : !possible ? "Click a point of the map first; then hide entries of that row, and the model fills them in."
      : image ? "Paint over pixels to hide them. The model fills them in from those that remain." : "The model fills ticked cells in from those that remain.";
    tools.hidden = !possible;
    if (!possible) { held = { key: null }; sheet.replaceChildren(); results.forEach(({ content }) => content.replaceChildren()); return; }
    if (state.tab !== "missing") return;
    const key = `${state.data} ${state.row} ${app.second?.source}`;
    if (held.key !== key) {
      const original = await app.rowValues(state.row, state.data);
      if (!original) return;
      held = { key, original, paint: image ? paintable(original) : null };
      if (image) sheet.replaceChildren(held.paint.element);
    }
    const { original } = held;
    if (image) held.paint.update();
    else replaceKeepingFocus(sheet, cells(original));
    const any = state.missing.length || [...original].some(Number.isNaN);
    await Promise.all(results.map(async ({ content, ask }) => {
      const answer = any ? await ask(state.row, state.data, state.missing) : null;
      if (answer) content.replaceChildren(...filled(answer, original));
      else if (!any) content.replaceChildren();
    }));
  }
  onChange(["row", "data", "missing", "tab"], show);
  return { show };
}
