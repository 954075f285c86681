// Text, numbers and elements. Data of a run becomes text, never markup.

const NS_PER_MS = 1e6;
const UNKNOWN = "-";

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** Format a number with `digits` decimals; "-" for unknown. */
export const number = (value, digits = 0) =>
  isKnown(value)
    ? value.toLocaleString("en", {
        minimumFractionDigits: digits,
        maximumFractionDigits: digits,
        signDisplay: "negative", // not of what is rounded to 0
      })
    : UNKNOWN;

const SHOWN_NS_MIN = NS_PER_MS / 20; // rounds to 0.1 ms

/** Format nanoseconds as milliseconds with one decimal, without the unit; "<0.1" for less that is not nothing. */
export const ms = (ns) => (ns > 0 && ns < SHOWN_NS_MIN ? "<0.1" : number(isKnown(ns) ? ns / NS_PER_MS : ns, 1));

const NS_PER_S = 1e9;
const ROUNDS_TO_S = NS_PER_S - NS_PER_MS / 20; // 1,000.0 ms is 1.00 s

/** Format nanoseconds with their unit: ms, and from one second on s. */
export const span = (ns) => {
  if (!isKnown(ns)) return UNKNOWN;
  if (Math.abs(ns) < ROUNDS_TO_S) return `${number(ns / NS_PER_MS, ns && Math.abs(ns) < NS_PER_MS ? 2 : 1)} ms`;
  const s = ns / NS_PER_S;
  return `${number(s, Math.abs(s) < 10 ? 2 : Math.abs(s) < 100 ? 1 : 0)} s`;
};

const BYTES_PER_GIB = 2 ** 30;

/** Format bytes in GiB with their unit. */
export const bytes = (value) =>
  isKnown(value) ? `${number(value / BYTES_PER_GIB, value < 10 * BYTES_PER_GIB ? 1 : 0)} GiB` : UNKNOWN;

const TENTHS_MIN = 1.95; // as in the sentences of findings

/** Format a ratio around 1, as 1.07 and 3.4. */
export const times = (ratio) => number(ratio, ratio >= TENTHS_MIN ? 1 : 2);

/** Format a share, 0 to 1, as a percentage. */
export const percent = (share) => (isKnown(share) ? `${number(100 * share, 1)} %` : UNKNOWN);

/** Format seconds since 1970 as date and time of day in UTC, as 2026-03-14 09:26:53: that of logs and the other views. */
export const dateAndClock = (wallS) => new Date(wallS * 1000).toISOString().slice(0, 19).replace("T", " ");

/** Format seconds since 1970 as the time of day in UTC, with its date where that is not today. */
export const clock = (wallS) => {
  const whole = dateAndClock(wallS);
  return whole.slice(0, 10) === new Date().toISOString().slice(0, 10) ? whole.slice(11) : whole;
};

const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];

/** Format a duration in seconds with its largest unit and the next one: 2 d 3 h, 5 min, 40 s. */
export const duration = (seconds) => {
  if (!isKnown(seconds)) return UNKNOWN;
  const whole = Math.floor(seconds);
  const place = UNITS.findIndex(([, size]) => whole >= size);
  if (place < 0) return `${whole} s`;
  const [unit, size] = UNITS[place];
  const [next, nextSize] = UNITS[place + 1] ?? ["s", 1];
  const rest = Math.floor((whole % size) / nextSize);
  return `${Math.floor(whole / size)} ${unit}${rest && next !== "s" ? ` ${rest} ${next}` : ""}`;
};

/** Create an element; attributes whose value is null are omitted, children are elements or text. */
export const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

/** Return the element with this id, which exists. */
export const at = (id) => document.getElementById(id);

/** Set a text only when it changes, so that screen readers do not repeat it. */
export const say = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

/** Set a sentence, only when it changes; what is between backticks is code. */
export const sayWithCode = (node, text) => {
  const parts = text.split("`");
  if (node.textContent !== parts.join(""))
    node.replaceChildren(...parts.map((part, place) => (place % 2 ? element("code", {}, part) : part)));
};

/** Fill the body of a table with rows of cells. A cell is text or an element; the first one is the row's header. */
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

/** Return the current color of a custom property of the page, light or dark. */
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Resize a canvas to its size on the page and return a pen whose unit is a CSS pixel. */
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
