// The panel "Decode": what the models decode at the cursor, live.

import { rowOf, short } from "./arrays.js";
import { columnTable, rangeLine, withStd } from "./column-table.js";
import { byId, el, latest, modelHeading } from "./dom.js";
import { imageFigure, picture, positiveFigure } from "./pictures.js";
import { rowButton } from "./point-panel.js";
import { onChange, state } from "./state.js";

/** Return the panel; `show(cursors, row)` takes the code of each map, null where there is none, and the row nearest to it. */
export function decodePanel(app) {
  const welcome = introduction(app), place = el("div", { className: "place", hidden: true });
  byId("decode").append(welcome, place);
  const boxes = app.about.models.map((model, number) => {
    const content = el("div", {}), heading = modelHeading(app.about, model);
    const section = el("section", { "aria-label": `Decoded by ${model.name}`, hidden: true }, ...heading, content);
    byId("decode").append(section);
    const ask = latest((code, signal) => app.source.decode(number, code, signal));
    return async (code) => {
      const answer = await ask(code);
      if (!answer) return;
      welcome.hidden = true;
      section.hidden = false;
      content.replaceChildren(...decoded(app.about, answer, model));
    };
  });
  let last = null;
  const show = (cursors, row) => {
    last = [cursors, row];
    if (state.tab !== "decode") return null; // nobody looks
    const first = cursors.find(Boolean);
    place.hidden = false;
    const near = row >= 0 ? [el("span", { className: "soft" }, "nearest row"), rowButton(app, row, "main")] : [el("span", { className: "soft" }, "no row close by")];
    place.replaceChildren(el("span", {}, el("span", { className: "soft" }, "code at the cursor "), `(${first.map((value) => short(value)).join(", ")})`), ...near);
    return Promise.all(cursors.map((code, number) => code && boxes[number]?.(code)));
  };
  onChange(["tab"], () => last && show(...last));
  return { show };
}

/** Return what a first visitor reads before the mouse is over the map. */
function introduction({ about, source }) {
  const entries = about.kind === "image" ? "pixels" : "columns", rows = about.kind === "image" ? "image" : "row";
  const line = (action, meaning) => el("li", {}, el("b", {}, action), ` ${meaning}`);
  return el("div", { className: "intro" },
    el("h2", {}, "What does this model know?"),
    el("p", {}, `Each point of the map is one ${rows} of the data, at the place of its code: the few numbers to which the encoder compresses it.`),
    el("ul", {},
      line("Move over the map", "to decode any place: the mean, and how much the sampled networks disagree."),
      line("Click a point", `to see its reconstruction and which ${entries} make it an outlier.`),
      line("Background", "shows where the decoder is uncertain, usually away from the data."),
      line("Scores", "ranks all rows, flags outliers and compares with a second data set."),
      ...(source.saved ? [] : [line("Missing values", `hides ${entries} of the selected ${rows} and fills them in, with intervals.`)]),
      line("Path", "interpolates between two points, straight and along a geodesic.")),
    el("p", { className: "hint" }, "Drag to pan, turn the wheel to zoom. The button Help lists the keys."));
}

/** Return the elements of a decoded code: mean, standard deviation, posterior samples. */
function decoded(about, answer, model) {
  const single = model.networks === 1, std = single ? answer.total_std : answer.std;
  const samples = answer.samples && !single ? [...Array(answer.samples.shape[0]).keys()].map((s) => rowOf(answer.samples, s)) : [];
  const title = single ? "noise, standard deviation" : "standard deviation";
  const note = single ? "This model is a single network: it has no posterior samples, and its standard deviation is that of the noise it predicts."
    : `${samples.length} of ${model.networks} sampled networks. Where they differ, the model does not know.`;
  if (about.kind === "table") {
    const cells = (k) => [withStd(answer.mean[k], std[k], about.levels[k]), rangeLine(about, k, { mean: answer.mean[k], samples: samples.map((row) => row[k]) })];
    const marks = `On the line from the smallest to the largest value in the data: the mean${single ? "" : " and the samples"}.`;
    return [columnTable(about.columns, ["mean ± std", "data range"], cells, { label: "Decoded row" }), el("p", { className: "hint" }, marks), el("p", { className: "hint" }, note)];
  }
  const few = samples.map((row, s) => picture(row, about.shape, { low: about.range[0], high: about.range[1], edge: 84, label: `posterior sample ${s + 1}` }));
  return [el("div", { className: "row" }, imageFigure(answer.mean, about.shape, about.range, "decoded mean", 150),
    positiveFigure(std, about.shape, title, { most: model.std_scale, edge: 150 })),
  ...(few.length ? [el("h4", {}, "Posterior samples"), el("div", { className: "row samples" }, ...few)] : []), el("p", { className: "hint" }, note)];
}
