// The texts beside a drawing. Their room is measured: what a canvas paints outside of itself is cut without a word.

import { colour } from "./dom.js";

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
  pen.fillStyle = colour("faint");
  writeBefore(pen, last, right, y);
  const [wide, wideLast] = [first, last].map((text) => pen.measureText(text).width);
  if (left + wide + GAP <= right - wideLast) pen.fillText(first, left, y);
};
