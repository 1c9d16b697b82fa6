// What is shown. The address carries it, so that a copied link shows the same view.

const DEFAULTS = {
  colour: "label", background: "none", axes: null, sliders: {}, views: [null, null], row: null, data: "main",
  score: "combined", threshold: null, brush: null, lasso: null, ends: [], missing: [], mode: "look", tab: "here", theme: "auto",
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
    return Object.fromEntries(Object.entries(held).filter(([name]) => name in DEFAULTS));
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
