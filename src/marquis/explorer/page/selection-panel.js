// The panel "Selection": the highlighted rows (inside the lasso, the brush, above the threshold) as a table, and as CSV.

import { rowOf, short } from "./arrays.js";
import { cellText } from "./column-table.js";
import { byId, download, el } from "./dom.js";
import { rowButton } from "./point-panel.js";
import { nameOfScore } from "./quantities.js";
import { change, onChange, state } from "./state.js";

const SHOWN = 100, THUMBNAILS = 32;

export function selectionPanel(app) {
  const { about } = app;
  const count = el("p", { id: "selection-count" }), images = el("div", { className: "row" }), content = el("div", { className: "scroll" });
  const save = el("button", { type: "button", id: "csv", onclick: () => download(new Blob([csv()], { type: "text/csv" }), "selection.csv") }, "save as CSV");
  const clear = el("button", { type: "button", onclick: () => change({ lasso: null, brush: null, threshold: null, label: null }) }, "clear");
  const tools = el("div", { className: "row" }, save, clear);
  byId("selection").append(el("h2", {}, "Selected rows"), count, tools, images, content);
  let rows = [];

  const names = () => Object.keys(about.models[0].scores);
  const headings = (nameOf = (name) => name) => ["row", ...(app.second ? ["data"] : []), ...(about.labels ? ["label"] : []), ...names().map(nameOf), ...(about.columns ?? [])];
  const cells = ([row, data]) => {
    const set = data === "main" ? about : app.second, values = set.values ? [...rowOf(set.values, row)].map((value, k) => (about.levels[k] ? cellText(value, about.levels[k]) : value)) : [];
    return [row, ...(app.second ? [set.source] : []), ...(about.labels ? [app.labelOf(row, data)] : []), ...names().map((name) => set.models[0].scores[name][row]), ...values];
  };

  /** Text that a spreadsheet would take for a formula is made text. */
  const quoted = (value) => {
    if (typeof value === "number") return Number.isNaN(value) ? "" : String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = () => [headings(), ...rows.map(cells)].map((line) => line.map(quoted).join(",")).join("\n") + "\n";

  const reasons = () => [state.lasso && "inside the lasso", state.label !== null && about.label_names && `with label ${about.label_names[state.label]}`,
    state.brush && "inside the brush of the histogram", state.threshold !== null && "above the threshold"].filter(Boolean);

  const show = () => {
    const why = reasons();
    app.maps.forEach((each, number) => each.mark({ polygon: state.lasso?.map === number ? state.lasso.polygon : null }));
    if (state.tab !== "selection") return;
    rows = why.length ? ["main", "second"].flatMap((data) => app.highlighted(data).map((row) => [row, data])) : [];
    count.textContent = why.length ? `${rows.length} rows ${why.join(", ")}` : "Choose “lasso” above the map and draw around points; or brush the histogram, or set a threshold in Scores.";
    tools.hidden = !why.length;
    save.disabled = !rows.length;
    images.replaceChildren(...(about.kind === "image" ? rows.slice(0, THUMBNAILS).map(([row, data]) => rowButton(app, row, data)) : []));
    const head = el("tr", {}, ...headings(nameOfScore).map((name) => el("th", { scope: "col" }, name)));
    const body = rows.slice(0, SHOWN).map(([row, data]) => {
      const select = () => change({ row, data, missing: [] });
      const line = el("tr", { tabIndex: 0, onclick: select, onkeydown: (event) => event.key === "Enter" && select() });
      line.append(...cells([row, data]).map((value) => el("td", {}, typeof value === "number" ? short(value) : value)));
      return line;
    });
    content.replaceChildren(...(rows.length ? [el("table", { className: "selected", "aria-label": "Selected rows" }, el("thead", {}, head), el("tbody", {}, ...body))] : []));
    if (rows.length > SHOWN) content.append(el("p", { className: "hint" }, `the first ${SHOWN}; the CSV has all`));
  };
  onChange(["lasso", "axes", "sliders", "brush", "threshold", "score", "scoreModel", "label", "tab"], show);
  return { show };
}
