// The panel "Selection": rows inside the lasso as a table, and as CSV.

import { short } from "./arrays.js";
import { byId, download, el } from "./dom.js";
import { valuesOf } from "./point.js";
import { change, onChange, state } from "./state.js";

const SHOWN = 100;

export function selectionPanel(app) {
  const count = el("p", { id: "selection-count" }), content = el("div", { className: "scroll" });
  const save = el("button", { type: "button", id: "csv", onclick: () => download(new Blob([csv()], { type: "text/csv" }), "selection.csv") }, "save as CSV");
  const clear = el("button", { type: "button", onclick: () => change({ lasso: null }) }, "clear");
  byId("selection").append(count, el("div", { className: "row" }, save, clear), content);
  let rows = [];

  const headings = () => ["row", ...(app.about.labels ? ["label"] : []), ...Object.keys(app.about.models[0].scores), ...(app.about.columns ?? [])];
  const cells = (row) => [row, ...(app.about.labels ? [app.labelOf(row)] : []),
    ...Object.values(app.about.models[0].scores).map((values) => values[row]), ...valuesOf(app, row)];

  /** Text that a spreadsheet would take for a formula is made text. */
  const quoted = (value) => {
    if (typeof value === "number") return Number.isNaN(value) ? "" : String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = () => [headings(), ...rows.map(cells)].map((line) => line.map(quoted).join(",")).join("\n") + "\n";

  const show = () => {
    const { lasso } = state, map = lasso && app.maps[lasso.map];
    rows = map && lasso.polygon.length > 2 ? map.rowsIn(lasso.polygon) : [];
    app.maps.forEach((each, number) => each.mark({ polygon: lasso?.map === number ? lasso.polygon : null }));
    count.textContent = lasso ? `${rows.length} rows selected` : "Choose the mode “lasso” and draw around points.";
    save.disabled = !rows.length;
    const head = el("tr", {}, ...headings().map((name) => el("th", { scope: "col" }, name)));
    const body = rows.slice(0, SHOWN).map((row) => {
      const line = el("tr", { tabIndex: 0, onclick: () => change({ row, data: "main" }), onkeydown: (event) => event.key === "Enter" && change({ row, data: "main" }) });
      line.append(...cells(row).map((value) => el("td", {}, typeof value === "number" ? short(value) : value)));
      return line;
    });
    content.replaceChildren(...(rows.length ? [el("table", { "aria-label": "Selected rows" }, el("thead", {}, head), el("tbody", {}, ...body))] : []));
    if (rows.length > SHOWN) content.append(el("p", { className: "hint" }, `the first ${SHOWN}; the CSV has all`));
    app.selected = lasso ? new Set(rows) : null;
    app.recolour();
  };
  onChange(["lasso", "axes", "sliders"], show);
  return { show };
}
