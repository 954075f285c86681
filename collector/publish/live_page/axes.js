// The texts beside a drawing, and the begins of findings on it. The room of a text is measured: what a canvas paints
// outside of itself is cut without a word.

import { color, span } from "./dom.js";

const LEFT_MIN = 62; // so that most charts begin at the same place
const BESIDE = 6; // from a text to the drawing
const BESIDE_LEVEL = 4;
const GAP = 8; // between two texts
const TEXT_PX = 10; // from the upper edge to a base line, so that figures are whole
const TICK = 4;

/** What the heads of events take at the upper edge, in CSS pixels. */
export const HEAD = 14;

/** Return the room on the left of a drawing for these texts, in CSS pixels. */
export const roomFor = (pen, texts) =>
  Math.ceil(Math.max(LEFT_MIN, ...texts.map((text) => pen.measureText(text).width + BESIDE)));

/** Write a text that ends at `right`. */
export const writeBefore = (pen, text, right, y) => {
  pen.textAlign = "right";
  pen.fillText(text, right, y);
  pen.textAlign = "left";
};

/** Write texts at both ends of a line; the first one only where it does not meet the other. */
export const writeEnds = (pen, [first, last], left, right, y) => {
  pen.fillStyle = color("faint");
  writeBefore(pen, last, right, y);
  const [wide, wideLast] = [first, last].map((text) => pen.measureText(text).width);
  if (left + wide + GAP <= right - wideLast) pen.fillText(first, left, y);
};

const STEPS = [1, 2, 5, 10];
const LEVELS_MAX = 5;

/** Return round numbers from 0 up to `most`, at most LEVELS_MAX of them above 0. */
export const levelsUpTo = (most) => {
  const power = 10 ** Math.floor(Math.log10(most / LEVELS_MAX));
  const step = power * STEPS.find((one) => most / (one * power) <= LEVELS_MAX);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, place) => place * step);
};

const writeLevel = (pen, text, left, y, top, bottom) => {
  pen.fillStyle = color("faint");
  writeBefore(pen, text, left - BESIDE_LEVEL, Math.min(bottom, Math.max(y + 4, top + 4, TEXT_PX)));
};

/** Draw faint lines at round durations between `top` and `bottom`, where 0 is, and write each on the left. */
export const writeLevels = (pen, mostNs, left, right, top, bottom) => {
  for (const level of levelsUpTo(mostNs)) {
    const y = bottom - (level / mostNs) * (bottom - top);
    pen.fillStyle = color("line");
    if (level) pen.fillRect(left, y, right - left, 1);
    writeLevel(pen, level ? span(level) : "0", left, level ? y : bottom, top, bottom);
  }
};

const SHARES = [0, 0.25, 0.5, 0.75, 1];

/** Write shares of the height above `bottom` on the left, each with a tick. */
export const writeShares = (pen, left, bottom) => {
  for (const share of SHARES) {
    const y = (1 - share) * bottom;
    pen.fillStyle = color("faint");
    pen.fillRect(left - TICK, Math.min(bottom - 1, y), TICK, 1);
    writeLevel(pen, `${100 * share} %`, left - TICK, y, 0, bottom);
  }
};

/** Mark at `x` where a finding begins: a full head at the upper edge, and a line down to `bottom`. */
export const markBegin = (pen, x, bottom) => {
  for (const [name, wide] of [
    ["paper", 4],
    ["event-finding", 2],
  ]) {
    Object.assign(pen, { strokeStyle: color(name), fillStyle: color(name), lineWidth: wide });
    pen.beginPath();
    pen.moveTo(x, HEAD - 2);
    pen.lineTo(x, bottom);
    pen.stroke();
  }
  drawHead(pen, x);
  pen.fill();
};

/** Draw the outline of the head of an event at the upper edge, HEAD high. */
export const drawHead = (pen, x) => {
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(x - 5, 2);
  pen.lineTo(x + 5, 2);
  pen.lineTo(x, HEAD - 2);
  pen.closePath();
  pen.stroke();
};
