// The page: maps, panels and what ties them together.

import { extent, quantile, rowOf, short } from "./arrays.js";
import { byId, download, el, latest, options, say, sayProblem } from "./dom.js";
import { filmPanel } from "./film.js";
import { herePanel } from "./here.js";
import { live } from "./live.js";
import { LatentMap } from "./map.js";
import { missingPanel } from "./missing.js";
import { classColour, gradient, pixel, pointColours } from "./palette.js";
import { axisChoices, firstAxes, planeOf } from "./plane.js";
import { pointPanel } from "./point.js";
import { Thumbnails } from "./points.js";
import { savedSource } from "./saved.js";
import { scoresPanel } from "./scores.js";
import { selectionPanel } from "./selection.js";
import { change, onChange, state, writeAddress } from "./state.js";

const TABS = ["here", "point", "scores", "missing", "path", "selection"];
const SCORES = {
  combined: "combined outlier score", error: "squared error", nll: "negative log-likelihood", output_variance: "output variance",
  output_std: "output standard deviation", total_variance: "variance with noise", latent_variance: "code variance", latent_std: "code standard deviation",
};
const FIELDS = { none: "none", std: "decoder standard deviation", total_std: "standard deviation with noise", density: "density of codes", volume: "volume of the metric" };
const GRID = 40;

async function start() {
  const held = byId("saved");
  const source = held ? savedSource(JSON.parse(held.textContent)) : live;
  const about = await source.about();
  const app = { source, about, maps: [], second: null, thumbnails: {}, selected: null, scoreNames: SCORES };
  window.marquis = app; // for tests and for those who look
  document.title = `${about.models.map(({ name }) => name).join(" and ")} · Marquis`;
  byId("title").textContent = about.models.map(({ name }) => name).join("  |  ");
  byId("source").textContent = `${about.rows} rows of ${about.source}${source.saved ? " · export" : ""}`;
  if (!(state.score in about.models[0].scores)) state.score = Object.keys(about.models[0].scores)[0];
  if (state.colour === "label" && !about.labels) state.colour = `score:${state.score}`;
  describe(app);
  if (about.kind === "image") app.thumbnails.main = new Thumbnails(source, "main", about, () => app.maps.forEach((map) => map.refresh()));
  makeMaps(app);
  const panels = [herePanel, pointPanel, scoresPanel, missingPanel, filmPanel, selectionPanel].map((make) => make(app));
  app.setSecond = (second) => {
    app.second = second.rows ? second : null;
    app.thumbnails.second = app.second && about.kind === "image" && (!source.saved || second.sheets) ? new Thumbnails(source, "second", about, () => {}) : null;
    placeMaps(app);
    app.recolour();
    panels[2].show();
  };
  app.hover = hovering(app, panels[0]);
  controls(app);
  setTheme();
  placeMaps(app);
  app.maps.forEach((map, number) => map.setView(state.views[number]));
  app.setSecond(await source.second());
  for (const panel of panels.slice(1)) panel.show?.();
  showTab();
  app.maps.forEach((map) => background(app, map));
  say(source.saved ? "export: answers come from a grid that was computed beforehand" : "ready");
  document.documentElement.dataset.ready = "yes";
}

/** Add what panels ask about rows. */
function describe(app) {
  const { about } = app;
  app.count = (data) => (data === "main" ? about.rows : app.second?.rows ?? 0);
  app.labelOf = (row, data = "main") => {
    const set = data === "main" ? about : app.second;
    if (!set?.labels) return "";
    return set.label_names ? set.label_names[set.labels[row]] : short(set.labels[row]);
  };
  app.nameOf = (row, data) => `${data === "second" ? "second data set, " : ""}row ${row}${app.labelOf(row, data) ? ` (${app.labelOf(row, data)})` : ""}`;
  const original = latest((row, data, signal) => app.source.explain(0, row, data, state.score, signal));
  app.rowValues = async (row, data) => {
    const values = data === "main" ? about.values : app.second?.values;
    return values ? rowOf(values, row) : (await original(row, data))?.original;
  };
}

// --- maps ---

function makeMaps(app) {
  for (const [number, model] of app.about.models.entries()) {
    const map = new LatentMap(number, model, {
      hover: (code, x, y) => app.hover(number, code, x, y),
      pick: (row, data, code) => picked(app, number, row, data, code),
      lasso: (polygon) => change({ lasso: { map: number, polygon: thinned(polygon) }, tab: "selection" }),
      moved: (view) => change({ views: state.views.map((old, k) => (k === number ? view && { ...view } : old)) }),
    });
    map.thumbnails = app.thumbnails.main;
    app.maps.push(map);
    byId("maps").append(el("figure", { className: "map-box" }, map.canvas, el("figcaption", {}, app.about.models.length > 1 ? model.name : "")));
  }
}

const thinned = (polygon) => polygon.filter((_, k) => k % Math.ceil(polygon.length / 60) === 0).map((place) => place.map((value) => Number(value.toPrecision(6))));

const axesOf = (model) => (state.axes && state.axes.every((axis) => Number(axis.slice(1)) < model.latent) ? state.axes : firstAxes(model.latent));

function placeMaps(app) {
  app.maps.forEach((map, number) => {
    map.setPlane(planeOf(map.model, axesOf(map.model), state.sliders), app.second?.models[number]?.codes);
  });
}

function picked(app, number, row, data, code) {
  if (state.mode === "path") {
    const codes = app.maps.map((map, k) => (k === number && row < 0 ? code : row >= 0 && data === "main" ? [...rowOf(map.model.codes, row)] : k === number ? code : null));
    if (codes.some((each) => !each)) return say("click a point of the data: the other model has to know both ends", true);
    const rounded = codes.map((each) => each.map((value) => Number(value.toPrecision(6))));
    change({ ends: [...(state.ends.length === 2 ? [] : state.ends), rounded], tab: "path" });
  } else if (row >= 0) change({ row, data, missing: [], tab: state.tab === "missing" ? "missing" : "point" });
}

/** Decode where the cursor is; the other map's cursor stands at the row that is nearest to it. */
function hovering(app, here) {
  let waiting = null, last = null;
  return (number, code, x, y) => {
    last = { number, code, x, y };
    waiting ??= requestAnimationFrame(() => {
      waiting = null;
      const row = app.maps[last.number].nearestTo(last.x, last.y);
      const cursors = app.maps.map((map, k) => (k === last.number ? last.code : row >= 0 ? [...rowOf(map.model.codes, row)] : null));
      app.maps.forEach((map, k) => map.mark({ cursor: cursors[k] }));
      here.show(cursors);
    });
  };
}

const asking = new Map();
/** Ask for the background of a map's plane, and show it. */
async function background(app, map) {
  if (state.background === "none") return map.setBackground(null);
  if (!asking.has(map)) asking.set(map, latest((...question) => app.source.background(map.number, ...question)));
  const box = map.field();
  say(`computing: ${FIELDS[state.background]} …`);
  const values = await asking.get(map)(state.background, map.plane, box, GRID);
  if (!values) return;
  const [low, high] = [quantile(values, 0.02), quantile(values, 0.98)];
  map.setBackground(values, box, low, high);
  say(`${FIELDS[state.background]}: ${short(low)} (light) to ${short(high)} (dark)`);
}

// --- colours ---

function colouring(app, number) {
  const { colour } = state, model = app.about.models[number], [kind, name] = colour.split(":");
  const second = app.second?.models[number];
  if (kind === "label") return { values: app.about.labels, classes: app.about.label_names, extra: null };
  if (kind === "score") return { values: model.scores[name], extra: second?.scores[name] };
  if (kind === "column") {
    const width = app.about.columns.length, pick = (values) => values && Float32Array.from({ length: values.length / width }, (_, i) => values[i * width + Number(name)]);
    return { values: pick(app.about.values), extra: pick(app.second?.values) };
  }
  return { values: new Float32Array(app.about.rows), plain: true };
}

function recolour(app) {
  app.maps.forEach((map, number) => {
    const { values, classes, extra, plain } = colouring(app, number);
    const [low, high] = [quantile(values, 0.01), quantile(values, 0.99)];
    const colours = plain ? new Uint32Array(values.length).fill(pixel([68, 119, 170])) : pointColours(values, classes, low, high);
    const count = app.second?.rows ?? 0;
    const other = extra ? pointColours(extra, null, low, high) : new Uint32Array(count).fill(pixel([213, 94, 0]));
    map.setColours(colours, dimmed(app, app.about.models[0].scores[state.score], app.selected), other, dimmed(app, app.second?.models[0].scores[state.score], null));
    if (number === 0) legend(classes, values, low, high, plain, count);
  });
}

/** Return which rows are faint: those outside the brush, below the threshold, or not selected. */
function dimmed(app, scores, selected) {
  if (!scores || (!state.brush && state.threshold === null && !selected)) return null;
  return Uint8Array.from(scores, (score, row) =>
    (state.brush && (score < state.brush[0] || score > state.brush[1])) || (state.threshold !== null && score <= state.threshold) || (selected && !selected.has(row)) ? 1 : 0);
}

function legend(classes, values, low, high, plain, second) {
  const box = byId("legend");
  const swatch = (background) => { const span = el("span", { className: "swatch" }); span.style.background = background; return span; };
  const entries = plain ? [] : classes ? classes.map((name, k) => el("li", {}, swatch(classColour(k)), ` ${name}`))
    : [el("li", {}, `${short(low)} `, (() => { const bar = el("span", { className: "ramp" }); bar.style.background = gradient("sequential"); return bar; })(), ` ${short(high)}`)];
  if (second) entries.push(el("li", {}, swatch("#d55e00"), " second data set"));
  box.replaceChildren(...entries);
}

// --- controls ---

function controls(app) {
  const { about, source } = app;
  const colours = [...(about.labels ? [["label", "label"]] : []), ...Object.keys(about.models[0].scores).map((name) => [`score:${name}`, SCORES[name] ?? name]),
    ...(about.columns ?? []).map((name, k) => [`column:${k}`, `column ${name}`]), ["none", "one colour"]];
  const latent = Math.min(...about.models.map((model) => model.latent));
  const fixed = source.saved && about.models.some((model) => model.latent > 2);
  const update = () => {
    options(byId("colour"), colours, state.colour);
    options(byId("background"), Object.entries(FIELDS), state.background);
    const axes = axesOf({ latent });
    ["axis-x", "axis-y"].forEach((id, k) => { options(byId(id), axisChoices(latent), axes[k]); byId(id).disabled = fixed || latent < 2; });
    for (const button of document.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === state.mode);
    app.maps.forEach((map) => { map.mode = state.mode; });
    sliders(app, axes, latent, fixed);
  };
  byId("colour").onchange = ({ target }) => change({ colour: target.value });
  byId("background").onchange = ({ target }) => change({ background: target.value });
  ["axis-x", "axis-y"].forEach((id, k) => {
    byId(id).onchange = ({ target }) => {
      const axes = [...axesOf({ latent })];
      axes[k] = target.value;
      const other = 1 - k, [kind, number] = [target.value[0], Number(target.value.slice(1))];
      if (axes[other][0] !== kind || axes[other] === target.value) axes[other] = `${kind}${(number + 1) % latent}`;
      change({ axes, sliders: {}, views: [null, null] });
    };
  });
  for (const button of document.querySelectorAll("[data-mode]")) button.onclick = () => change({ mode: button.dataset.mode });
  byId("zoom-in").onclick = () => app.maps.forEach((map) => map.zoom(1.4));
  byId("zoom-out").onclick = () => app.maps.forEach((map) => map.zoom(1 / 1.4));
  byId("fit").onclick = () => { change({ views: [null, null] }); app.maps.forEach((map) => map.setView(null)); };
  byId("theme").onclick = () => change({ theme: isDark() ? "light" : "dark" });
  byId("link").onclick = copyLink;
  byId("png").onclick = () => savePng(app);
  for (const tab of TABS) byId(`tab-${tab}`).onclick = () => change({ tab });
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = TABS[(TABS.indexOf(state.tab) + step + TABS.length) % TABS.length];
    change({ tab: next });
    byId(`tab-${next}`).focus();
  });
  app.recolour = () => recolour(app);
  onChange(["colour", "background", "axes", "mode", "sliders"], update);
  onChange(["colour", "brush", "threshold", "score", "theme"], app.recolour);
  onChange(["axes", "sliders"], () => { placeMaps(app); app.maps.forEach((map, k) => !state.views[k] && map.setView(null)); });
  onChange(["background", "axes", "sliders", "theme"], () => app.maps.forEach((map) => background(app, map)));
  onChange(["views"], () => app.maps.forEach((map, k) => state.views[k] && map.setView(state.views[k])));
  onChange(["theme"], setTheme);
  onChange(["tab"], showTab);
  update();
}

/** Show a slider for every axis that is not on the map. */
function sliders(app, axes, latent, fixed) {
  const shown = axes.map((axis) => Number(axis.slice(1))), model = app.about.models[0], box = byId("sliders");
  const others = [...Array(latent).keys()].filter((k) => !shown.includes(k));
  byId("slider-box").hidden = !others.length || fixed;
  const key = `${axes}`;
  if (box.dataset.axes === key) return;
  box.dataset.axes = key;
  box.replaceChildren(...others.map((k) => {
    const principal = axes[0][0] === "p", direction = principal ? [...model.directions.subarray(k * latent, (k + 1) * latent)] : null;
    const along = Float32Array.from({ length: app.about.rows }, (_, i) => {
      const code = rowOf(model.codes, i);
      return principal ? direction.reduce((sum, part, j) => sum + part * (code[j] - model.center[j]), 0) : code[k];
    });
    const [low, high] = extent(along), name = axisChoices(latent).find(([value]) => value === `${axes[0][0]}${k}`)[1];
    const input = el("input", { type: "range", min: low, max: high, step: "any", value: state.sliders[k] ?? (principal ? 0 : model.center[k]), "aria-label": name,
      oninput: () => change({ sliders: { ...state.sliders, [k]: Number(Number(input.value).toPrecision(5)) } }) });
    return el("label", {}, `${name} `, input);
  }));
}

function showTab() {
  for (const tab of TABS) {
    const chosen = tab === state.tab;
    byId(tab).hidden = !chosen;
    byId(`tab-${tab}`).setAttribute("aria-selected", chosen);
    byId(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
  }
}

const isDark = () => (state.theme === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : state.theme === "dark");
const setTheme = () => { document.documentElement.dataset.theme = isDark() ? "dark" : "light"; };

async function copyLink() {
  writeAddress();
  try {
    await navigator.clipboard.writeText(location.href);
    say("the address of this view is on the clipboard");
  } catch {
    say(`copy the address of the page: it carries this view`);
  }
}

/** Save what the maps show, side by side, as PNG. */
function savePng(app) {
  const canvases = app.maps.map((map) => map.canvas);
  const sheet = el("canvas", { width: canvases.reduce((sum, each) => sum + each.width, 0), height: Math.max(...canvases.map((each) => each.height)) });
  const context = sheet.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, sheet.width, sheet.height);
  let left = 0;
  for (const canvas of canvases) {
    context.drawImage(canvas, left, 0);
    left += canvas.width;
  }
  sheet.toBlob((blob) => download(blob, "map.png"), "image/png");
}

start().catch((problem) => {
  sayProblem(problem);
  byId("source").textContent = "the explorer could not start";
});
