// The panel "Missing": entries of the selected row are taken away, and the model fills them in.

import { rowOf } from "./arrays.js";
import { byId, el, latest } from "./dom.js";
import { captioned, cellText, lines, picture, positivePicture } from "./pictures.js";
import { change, onChange, state } from "./state.js";

export function missingPanel(app) {
  const panel = byId("missing"), { about } = app, image = about.kind === "image";
  const hint = el("p", { className: "hint" }), tools = el("div", { className: "row" }), sheet = el("div", {});
  const results = about.models.map((model, number) => {
    const content = el("div", {}), ask = latest((...question) => app.source.impute(number, ...question));
    return { content, ask, section: el("section", {}, ...(about.models.length > 1 ? [el("h3", {}, model.name)] : []), content) };
  });
  panel.append(hint, tools, sheet, ...results.map(({ section }) => section));
  const clear = el("button", { type: "button", onclick: () => change({ missing: [] }) }, "restore all");
  tools.append(clear);
  const [channels, height, width] = image ? about.shape : [1, 1, 0];
  if (image)
    for (const [name, keep] of [["top", (y) => y < height / 2], ["bottom", (y) => y >= height / 2], ["left", (y, x) => x < width / 2], ["right", (y, x) => x >= width / 2]])
      tools.append(el("button", { type: "button", onclick: () => change({ missing: entries((y, x) => keep(y, x)) }) }, `hide ${name}`));

  const entries = (chosen) => {
    const found = [];
    for (let c = 0; c < channels; c++)
      for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) if (chosen(y, x)) found.push((c * height + y) * width + x);
    return found;
  };

  function paintable(original) {
    const hidden = new Set(state.missing), shown = Float32Array.from(original, (value, i) => (hidden.has(i) ? NaN : value));
    const [low, high] = about.range;
    const canvas = picture(shown, about.shape, { low, high, edge: 220, label: "Paint over pixels to hide them" });
    canvas.id = "paint";
    canvas.classList.add("paint");
    const context = canvas.getContext("2d");
    const cover = (i) => { context.fillStyle = "#d55e00"; context.fillRect(i % width, Math.floor((i % (height * width)) / width), 1, 1); };
    hidden.forEach(cover);
    const brush = Math.max(0, Math.round(width / 28));
    const paint = (event) => {
      const box = canvas.getBoundingClientRect();
      const px = ((event.clientX - box.left) / box.width) * width, py = ((event.clientY - box.top) / box.height) * height;
      for (const i of entries((y, x) => Math.abs(x + 0.5 - px) <= brush + 0.5 && Math.abs(y + 0.5 - py) <= brush + 0.5)) {
        hidden.add(i);
        cover(i);
      }
    };
    let painting = false;
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); painting = true; paint(event); });
    canvas.addEventListener("pointermove", (event) => painting && paint(event));
    canvas.addEventListener("pointerup", () => { painting = false; change({ missing: [...hidden].sort((a, b) => a - b) }); });
    return canvas;
  }

  function cells(original) {
    const hidden = new Set(state.missing);
    const boxes = about.columns.map((name, k) => {
      const box = el("input", { type: "checkbox", checked: hidden.has(k) || Number.isNaN(original[k]), disabled: Number.isNaN(original[k]),
        onchange: () => change({ missing: box.checked ? [...state.missing, k].sort((a, b) => a - b) : state.missing.filter((i) => i !== k) }) });
      return el("label", { className: "cell" }, box, ` ${name}: ${cellText(original[k], about.levels[k])}`);
    });
    return el("fieldset", {}, el("legend", {}, "Clear cells"), ...boxes);
  }

  function filled(answer) {
    const samples = [...Array(answer.samples.shape[0]).keys()].map((s) => rowOf(answer.samples, s));
    if (!image) {
      const rows = [...answer.missing.keys()].filter((k) => answer.missing[k]);
      const low = answer.mean.map((mean, k) => mean - 1.96 * answer.std[k]), high = answer.mean.map((mean, k) => mean + 1.96 * answer.std[k]);
      const fields = [["imputed", answer.mean], ["95 % from", low], ["to", high], ...samples.slice(0, 3).map((row, s) => [`sample ${s + 1}`, row])];
      return rows.length ? [lines(about.columns, fields, { order: rows, label: "Imputations", levels: about.levels })] : [];
    }
    const [low, high] = about.range, edge = 104;
    const few = samples.map((row, s) => picture(row, about.shape, { low, high, edge: 72, label: `imputation ${s + 1}` }));
    return [el("div", { className: "row" },
      captioned(picture(answer.mean, about.shape, { low, high, edge, label: "mean imputation" }), "mean"),
      captioned(positivePicture(answer.std.map((s) => 1.96 * s), about.shape, { edge, label: "half width of the 95 % interval" }), "± 95 % interval")),
    el("p", { className: "hint" }, "imputations"), el("div", { className: "row samples" }, ...few)];
  }

  async function show() {
    const possible = !app.source.saved && state.row !== null && state.row < app.count(state.data);
    hint.textContent = app.source.saved ? "Imputation needs the model: run `marquis explore`. An export carries precomputed answers only."
      : possible ? (image ? "Paint over pixels; the imputation follows." : "Clear cells; the imputation follows.") : "Click a point of the map first.";
    tools.hidden = !possible;
    if (!possible) { sheet.replaceChildren(); results.forEach(({ content }) => content.replaceChildren()); return; }
    if (state.tab !== "missing") return;
    const original = await app.rowValues(state.row, state.data);
    if (!original) return;
    sheet.replaceChildren(image ? paintable(original) : cells(original));
    const any = state.missing.length || [...original].some(Number.isNaN);
    await Promise.all(results.map(async ({ content, ask }) => {
      const answer = any ? await ask(state.row, state.data, state.missing) : null;
      if (answer) content.replaceChildren(...filled(answer));
      else if (!any) content.replaceChildren();
    }));
  }
  onChange(["row", "data", "missing", "tab"], show);
  return { show };
}
