// The page: maps, panels and what ties them together.

import { quantile, rowOf, short } from "./arrays.js";
import { decodePanel } from "./decode-panel.js";
import { byId, el, latest, say, sayProblem } from "./dom.js";
import { answersFromExport } from "./export-answers.js";
import { LatentMap } from "./latent-map.js";
import { planeOf } from "./latent-plane.js";
import { dimmedRows, mapLegend, recolour } from "./map-colours.js";
import { Thumbnails } from "./map-points.js";
import { missingPanel } from "./missing-panel.js";
import { pathPanel } from "./path-panel.js";
import { pointPanel } from "./point-panel.js";
import { BACKGROUNDS, varies } from "./quantities.js";
import { scoresPanel } from "./scores-panel.js";
import { selectionPanel } from "./selection-panel.js";
import { answersFromServer } from "./server-answers.js";
import { change, onChange, state } from "./state.js";
import { axesOf, axisName, makeToolbar } from "./toolbar.js";

const GRID = 40;

async function start() {
  const held = byId("saved");
  const source = held ? answersFromExport(JSON.parse(held.textContent)) : answersFromServer;
  const about = await source.about();
  const app = { source, about, maps: [], second: null, thumbnails: {} };
  window.marquis = app; // for tests and for those who look
  document.title = `${about.models.map(({ name }) => name).join(" and ")} · Marquis explorer`;
  byId("title").textContent = about.models.map(({ name }) => name).join("  |  ");
  byId("source").textContent = `${about.rows.toLocaleString("en")} ${about.kind === "image" ? "images" : "rows"} of ${about.source.split("/").pop()}${source.saved ? " · export" : ""}`;
  byId("source").title = about.source;
  describe(app);
  if (!app.scoreNames().includes(state.score)) state.score = app.scoreNames()[0];
  if (state.background === "std" && about.models.every(({ networks }) => networks === 1)) state.background = "none"; // zero everywhere
  if (state.scoreModel >= about.models.length) state.scoreModel = 0;
  if (about.kind === "image") app.thumbnails.main = new Thumbnails(source, "main", about, () => app.maps.forEach((map) => map.refresh()));
  makeMaps(app);
  makeToolbar(app);
  app.recolour = () => recolour(app);
  const panels = Object.fromEntries([decodePanel, pointPanel, scoresPanel, missingPanel, pathPanel, selectionPanel].map((make) => [make.name, make(app)]));
  app.hover = hovering(app, panels.decodePanel);
  app.setSecond = (second) => {
    app.second = second.rows ? second : null;
    const images = app.second && about.kind === "image" && (!source.saved || second.sheets);
    app.thumbnails.second = images ? new Thumbnails(source, "second", about, () => app.maps.forEach((map) => map.refresh())) : null;
    placeMaps(app);
    app.maps.forEach((map, number) => !state.views[number] && map.setView(null));
    app.recolour();
    for (const name of ["scoresPanel", "selectionPanel"]) panels[name].show();
  };
  onChange(["colour", "brush", "threshold", "score", "scoreModel", "lasso", "label", "theme"], app.recolour);
  onChange(["axes", "sliders"], () => { placeMaps(app); app.maps.forEach((map, k) => !state.views[k] && map.setView(null)); app.recolour(); });
  onChange(["background", "axes", "sliders", "theme"], () => app.maps.forEach((map) => background(app, map)));
  onChange(["views"], () => app.maps.forEach((map, k) => state.views[k] && !map.shows(state.views[k]) && map.setView(state.views[k])));
  placeMaps(app);
  app.maps.forEach((map, number) => map.setView(state.views[number]));
  app.setSecond(await source.second());
  for (const panel of Object.values(panels).slice(1)) panel.show();
  app.maps.forEach((map) => background(app, map));
  say(source.saved ? "export: results come from a grid that was computed beforehand" : "ready");
  document.documentElement.dataset.ready = "yes";
}

/** Add what panels ask about rows and scores. */
function describe(app) {
  const { about } = app;
  app.scoreNames = () => Object.keys(about.models[0].scores).filter((name) => about.models.some((model) => varies(model.scores[name])) || name === "error");
  app.count = (data) => (data === "main" ? about.rows : app.second?.rows ?? 0);
  app.highlighted = (data) => {
    const dimmed = dimmedRows(app, data);
    return [...Array(app.count(data)).keys()].filter((row) => !dimmed?.[row]);
  };
  app.labelOf = (row, data = "main") => {
    const set = data === "main" ? about : app.second;
    if (!set?.labels) return "";
    return set.label_names ? set.label_names[set.labels[row]] : short(set.labels[row]);
  };
  app.nameOf = (row, data) => `${data === "second" ? `${app.second?.source}, ` : ""}row ${row}${app.labelOf(row, data) ? ` (label ${app.labelOf(row, data)})` : ""}`;
  const original = latest((row, data, signal) => app.source.explain(0, row, data, state.score, signal));
  app.rowValues = async (row, data) => {
    const values = data === "main" ? about.values : app.second?.values;
    return values ? rowOf(values, row) : (await original(row, data))?.original;
  };
}

function makeMaps(app) {
  for (const [number, model] of app.about.models.entries()) {
    const map = new LatentMap(number, model, {
      hover: (code, x, y, byKey) => app.hover(number, code, x, y, byKey),
      pick: (row, data, code) => picked(app, number, row, data, code),
      lasso: (polygon) => change({ lasso: { map: number, polygon: thinned(polygon) }, tab: "selection" }),
      moved: (view) => change({ views: state.views.map((old, k) => (k === number ? view && { ...view } : old)) }),
    });
    map.thumbnails = app.thumbnails;
    map.caption = el("figcaption", {});
    map.title = app.about.models.length > 1 ? model.name : "";
    map.columns = app.about.columns;
    app.maps.push(map);
    byId("maps").append(el("figure", { className: "map-box" }, map.canvas, map.caption));
  }
}

const thinned = (polygon) => polygon.filter((_, k) => k % Math.ceil(polygon.length / 60) === 0).map((place) => place.map((value) => Number(value.toPrecision(6))));

function placeMaps(app) {
  app.maps.forEach((map, number) => {
    const { latent } = map.model, axes = axesOf(latent);
    map.axisNames = [axisName(axes[0], latent), latent > 1 ? axisName(axes[1], latent) : ""];
    map.setPlane(planeOf(map.model, axes, state.sliders), app.second?.models[number]?.codes);
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
function hovering(app, panel) {
  let waiting = null, last = null;
  return (number, code, x, y, byKey) => {
    last = { number, code, x, y };
    waiting ??= requestAnimationFrame(() => {
      waiting = null;
      const row = app.maps[last.number].nearestTo(last.x, last.y);
      const cursors = app.maps.map((map, k) => (k === last.number ? last.code : row >= 0 ? [...rowOf(map.model.codes, row)] : null));
      app.maps.forEach((map, k) => map.mark({ cursor: cursors[k] }));
      if (byKey) say(`code ${last.code.map((value) => short(value)).join(", ")}${row >= 0 ? `, nearest ${app.nameOf(row, "main")}` : ", no row close by"}`);
      panel.show(cursors, row);
    });
  };
}

const asking = new Map();
/** Ask for the background of a map's plane, and show it. */
async function background(app, map) {
  map.backgroundScale = null;
  if (state.background === "none") { map.setBackground(null); return mapLegend(map); }
  if (!asking.has(map)) asking.set(map, latest((...question) => app.source.background(map.number, ...question)));
  const box = map.field(), quantity = state.background;
  mapLegend(map);
  say(`computing: ${BACKGROUNDS[quantity][0]} …`);
  const values = await asking.get(map)(quantity, map.plane, box, GRID);
  if (!values) return;
  map.backgroundScale = [quantile(values, 0.02), quantile(values, 0.98)];
  map.setBackground(values, box, ...map.backgroundScale);
  mapLegend(map);
  say(`${BACKGROUNDS[quantity][0]}: ${BACKGROUNDS[quantity][1]}`);
}

start().catch((problem) => {
  sayProblem(problem);
  byId("source").textContent = "the explorer could not start";
});
