// The panel "Point": the selected row, what the model makes of it, and what makes it an outlier.

import { rowOf, short } from "./arrays.js";
import { byId, el, latest } from "./dom.js";
import { captioned, lines, picture, positivePicture, signedPicture } from "./pictures.js";
import { change, onChange, state } from "./state.js";

/** Return a button that shows a row (a thumbnail, or its number) and selects it. */
export function rowButton(app, row, data, note = "") {
  const label = app.nameOf(row, data) + (note ? `, ${note}` : "");
  const button = el("button", { className: "row-button", type: "button", title: label, "aria-label": label,
    onclick: () => change({ row, data, tab: "point" }) });
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
    const heading = app.about.models.length > 1 ? [el("h3", {}, model.name)] : [];
    const explain = latest((...question) => app.source.explain(number, ...question));
    const sort = latest((row, signal) => app.source.order(number, row, signal));
    return { pane: el("section", {}, ...heading, content, order), content, order, explain, sort, number, model };
  });
  const title = el("h2", {}, "No point selected");
  const hint = el("p", { className: "hint" }, "Click a point of the map.");
  panel.append(title, hint, ...panes.map(({ pane }) => pane));

  async function show({ content, order, explain, sort, number, model }) {
    const { row, data, score } = state;
    const answer = await explain(row, data, score);
    if (!answer) return;
    content.replaceChildren(...explained(app, answer, model));
    app.maps[number].mark({
      row: data === "main" ? row : null,
      rowPlace: data === "main" ? null : app.maps[number].extra && [app.maps[number].extra[0][row], app.maps[number].extra[1][row]],
      neighbours: [...answer.neighbours],
      ellipse: { code: [...answer.code], covariance: answer.code_covariance },
    });
    order.replaceChildren();
    if (data !== "main") return;
    order.replaceChildren(el("p", { className: "hint" }, "ordering the nearest points along geodesics …"));
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

function explained(app, answer, model) {
  const { about } = app;
  const facts = el("p", {},
    `${app.scoreNames[answer.score] ?? answer.score}: ${short(answer.score_value)} · code `,
    [...answer.code].map((value, k) => `${short(value)} ± ${short(answer.code_std[k])}`).join(", "));
  const near = el("div", { className: "row" }, ...[...answer.neighbours].map((row) => rowButton(app, row, "main")));
  const nearest = [el("h4", {}, "Nearest in code space"), near];
  if (about.kind === "table") {
    const order = [...answer.contributions.keys()].sort((a, b) => answer.contributions[b] - answer.contributions[a]);
    const fields = [["value", answer.original], ["rebuilt", answer.reconstruction], ["std", answer.std]];
    return [facts, lines(about.columns, fields, { bars: answer.contributions, order, label: "Row, reconstruction and contributions", levels: about.levels }), ...nearest];
  }
  const [low, high] = about.range, edge = 104;
  const plain = (values, label) => captioned(picture(values, about.shape, { low, high, edge, label }), label);
  const pictures = el("div", { className: "row" },
    plain(answer.original, "original"),
    plain(answer.reconstruction, "reconstruction"),
    captioned(signedPicture(answer.difference, about.shape, { edge, label: "difference" }), "difference"),
    captioned(positivePicture(answer.std, about.shape, { edge, label: "standard deviation" }), model.networks === 1 ? "std (one network: 0)" : "standard deviation"),
    captioned(signedPicture(answer.contributions, about.shape, { edge, label: "contributions to the score" }), "contribution to the score"));
  return [facts, pictures, ...nearest];
}

function ordered(app, sorted) {
  const rows = [...sorted.rows].slice(0, 16);
  const buttons = rows.map((row, k) => rowButton(app, row, "main", `geodesic distance ${short(sorted.geodesic[k])}`));
  return [el("h4", {}, `Along geodesics, among the ${sorted.rows.length} nearest`), el("div", { className: "row" }, ...buttons)];
}

/** Return the text of a row for tables: its values by column. */
export function valuesOf(app, row) {
  return app.about.values ? [...rowOf(app.about.values, row)] : [];
}
