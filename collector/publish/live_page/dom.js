// Text, numbers and elements. Whatever comes from a run becomes text, never markup.

const NS_PER_MS = 1e6;
const UNKNOWN = "-";

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** A number with at most so many digits after the point; "-" for what is not known. */
export const number = (value, digits = 0) =>
  isKnown(value)
    ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    : UNKNOWN;

/** Nanoseconds as milliseconds, without the unit. */
export const ms = (ns) => (isKnown(ns) ? number(ns / NS_PER_MS, ns < 100 * NS_PER_MS ? 2 : 1) : UNKNOWN);

/** A ratio around 1. */
export const times = (ratio) => number(ratio, 2);

/** A share of a whole, 0 to 1. */
export const percent = (share) => (isKnown(share) ? `${number(100 * share, 1)} %` : UNKNOWN);

/** A moment, seconds since 1970, as the time of day here. */
export const clock = (wallS) => new Date(wallS * 1000).toLocaleTimeString("en-GB");

/** An element; attributes whose value is null are left out, children are elements or text. */
export const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

/** The element with this id, which the page has. */
export const at = (id) => document.getElementById(id);

/** Set a text, and touch the page only when it changes: what is read aloud is not read again. */
export const say = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

/** Rows of cells as a table's body. A cell is text or an element; `head` makes the first one a row's head. */
export const fill = (table, rows) => {
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, place) => {
    const line = body.rows[place] ?? body.insertRow();
    row.cells.forEach((cell, column) => setCell(line, column, cell, row.right ?? []));
    if (row.current) line.setAttribute("aria-current", "true");
    else line.removeAttribute("aria-current");
  });
};

const setCell = (line, column, content, right) => {
  let cell = line.cells[column];
  if (cell === undefined) {
    cell = element(column === 0 ? "th" : "td", column === 0 ? { scope: "row" } : {});
    if (right.includes(column)) cell.classList.add("right");
    line.append(cell);
  }
  if (typeof content === "string") say(cell, content);
  else if (cell.dataset.key !== content.key) {
    cell.dataset.key = content.key;
    cell.replaceChildren(...content.make());
  }
};

/** The colour of a custom property of the page, as it is now, light or dark. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A canvas as large as it is shown, and a pen whose unit is a CSS pixel. */
export const prepare = (canvas) => {
  const scale = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  const [wide, tall] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== wide || canvas.height !== tall) Object.assign(canvas, { width: wide, height: tall });
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  return { pen, width, height };
};
