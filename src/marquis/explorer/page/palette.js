// Colours that people with any kind of colour vision can tell apart: a test simulates the three kinds of dichromacy.

// The ten colours of M. A. Petroff, "Accessible color sequences for data visualization" (2021).
const CLASSES = ["#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"];
const SEQUENTIAL = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"].map(channels);
const DIVERGING = ["#2166ac", "#92c5de", "#f7f7f7", "#fdb863", "#b35806"].map(channels);
const GREY = ["#000000", "#ffffff"].map(channels);
const PALETTES = { sequential: SEQUENTIAL, diverging: DIVERGING, grey: GREY };

/** Return [r, g, b] of "#rrggbb". */
export function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

export const classColour = (number) => CLASSES[number % CLASSES.length];

/** Return [r, g, b] of a share from 0 to 1 in a palette: sequential, diverging or grey. */
export function shade(share, name = "sequential") {
  const stops = PALETTES[name];
  const at = Math.min(1, Math.max(0, share || 0)) * (stops.length - 1);
  const left = Math.min(stops.length - 2, Math.floor(at));
  return stops[left].map((low, k) => low + (stops[left + 1][k] - low) * (at - left));
}

export const css = ([r, g, b]) => `rgb(${r | 0} ${g | 0} ${b | 0})`;

/** Return the CSS colour of a 32-bit pixel. */
export const cssOfPixel = (value) => css([value & 255, (value >> 8) & 255, (value >> 16) & 255]);

/** Return a CSS gradient of a palette, for legends. */
export const gradient = (name) => `linear-gradient(90deg, ${PALETTES[name].map(css).join(", ")})`;

/** Return colours of points as 32-bit pixels: `values` are numbers of classes or a scale from low to high. */
export function pointColours(values, classes, low, high) {
  const colours = new Uint32Array(values.length);
  const table = new Uint32Array(256);
  for (let k = 0; k < 256; k++) table[k] = pixel(classes ? channels(classColour(k)) : shade(k / 255));
  const missing = pixel([128, 128, 128]);
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (Number.isNaN(value)) colours[i] = missing;
    else if (classes) colours[i] = table[value & 255];
    else colours[i] = table[Math.min(255, Math.max(0, Math.round((255 * (value - low)) / (high - low || 1))))];
  }
  return colours;
}

/** Return the pixel of a colour, as the little-endian number that image data hold. */
export function pixel([r, g, b], alpha = 255) {
  return ((alpha << 24) | ((b & 255) << 16) | ((g & 255) << 8) | (r & 255)) >>> 0;
}
