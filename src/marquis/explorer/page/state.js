// What is shown. The address carries it, so that a copied link shows the same view.

export const TABS = ["decode", "point", "scores", "missing", "path", "selection"];
export const MODES = ["inspect", "lasso", "path"];

const DEFAULTS = {
  colour: "label", background: "std", axes: null, sliders: {}, views: [null, null], row: null, data: "main", label: null,
  score: "combined", scoreModel: 0, threshold: null, brush: null, lasso: null, ends: [], missing: [], mode: "inspect", tab: "decode", theme: "auto",
};

const text = (value) => typeof value === "string";
const finite = (value) => Number.isFinite(value);
const whole = (value) => Number.isInteger(value) && value >= 0;
const orNull = (valid) => (value) => value === null || valid(value);
const listOf = (valid, length) => (value) => Array.isArray(value) && value.every(valid) && (!length || value.length === length);
const oneOf = (...choices) => (value) => choices.includes(value);
const pair = listOf(finite, 2);

/** What an address may hold: anything else is left out, and the page shows its beginning. */
const VALID = {
  colour: text, background: text, score: text, theme: oneOf("auto", "light", "dark"), data: oneOf("main", "second"),
  tab: oneOf(...TABS), mode: oneOf(...MODES), scoreModel: oneOf(0, 1),
  axes: orNull(listOf((axis) => /^[zp]\d+$/.test(axis), 2)),
  sliders: (value) => value !== null && typeof value === "object" && Object.values(value).every(finite),
  views: listOf(orNull((view) => [view.a, view.b, view.k].every(finite) && view.k > 0), 2),
  row: orNull(whole), label: orNull(whole), threshold: orNull(finite), brush: orNull(pair),
  lasso: orNull((lasso) => oneOf(0, 1)(lasso.map) && listOf(pair)(lasso.polygon)),
  ends: (value) => listOf(listOf(listOf(finite)))(value) && value.length <= 2, missing: listOf(whole),
};

export const state = { ...DEFAULTS, ...fromAddress() };
const watchers = [];

/** Call `watch(changed)` with the set of changed names after every change of one of `names`. */
export function onChange(names, watch) {
  watchers.push([new Set(names), watch]);
}

/** Change the state, tell those who watch, and write the address. */
export function change(changes) {
  const changed = new Set(Object.keys(changes).filter((name) => !same(state[name], changes[name])));
  Object.assign(state, changes);
  for (const [names, watch] of watchers) if ([...changed].some((name) => names.has(name))) watch(changed);
  if (changed.size) writeSoon();
}

const same = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);

function fromAddress() {
  try {
    const held = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
    return Object.fromEntries(Object.entries(held).filter(([name, value]) => Object.hasOwn(VALID, name) && VALID[name](value)));
  } catch {
    return {}; // an address that was cut short shows the page from its beginning
  }
}

let writing = 0;
function writeSoon() {
  clearTimeout(writing);
  writing = setTimeout(writeAddress, 150);
}

/** Write the state into the address now. */
export function writeAddress() {
  clearTimeout(writing);
  const kept = Object.entries(state).filter(([name, value]) => !same(value, DEFAULTS[name]));
  const hash = kept.length ? `#${encodeURIComponent(JSON.stringify(Object.fromEntries(kept)))}` : "";
  history.replaceState(null, "", location.pathname + location.search + hash);
}

window.addEventListener("hashchange", () => change({ ...DEFAULTS, ...fromAddress() }));
