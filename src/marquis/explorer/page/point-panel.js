// The panel "Point": the selected row, what the model makes of it, and what makes it an outlier.

import { extent, short } from "./arrays.js";
import { bar, cellText, columnTable, withStd } from "./column-table.js";
import { byId, el, latest, modelHeading } from "./dom.js";
import { cssOfPixel } from "./palette.js";
import { contributionFigure, imageFigure, positiveFigure, signedFigure } from "./pictures.js";
import { nameOfScore } from "./quantities.js";
import { change, onChange, state } from "./state.js";

/** Return a button that shows a row (a thumbnail, or its number) framed in its colour on the map, and selects it. */
export function rowButton(app, row, data, note = "") {
  const label = app.nameOf(row, data) + (note ? `, ${note}` : "");
  const button = el("button", { className: "row-button", type: "button", title: label, "aria-label": label,
    onclick: () => change({ row, data, missing: [], tab: "point" }) });
  const map = app.maps[0], colours = data === "main" ? map.colours : map.extraColours;
  if (colours?.length > row) button.style.borderColor = cssOfPixel(colours[row]);
  const thumbnails = app.thumbnails[data];
  if (!thumbnails) button.append(`#${row}`);
  else {
    const canvas = el("canvas", { width: 40, height: 40 });
    const draw = (again) => thumbnails.draw(canvas.getContext("2d"), row, 0, 0, 40) || (again && setTimeout(draw, 400, again - 1));
    draw(20);
    button.append(canvas);
  }
  return button;
}

/** Watch the selected row and explain it, for every model. */
export function pointPanel(app) {
  const panel = byId("point");
  const panes = app.about.models.map((model, number) => {
    const content = el("div", {}), order = el("div", {});
    const explain = latest((...question) => app.source.explain(number, ...question));
    const sort = latest((row, signal) => app.source.order(number, row, signal));
    return { pane: el("section", {}, ...modelHeading(app.about, model), content, order), content, order, explain, sort, number, model };
  });
  const title = el("h2", {}, "No point selected");
  const hint = el("p", { className: "hint" }, "Click a point of the map to see how the model reconstructs it, which entries make it an outlier, and what lies near it.");
  panel.append(title, hint, ...panes.map(({ pane }) => pane));

  async function show({ content, order, explain, sort, number, model }) {
    const { row, data, score } = state;
    const answer = await explain(row, data, score);
    if (!answer) return;
    content.replaceChildren(...explained(app, answer, model, number));
    app.maps[number].mark({
      row: data === "main" ? row : null,
      rowPlace: data === "main" ? null : app.maps[number].extra && [app.maps[number].extra[0][row], app.maps[number].extra[1][row]],
      neighbours: [...answer.neighbours],
      ellipse: { code: [...answer.code], covariance: answer.code_covariance },
    });
    order.replaceChildren();
    if (data !== "main") return;
    order.replaceChildren(el("p", { className: "hint" }, "ordering the nearest rows along geodesics …"));
    const sorted = await sort(row);
    if (sorted) order.replaceChildren(...ordered(app, sorted)); // else a newer question has taken its place
  }

  const showAll = () => {
    const chosen = state.row !== null && state.row < app.count(state.data);
    title.textContent = chosen ? app.nameOf(state.row, state.data) : "No point selected";
    hint.hidden = chosen;
    for (const part of panes) part.pane.hidden = !chosen;
    if (chosen) return Promise.all(panes.map(show));
    for (const map of app.maps) map.mark({ row: null, rowPlace: null, neighbours: [], ellipse: null });
  };
  onChange(["row", "data", "score"], showAll);
  return { show: showAll };
}

/** Return the facts about a row: its score and rank, and its code with standard deviations. */
function factsOf(app, answer, number) {
  const all = app.about.models[number].scores[answer.score], below = all.filter((value) => value < answer.score_value).length;
  const rank = below >= all.length - 1 ? "above those of all other rows" : `above those of ${Math.round((100 * below) / all.length)} % of the rows`;
  const known = answer.code_std.every((value) => value === 0);
  const fact = (name, ...content) => [el("dt", {}, name), el("dd", {}, ...content)];
  const instead = answer.score === state.score || app.source.saved ? "" : ` (the ${nameOfScore(state.score)} has no parts by entry)`;
  return el("dl", {},
    ...fact(nameOfScore(answer.score), `${short(answer.score_value)}, ${rank}${instead}`),
    ...fact("code", [...answer.code].map((value, k) => (known ? short(value) : `${short(value)} ± ${short(answer.code_std[k], 2)}`)).join(", "),
      el("span", { className: "soft" }, known ? " (a single network: no standard deviation)" : " (ellipse: 2 std)")));
}

function explained(app, answer, model, number) {
  const { about } = app, facts = factsOf(app, answer, number);
  const near = el("div", { className: "row" }, ...[...answer.neighbours].map((row) => rowButton(app, row, "main")));
  const nearest = [el("h4", {}, "Nearest rows in code space"), near];
  const why = el("h4", {}, `Which ${about.kind === "image" ? "pixels" : "columns"} make it an outlier?`);
  if (about.kind === "table") {
    const order = [...answer.contributions.keys()].sort((a, b) => answer.contributions[b] - answer.contributions[a]);
    const most = Math.max(...extent(answer.contributions).map(Math.abs)) || 1;
    const cells = (k) => [bar(answer.contributions[k], most), cellText(answer.original[k], about.levels[k]), withStd(answer.reconstruction[k], answer.std[k], about.levels[k])];
    return [facts, why, columnTable(about.columns, ["contribution", "value", "reconstruction"], cells, { order, label: "Row, reconstruction and contributions" }), ...nearest];
  }
  const { shape, range } = about, edge = 112;
  const certain = answer.std.every((value) => value === 0); // a single network
  return [facts, el("div", { className: "row" },
    imageFigure(answer.original, shape, range, "original", edge),
    imageFigure(answer.reconstruction, shape, range, "reconstruction", edge),
    signedFigure(answer.difference, shape, "difference", edge)),
  why, el("div", { className: "row" },
    contributionFigure(answer.contributions, shape, "contribution to the score", edge),
    ...(certain ? [] : [positiveFigure(answer.std, shape, "standard deviation", { most: model.networks > 1 ? model.std_scale : null, edge })])),
  ...nearest];
}

function ordered(app, sorted) {
  const rows = [...sorted.rows].slice(0, 16);
  const buttons = rows.map((row, k) => rowButton(app, row, "main", `geodesic distance ${short(sorted.geodesic[k])}`));
  return [el("h4", {}, `The ${sorted.rows.length} nearest, in order along geodesics`), el("div", { className: "row" }, ...buttons),
    ...(sorted.rows.length > rows.length ? [el("p", { className: "hint" }, `the first ${rows.length}`)] : [])];
}
