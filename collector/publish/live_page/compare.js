// Two runs side by side: the selected one beside another one of the store, as `rankscope compare` prints them.

import { Refused, Unreachable, readJson } from "./client.js";
import { at, element, fill, ms, number, percent, say, span, times } from "./dom.js";

const SIDES = [
  ["steps", ({ steps, first_step: first, last_step: last }) => `${number(steps)} from ${first} to ${last}`],
  ["ranks", (side) => number(side.world_size)],
  ["nodes", (side) => number(side.nodes)],
  ["steps a second", (side) => number(side.steps_per_s, 3)],
  ["samples a second and rank", (side) => number(side.samples_per_s, 1)],
  ["tokens a second and rank", (side) => number(side.tokens_per_s, 0)],
  ["MFU", (side) => percent(side.mfu_ratio)],
  ["goodput", (side) => percent(side.goodput_ratio)],
  ["incidents", (side) => number(side.incidents.length)],
];

const stepTime = ({ name, a_ns: a, b_ns: b, ratio, ratio_low: low, ratio_high: high }) => [
  `step time, ${name}, ms`,
  ms(a),
  ms(b),
  `${times(ratio)} times (${times(low)} to ${times(high)})`,
];

const part = ({ name, a_ns: a, b_ns: b, difference_ns: difference, share }) => [
  `part of the step: ${name}, ms`,
  ms(a),
  ms(b),
  `${difference < 0 ? "-" : "+"}${span(Math.abs(difference))}${share === null ? "" : `, ${percent(share)} of the difference`}`,
];

/** Return the rows of the table: text of the quantity, of A, of B, and how they differ. */
export const rowsOf = (found) => [
  ...found.step_times.map(stepTime),
  ...(found.uses.length ? found.uses : found.phases).map(part),
  ...SIDES.map(([name, of]) => [name, of(found.a), of(found.b), ""]),
];

const notesOf = (found) => [
  ...found.unequal.map((one) => `Unequal work: ${one}.`),
  ...(found.nodes_new.length ? [`New nodes: ${found.nodes_new.join(", ")}.`] : []),
  ...found.versions_changed.map((one) => `Changed: ${one}.`),
  ...found.notes.map((one) => `${one}.`),
];

const show = (found) => {
  say(at("compared-a"), found.a.run_id);
  say(at("compared-b"), found.b.run_id);
  say(at("compare-said"), found.verdict);
  fill(
    at("compared"),
    rowsOf(found).map((cells) => ({ cells, right: [1, 2] })),
  );
  at("compare-notes").replaceChildren(...notesOf(found).map((one) => element("li", {}, one)));
  at("compared-shown").hidden = false;
};

/** Offer these runs for a comparison, the selected one left out; others of the store can be typed in. */
export const offerRuns = (runs, selected) => {
  const ids = runs.map((one) => one.run_id).filter((id) => id !== selected);
  const list = at("compare-runs");
  if (list.dataset.ids === ids.join(" ")) return;
  list.dataset.ids = ids.join(" ");
  list.replaceChildren(...ids.map((id) => element("option", { value: id })));
  const alone = "This collector knows no other run; one that it keeps in a store can be named.";
  if (!ids.length || at("compare-said").textContent === "") say(at("compare-said"), ids.length ? "" : alone);
};

/** Hide what was compared with another run. */
export const clearComparison = () => {
  at("compared-shown").hidden = true;
  say(at("compare-said"), "");
};

/** Compare the run that `selected()` returns with the one of the form, when it is submitted; `onRefused` gets a 401. */
export const startComparing = (selected, onRefused) =>
  at("compare").addEventListener("submit", async (event) => {
    event.preventDefault();
    const run = selected();
    clearComparison();
    say(at("compare-said"), "Comparing; long runs take some seconds.");
    const asked = new URLSearchParams({ a: at("compare-with").value.trim(), b: run });
    if (at("compare-force").checked) asked.set("force", "yes");
    try {
      const found = await readJson(`compare?${asked}`);
      if (run === selected()) show(found);
    } catch (error) {
      if (!(error instanceof Refused || error instanceof Unreachable)) throw error;
      if (error.status === 401) onRefused();
      if (run === selected()) say(at("compare-said"), error.message);
    }
  });
