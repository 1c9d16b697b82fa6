// Colours of the points, which of them are highlighted, and the legends that say what colours mean.

import { quantile, short } from "./arrays.js";
import { byId, el, replaceKeepingFocus, swatch, themed } from "./dom.js";
import { channels, classColour, pixel, pointColours } from "./palette.js";
import { scaleBar } from "./pictures.js";
import { BACKGROUNDS, nameOfScore } from "./quantities.js";
import { change, state } from "./state.js";

/** Return what can be chosen as colour: [value, text]. */
export function colourChoices({ about, scoreNames }) {
  return [...(about.labels ? [["label", "label"]] : []), ...scoreNames().map((name) => [`score:${name}`, nameOfScore(name)]),
    ...(about.columns ?? []).map((name, k) => [`column:${k}`, `column ${name}`]), ["none", "one colour"]];
}

/** Return the values that colour the points of a map, of classes their names, and those of the second data set. */
function colouring({ about, second }, number) {
  const [kind, name] = state.colour.split(":"), other = second?.models[number];
  if (kind === "label") return { values: about.labels, classes: about.label_names, extra: null };
  if (kind === "score") return { values: about.models[number].scores[name], extra: other?.scores[name] };
  if (kind === "column") {
    const width = about.columns.length, pick = (values) => values && Float32Array.from({ length: values.length / width }, (_, i) => values[i * width + Number(name)]);
    return { values: pick(about.values), classes: about.levels[name], extra: pick(second?.values) };
  }
  return { values: new Float32Array(about.rows), plain: true };
}

/** Colour the points of all maps, fade those that are not highlighted, and write the legends. */
export function recolour(app) {
  const [dimmed, extraDimmed] = [dimmedRows(app, "main"), dimmedRows(app, "second")], second = pixel(channels(themed("--second")));
  app.maps.forEach((map, number) => {
    const { values, classes, extra, plain } = colouring(app, number);
    const [low, high] = [quantile(values, 0.01), quantile(values, 0.99)];
    const colours = plain ? new Uint32Array(values.length).fill(pixel(channels(classColour(0)))) : pointColours(values, classes, low, high);
    const other = extra ? pointColours(extra, classes, low, high) : new Uint32Array(app.second?.rows ?? 0).fill(second);
    map.setColours(colours, dimmed, other, extraDimmed);
    map.colourScale = classes || plain ? null : [low, high];
    mapLegend(map);
    if (number === 0) classLegend(app, classes);
  });
}

/** Return which rows are faint, 1 each: those outside the lasso or the brush, below the threshold, or with another label. */
export function dimmedRows(app, data) {
  const { brush, threshold, lasso, label } = state, set = data === "main" ? app.about : app.second;
  const names = app.about.label_names, labelled = label !== null && names;
  if (!set || (!brush && threshold === null && !lasso && !labelled)) return null;
  const scores = set.models[state.scoreModel].scores[state.score];
  const inside = lasso && new Set(app.maps[lasso.map]?.rowsIn(lasso.polygon, data) ?? []);
  return Uint8Array.from(scores, (score, row) =>
    Number((brush && (score < brush[0] || score > brush[1])) || (threshold !== null && score <= threshold)
      || (inside && !inside.has(row)) || (labelled && app.labelOf(row, data) !== names[label])));
}

/** Write the legend of classes; a click on a class of the labels highlights it. */
function classLegend(app, classes) {
  const entries = [], label = state.colour === "label";
  for (const [k, name] of (classes ?? []).entries()) {
    const colour = swatch(classColour(k));
    if (!label) entries.push(el("li", {}, colour, ` ${name}`));
    else {
      const title = `highlight rows with label ${name}`, pressed = state.label === k;
      entries.push(el("li", {}, el("button", { type: "button", className: "class", title, "aria-pressed": pressed, onclick: () => change({ label: pressed ? null : k }) }, colour, ` ${name}`)));
    }
  }
  if (entries.length) entries.unshift(el("li", { className: "soft" }, label ? "Label" : app.about.columns[Number(state.colour.split(":")[1])]));
  if (app.second) entries.push(el("li", {}, swatch(themed("--second"), "hollow"), ` ${app.second.source}${app.second.source === "second data set" ? "" : " (second data set)"}`));
  replaceKeepingFocus(byId("legend"), ...entries);
}

/** Write the legend of a map: its name where there are two, and the scales of colour and background. */
export function mapLegend(map) {
  const parts = [], scale = ([low, high]) => [short(low, 2), short(high, 2)];
  if (map.title) parts.push(el("b", {}, map.title));
  if (map.colourScale) {
    const [kind, name] = state.colour.split(":");
    const what = kind === "score" ? nameOfScore(name) : kind === "column" ? map.columns[Number(name)] : "label";
    parts.push(el("span", {}, `${what} `, scaleBar("sequential", ...scale(map.colourScale))));
  }
  if (state.background !== "none" && !map.backgroundScale) parts.push(el("span", {}, `${BACKGROUNDS[state.background][0]} …`)); // keeps the line's height: the map must not move under a click
  else if (state.background !== "none") {
    const [name, meaning] = BACKGROUNDS[state.background], [low, high] = map.backgroundScale;
    const content = low === high ? [`${name}: ${short(low, 2)} everywhere${map.model.networks === 1 ? " (a single network)" : ""}`] : [`${name} `, scaleBar("field", ...scale([low, high]))];
    parts.push(el("span", { title: meaning }, ...content));
  }
  map.caption.replaceChildren(...parts);
}
