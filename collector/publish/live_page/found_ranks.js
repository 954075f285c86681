// The ranks of open findings in the heat map: outlines on the canvas, and beside it a list of links.

import { color, element, number, times } from "./dom.js";

const SHOWN_MAX = 12; // findings with a label; the list of findings has them all
const OUTLINES_MAX = 64;
const TALL_MIN = 9; // pixels: the line of one rank among thousands stays visible inside its outline
const LABEL_PX = 22;

/** Join ascending rows to ranges [first, end). */
export const toRanges = (rows) => {
  const ranges = [];
  for (const row of rows) {
    if (ranges.length && ranges.at(-1)[1] === row) ranges.at(-1)[1] = row + 1;
    else ranges.push([row, row + 1]);
  }
  return ranges;
};

/** Name ranks as `rank 7`, `ranks 8-15` or `ranks 3, 9 and 6 more`. */
export const nameRanks = (ranks) => {
  if (ranks.length === 1) return `rank ${ranks[0]}`;
  const ranges = toRanges([...ranks].sort((a, b) => a - b));
  const named = ranges.slice(0, 2).map(([first, end]) => (end - first === 1 ? `${first}` : `${first}-${end - 1}`));
  const left = ranges.slice(2).reduce((sum, [first, end]) => sum + end - first, 0);
  return `ranks ${named.join(", ")}${left ? ` and ${number(left)} more` : ""}`;
};

/** Return the first column of a finding: that of the step with which it began, else the first one of all. */
const columnOf = (finding, columns) => {
  const found = columns.findIndex(({ step }) => step !== null && step >= (finding.since_step ?? 0));
  return columns[0].step === null ? 0 : found;
};

/** Return where the findings about ranks are in a map: ranges of rows, and the column where each begins. A finding
 * about half of the ranks or more outlines nothing: it is about the run. */
export const place = (findings, map) => {
  if (map === null || !map.columns.length) return [];
  const rowOf = new Map(map.ranks.map((rank, row) => [rank, row]));
  return findings.flatMap((finding) => {
    const rows = finding.ranks.flatMap((rank) => rowOf.get(rank) ?? []).sort((a, b) => a - b);
    const column = columnOf(finding, map.columns);
    const isAboutTheRun = rows.length > 1 && 2 * rows.length >= map.ranks.length;
    return rows.length && column >= 0 && !isAboutTheRun ? [{ finding, ranges: toRanges(rows), column }] : [];
  });
};

/** Outline the placed findings. `toY(row)` is where a row begins, `toX(column)` a column, in pixels. */
export const outlineFound = (pen, placed, { toX, toY, right, bottom }) => {
  let left = OUTLINES_MAX;
  for (const { ranges, column } of placed) {
    for (const [first, end] of ranges.slice(0, left)) {
      const middle = (toY(first) + toY(end)) / 2;
      const tall = Math.max(TALL_MIN, toY(end) - toY(first) + 4);
      if (toY(end) <= 0 || toY(first) >= bottom) continue;
      const box = [toX(column) + 1, middle - tall / 2, right - toX(column) - 2, tall];
      for (const [name, wide] of [
        ["paper", 4],
        ["mark", 2],
      ]) {
        Object.assign(pen, { strokeStyle: color(name), lineWidth: wide });
        pen.strokeRect(...box);
      }
    }
    left = Math.max(0, left - ranges.length);
  }
};

const labelOf = ({ finding }, run) => {
  const { ranks, slowdown_ratio: ratio, cause } = finding;
  const words = `${nameRanks(ranks)}${ratio === null ? "" : ` ${times(ratio)}x`}`;
  const address = `#run=${encodeURIComponent(run)}&rank=${ranks[0]}`;
  const title = `${words}, ${cause}: show rank ${ranks[0]} beside its peers`;
  return element("a", { href: address, title, "aria-label": title }, words);
};

/** Show a link beside the outline of each placed finding; those that would overlap are moved down. */
export const labelFound = (list, placed, run, { toY, bottom }) => {
  const seen = placed.flatMap((one) => {
    const range = one.ranges.find(([first, end]) => toY(end) > 0 && toY(first) < bottom);
    return range === undefined ? [] : [{ one, y: (toY(range[0]) + toY(range[1])) / 2 - LABEL_PX / 2 }];
  });
  seen.sort((a, b) => a.y - b.y);
  const shown = seen.slice(0, Math.min(SHOWN_MAX, Math.max(1, Math.floor(bottom / LABEL_PX))));
  const facts = shown.map(({ one: { finding } }) => [finding.number, finding.slowdown_ratio, finding.ranks]);
  const said = JSON.stringify([run, facts]);
  if (list.dataset.said !== said) {
    list.dataset.said = said;
    list.replaceChildren(...shown.map(({ one }) => element("li", {}, labelOf(one, run))));
  }
  let least = 0;
  shown.forEach(({ y }, place_) => {
    const room = bottom - (shown.length - place_) * LABEL_PX;
    const top = Math.max(least, Math.min(y, room));
    list.children[place_].style.top = `${top}px`;
    least = top + LABEL_PX;
  });
  list.hidden = !shown.length;
};
