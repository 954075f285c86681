// The texts beside a drawing. Their room is measured: what a canvas paints outside of itself is cut without a word.

import { color, span } from "./dom.js";

const LEFT_MIN = 62; // so that most charts begin at the same place
const BESIDE = 6; // from a text to the drawing
const GAP = 8; // between two texts

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

/** Draw faint lines at round durations between `top` and `bottom`, where 0 is, and write each on the left. */
export const writeLevels = (pen, mostNs, left, right, top, bottom) => {
  for (const level of levelsUpTo(mostNs)) {
    const y = bottom - (level / mostNs) * (bottom - top);
    pen.fillStyle = color("line");
    if (level) pen.fillRect(left, y, right - left, 1);
    pen.fillStyle = color("faint");
    writeBefore(pen, level ? span(level) : "0", left - 4, level ? Math.max(y + 4, top + 4) : bottom);
  }
};
