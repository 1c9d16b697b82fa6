// Answers of a running explorer: every question goes to the server that sent the page.

import { unpacked } from "./arrays.js";

async function answered(response) {
  let body;
  try {
    body = await response.json();
  } catch {
    throw new Error(`the explorer gave no answer (status ${response.status})`);
  }
  if (!response.ok) throw new Error(body.error ?? `status ${response.status}`);
  return unpacked(body);
}

async function asked(path, options) {
  try {
    return await answered(await fetch(path, options));
  } catch (problem) {
    if (problem instanceof TypeError) throw new Error("the explorer does not answer; is `marquis explore` still running?");
    throw problem;
  }
}

const ask = (path, question, signal) =>
  asked(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question), signal });

export const answersFromServer = {
  saved: false,
  about: () => asked("/api/about"),
  second: () => asked("/api/second"),
  sheet: (data, number) => `/api/sheet/${data}/${number}`,
  decode: (model, code, signal) => ask("/api/decode", { model, code }, signal),
  background: async (model, quantity, plane, box, size, signal) =>
    (await ask("/api/background", { model, quantity, ...plane, box, size }, signal)).values,
  explain: (model, row, data, score, signal) => ask("/api/explain", { model, row, data, score }, signal),
  order: (model, row, signal) => ask("/api/order", { model, row }, signal),
  path: (model, start, end, signal) => ask("/api/path", { model, start, end }, signal),
  impute: (model, row, data, missing, signal) => ask("/api/impute", { model, row, data, missing }, signal),
  upload(file) {
    const body = new FormData();
    body.append("file", file);
    return asked("/api/second", { method: "POST", body });
  },
};
