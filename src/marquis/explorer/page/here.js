// The panel "Here": what the models decode at the cursor, live.

import { rowOf } from "./arrays.js";
import { byId, el, latest } from "./dom.js";
import { captioned, lines, picture, positivePicture } from "./pictures.js";

/** Return the panel; `show(cursors)` takes the code of each map, null where there is none. */
export function herePanel(app) {
  const boxes = app.about.models.map((model, number) => {
    const content = el("div", {}, el("p", { className: "hint" }, "Move the mouse over the map."));
    const heading = app.about.models.length > 1 ? [el("h3", {}, model.name)] : [];
    byId("here").append(el("section", { "aria-label": `Decoded by ${model.name}` }, ...heading, content));
    const ask = latest((code, signal) => app.source.decode(number, code, signal));
    return async (code) => {
      const answer = await ask(code);
      if (answer) content.replaceChildren(...decoded(app.about, answer, model));
    };
  });
  return { show: (cursors) => Promise.all(cursors.map((code, number) => code && boxes[number]?.(code))) };
}

/** Return the elements of a decoded code: mean, standard deviation, posterior samples. */
export function decoded(about, answer, model) {
  const samples = answer.samples ? [...Array(answer.samples.shape[0]).keys()].map((s) => rowOf(answer.samples, s)) : [];
  const single = model.networks === 1;
  const note = single ? "one network: no posterior samples; the deviation is that of the noise" : "posterior samples";
  const std = single ? answer.total_std : answer.std;
  if (about.kind === "table") {
    const fields = [["mean", answer.mean], ["std", std], ...samples.slice(0, single ? 0 : 8).map((row, s) => [`#${s + 1}`, row])];
    return [lines(about.columns, fields, { label: "Decoded row", levels: about.levels })];
  }
  const [low, high] = about.range;
  const pair = el("div", { className: "row" },
    captioned(picture(answer.mean, about.shape, { low, high, edge: 120, label: "decoded mean" }), "mean"),
    captioned(positivePicture(std, about.shape, { edge: 120, label: "standard deviation" }), "standard deviation"));
  const few = single ? [] : samples;
  const strip = el("div", { className: "row samples" },
    ...few.map((row, s) => picture(row, about.shape, { low, high, edge: 72, label: `posterior sample ${s + 1}` })));
  return [pair, el("p", { className: "hint" }, note), strip];
}
