// The heat map, ranks x time: decode /heatmap (format: publish/api/heat_map.py) and draw it.

import { roomFor, writeBefore } from "./axes.js";
import { color, clock, number, prepare, say, times } from "./dom.js";
import { labelFound, nameRanks, outlineFound, place } from "./found_ranks.js";

const EQUAL = 128;
const CELLS_PER_OCTAVE = 32;
const [OCTAVES_BELOW, OCTAVES_ABOVE] = [1, 3]; // of the scale: half as long, 8 times as long
const BELOW = 36; // of steps, and the time of day below them
const [TICK_PX, TICK_GAP] = [150, 8]; // least room for one number of a step, and between two
const PAGE_RANKS = 16;
const [LOW_REM, RANK_REM, TALL_REM] = [9, 2.5, 26]; // a map of few ranks need not be tall
const ROWS_MIN = 8; // least ranks in view when zoomed in

export const ratioOf = (cell) => (cell === 0 ? null : 2 ** ((cell - EQUAL) / CELLS_PER_OCTAVE));

/** The parts of an answer: `columns` and `ranks` say what the bytes of `cells` are of, column after column. */
export const decode = (buffer) => {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const ranks = [];
  for (const [first, last] of head.ranks) for (let rank = first; rank <= last; rank += 1) ranks.push(rank);
  return { ...head, ranks, cells: new Uint8Array(buffer, 4 + length) };
};

const parse = (hex) => [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
const between = (a, b, part) => a.map((one, place) => Math.round(one + (b[place] - one) * part));

/** The color of each cell, as 256 pixels: equal as the page, slower ever hotter and faster ever bluer, to the ends of the scale. */
const buildColors = () => {
  const [unknown, equal, fast, warm, hot, hottest] = ["unknown", "equal", "fast", "warm", "hot", "hottest"].map(
    (name) => parse(color(name)),
  );
  const stops = [
    [0, equal],
    [10, warm],
    [48, hot],
    [OCTAVES_ABOVE * CELLS_PER_OCTAVE, hottest],
  ];
  const pixels = new Uint32Array(256);
  for (let cell = 0; cell < 256; cell += 1) {
    const beyond = cell - EQUAL;
    let found = hottest;
    if (cell === 0) found = unknown;
    else if (beyond <= 0) found = between(equal, fast, Math.min(1, -beyond / (OCTAVES_BELOW * CELLS_PER_OCTAVE)));
    else {
      const next = stops.findIndex(([at]) => at >= beyond);
      if (next > 0)
        found = between(
          stops[next - 1][1],
          stops[next][1],
          (beyond - stops[next - 1][0]) / (stops[next][0] - stops[next - 1][0]),
        );
    }
    pixels[cell] = (255 << 24) | (found[2] << 16) | (found[1] << 8) | found[0];
  }
  return pixels;
};

/** What is written below a column, and how far above the lower edge. */
const linesOf = ({ step, end_wall_s: wallS }) => [
  ...(step === null ? [] : [[`step ${number(step)}`, 20]]),
  ...(wallS === null ? [] : [[clock(wallS), 5]]),
];

/** The legend: the cells of the scale between its ends, which are named beside it. */
export const drawScale = (canvas, least, most) => {
  say(least, `${2 ** -OCTAVES_BELOW}x or less`);
  say(most, `${2 ** OCTAVES_ABOVE}x its peers or more`);
  const { pen, width, height } = prepare(canvas);
  const first = EQUAL - OCTAVES_BELOW * CELLS_PER_OCTAVE;
  const pixels = new ImageData((OCTAVES_BELOW + OCTAVES_ABOVE) * CELLS_PER_OCTAVE, 1);
  new Uint32Array(pixels.data.buffer).set(buildColors().subarray(first, first + pixels.width));
  paint(pen, toImage(pixels), 0, 0, width, height);
};

const toImage = (pixels) => {
  const image = new OffscreenCanvas(pixels.width, pixels.height);
  image.getContext("2d").putImageData(pixels, 0, 0);
  return image;
};

const paint = (pen, image, x, y, width, height) => {
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, x, y, width, height);
};

/** The heat map on a canvas. `onRead(text)` gets a text for the cell under the cursor, `onPick(rank)` the chosen rank,
 * `onView(first, last)` which ranks are in view when that changes by itself or by a key. `found` is the list beside it
 * that links to the ranks of open findings. */
export class HeatMap {
  constructor(canvas, { found, onRead, onPick, onView }) {
    Object.assign(this, {
      canvas,
      list: found,
      onRead,
      onPick,
      onView,
      map: null,
      left: 0,
      findings: [],
      placed: [],
      view: null,
      cursor: null,
      kept: null,
      colors: buildColors(),
    });
    canvas.addEventListener("pointermove", (event) => this.moveTo(this.cellAt(event)));
    canvas.addEventListener("click", (event) => this.pick(this.cellAt(event)));
    canvas.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** Show a decoded answer; the ranks in view and the cursor stay where they are as far as they can. */
  show(map) {
    const isOther =
      this.map === null || map === null || this.map.run !== map.run || this.map.ranks.length !== map.ranks.length;
    this.map = map;
    if (isOther) {
      [this.view, this.cursor] = [null, null];
      const ranks = map?.ranks ?? [];
      this.canvas.style.height = `${Math.min(TALL_REM, Math.max(LOW_REM, ranks.length * RANK_REM))}rem`;
      if (ranks.length) this.onView(ranks[0], ranks.at(-1));
    }
    if (this.cursor !== null && this.cursor.column >= map.columns.length) this.cursor = null;
    this.setFound(this.findings, this.run);
  }

  /** Outline the ranks of the open findings of a run, by its address. */
  setFound(findings, run) {
    Object.assign(this, { findings, run, placed: place(findings, this.map) });
    this.canvas.setAttribute("aria-label", this.describe());
    this.draw();
  }

  /** The colors of the page have changed. */
  recolor() {
    this.colors = buildColors();
    this.draw();
  }

  /** Return when a step ended, in seconds since 1970; null where the columns do not say. */
  wallOf(step) {
    const columns = this.map?.columns ?? [];
    if (!columns.length || columns[0].step === null || columns[0].step > step) return null;
    return columns.find((one) => one.step >= step && one.end_wall_s !== null)?.end_wall_s ?? null;
  }

  /** Show the ranks whose number is from `first` to `last`; all of them when there is none. */
  setView(first, last) {
    const rows = this.map?.ranks.flatMap((rank, row) => (rank >= first && rank <= last ? [row] : [])) ?? [];
    this.view = rows.length ? [rows[0], rows.at(-1) + 1] : null;
    this.draw();
  }

  rows() {
    return this.view ?? [0, this.map.ranks.length];
  }

  describe() {
    if (this.map === null || !this.map.columns.length) return "Heat map: no data yet.";
    const worst = this.findSlowest();
    const size = `${number(this.map.ranks.length)} ranks by ${number(this.map.columns.length)} ${this.map.source}`;
    const found = this.placed.map(({ finding }) => nameRanks(finding.ranks)).join("; ");
    const outlined = found ? ` Outlined, as they are in open findings: ${found}.` : "";
    const slowest = worst === null ? "" : ` The slowest cell: ${this.read(worst)}.`;
    return `Heat map: ${size}.${slowest}${outlined}`;
  }

  findSlowest() {
    const { cells, ranks } = this.map;
    let best = 0;
    for (let place = 1; place < cells.length; place += 1) if (cells[place] > cells[best]) best = place;
    return cells[best] ? { row: best % ranks.length, column: Math.floor(best / ranks.length) } : null;
  }

  /** Move the cursor to the slowest of the last cells of the ranks from `first` to `last`. */
  moveToSlowestOf(first, last) {
    if (this.map === null || !this.map.columns.length) return;
    const { cells, ranks, columns } = this.map;
    const base = (columns.length - 1) * ranks.length;
    const rows = ranks.flatMap((rank, row) => (rank >= first && rank <= last ? [row] : []));
    if (!rows.length) return;
    const row = rows.reduce((best, one) => (cells[base + one] > cells[base + best] ? one : best));
    this.moveTo({ row, column: columns.length - 1 });
    this.onView(ranks[this.rows()[0]], ranks[this.rows()[1] - 1]);
  }

  read({ row, column }) {
    const { cells, ranks, columns } = this.map;
    const ratio = ratioOf(cells[column * ranks.length + row]);
    const { step, end_wall_s: end } = columns[column];
    const when = end === null ? "" : ` at ${clock(end)}`;
    const where = step === null ? `until ${clock(end)}` : `step ${number(step)}${when}`;
    return `rank ${ranks[row]}, ${where}: ${ratio === null ? "unknown" : `${times(ratio)}x its peers'`}`;
  }

  cellAt({ offsetX, offsetY }) {
    if (this.map === null || !this.map.columns.length) return null;
    const { width, height } = this.canvas.getBoundingClientRect();
    const [first, end] = this.rows();
    const column = Math.floor(((offsetX - this.left) / (width - this.left)) * this.map.columns.length);
    const row = first + Math.floor((offsetY / (height - BELOW)) * (end - first));
    if (column < 0 || column >= this.map.columns.length || row < first || row >= end) return null;
    return { row: this.worstRowNear(row, column, (end - first) / (height - BELOW)), column };
  }

  /** Return the slowest of the ranks that share a line, which is the one drawn there. */
  worstRowNear(row, column, rowsPerPixel) {
    const { cells, ranks } = this.map;
    let best = row;
    const end = Math.min(ranks.length, row + Math.max(1, Math.ceil(rowsPerPixel)));
    for (let one = row; one < end; one += 1) {
      if (cells[column * ranks.length + one] > cells[column * ranks.length + best]) best = one;
    }
    return best;
  }

  moveTo(cell) {
    this.cursor = cell;
    this.onRead(cell === null ? "" : this.read(cell));
    this.draw();
  }

  pick(cell) {
    if (cell !== null) this.onPick(this.map.ranks[cell.row]);
  }

  press(event) {
    if (this.map === null || !this.map.columns.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowUp: () => this.walk(-1, 0),
      ArrowDown: () => this.walk(1, 0),
      ArrowLeft: () => this.walk(0, -1),
      ArrowRight: () => this.walk(0, 1),
      PageUp: () => this.walk(-PAGE_RANKS, 0),
      PageDown: () => this.walk(PAGE_RANKS, 0),
      Home: () => this.walk(0, -Infinity),
      End: () => this.walk(0, Infinity),
      Enter: () => this.pick(this.cursor),
      s: () => this.goToSlowest(),
      S: () => this.goToSlowest(),
      "+": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.setView(0, Infinity),
    }[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
    this.onView(this.map.ranks[this.rows()[0]], this.map.ranks[this.rows()[1] - 1]);
  }

  walk(down, right) {
    const last = { row: this.map.ranks.length - 1, column: this.map.columns.length - 1 };
    const from = this.cursor ?? { row: this.rows()[0] - Math.sign(down), column: last.column - right };
    const clamp = (value, most) => Math.min(Math.max(value, 0), most);
    this.moveTo({ row: clamp(from.row + down, last.row), column: clamp(from.column + right, last.column) });
    this.follow();
  }

  goToSlowest() {
    const found = this.findSlowest();
    if (found === null) return;
    this.moveTo(found);
    this.follow();
  }

  /** Keep the cursor in view. */
  follow() {
    const [first, end] = this.rows();
    const { row } = this.cursor;
    if (row >= first && row < end) return;
    const start = row < first ? row : row - (end - first) + 1;
    this.view = [start, start + end - first];
    this.draw();
  }

  zoom(factor) {
    const [first, end] = this.rows();
    const all = this.map.ranks.length;
    const size = Math.min(all, Math.max(Math.min(ROWS_MIN, all), Math.round((end - first) * factor)));
    const middle = this.cursor?.row ?? (first + end) / 2;
    const start = Math.min(Math.max(0, Math.round(middle - size / 2)), all - size);
    this.view = size === all ? null : [start, start + size];
    this.draw();
  }

  draw() {
    const { pen, width, height } = prepare(this.canvas);
    pen.fillStyle = color("faint");
    if (this.map === null || !this.map.columns.length) {
      this.list.hidden = true;
      pen.fillText("No data yet: ranks appear once", this.left, 20);
      pen.fillText("their steps can be compared.", this.left, 36);
      return;
    }
    const [first, end] = this.rows();
    this.left = roomFor(pen, [number(this.map.ranks[end - 1])]);
    const lines = Math.min(end - first, Math.max(1, Math.round((height - BELOW) * (window.devicePixelRatio || 1))));
    paint(pen, this.imageOf(first, end, lines), this.left, 0, width - this.left, height - BELOW);
    this.label(pen, width, height);
    this.markFound(pen, width, height);
    if (this.cursor !== null) this.outline(pen, width, height);
  }

  /** Return the image of these ranks, cached while only the cursor moves. */
  imageOf(...asked) {
    const key = [this.map, this.colors, ...asked];
    if (!this.kept?.key.every((one, place) => one === key[place]))
      this.kept = { key, image: toImage(this.reduce(...asked)) };
    return this.kept.image;
  }

  /** So many lines of pixels, each the slowest of the ranks that share it. */
  reduce(first, end, lines) {
    const { cells, ranks, columns } = this.map;
    const pixels = new ImageData(columns.length, lines);
    const painted = new Uint32Array(pixels.data.buffer);
    for (let column = 0; column < columns.length; column += 1) {
      const base = column * ranks.length;
      for (let line = 0; line < lines; line += 1) {
        const to = first + Math.floor(((line + 1) * (end - first)) / lines);
        let most = 0;
        for (let row = first + Math.floor((line * (end - first)) / lines); row < to; row += 1) {
          if (cells[base + row] > most) most = cells[base + row];
        }
        painted[line * columns.length + column] = this.colors[most];
      }
    }
    return pixels;
  }

  label(pen, width, height) {
    const [first, end] = this.rows();
    const { ranks, columns } = this.map;
    const { left } = this;
    const parts = Math.min(4, end - first);
    for (let part = 0; part < parts; part += 1) {
      const row = first + Math.floor((part * (end - first)) / parts);
      writeBefore(pen, number(ranks[row]), left - 6, ((row - first) / (end - first)) * (height - BELOW) + 11);
    }
    const latest = Math.max(...columns.map(({ step }) => step ?? 0)); // after a restart the last one may be earlier
    const ends = columns.map(({ end_wall_s: wallS }) => wallS).filter((wallS) => wallS !== null);
    const texts = [`step ${number(latest)}`, ...(ends.length ? [clock(Math.min(...ends))] : [])];
    const widest = Math.max(...texts.map((text) => pen.measureText(text).width));
    const tickPx = Math.max(TICK_PX, 2 * widest + TICK_GAP); // the last one is written to its left
    const ticks = Math.max(2, Math.min(columns.length, Math.floor((width - left) / tickPx)));
    const wide = (width - left) / columns.length;
    for (let tick = 0; tick < Math.min(ticks, columns.length); tick += 1) {
      const column = Math.round((tick * (columns.length - 1)) / (ticks - 1));
      const isLast = tick === ticks - 1;
      const x = left + column * wide + (isLast ? wide : 0);
      pen.textAlign = isLast ? "right" : "left";
      pen.fillRect(isLast ? width - 1 : x, height - BELOW, 1, 4);
      for (const [text, above] of linesOf(columns[column])) pen.fillText(text, x, height - above);
    }
  }

  /** Outline the ranks of open findings, and place their links beside the canvas. */
  markFound(pen, width, height) {
    const [first, end] = this.rows();
    const bottom = height - BELOW;
    const tall = bottom / (end - first);
    const wide = (width - this.left) / this.map.columns.length;
    const toY = (row) => (row - first) * tall;
    const scale = { toX: (column) => this.left + column * wide, toY, right: width, bottom };
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, width - this.left, bottom);
    pen.clip();
    outlineFound(pen, this.placed, scale);
    pen.restore();
    const key = [this.placed, this.run, first, end, bottom];
    if (this.labeled?.every((one, at) => one === key[at])) return;
    this.labeled = key;
    labelFound(this.list, this.placed, this.run, scale);
  }

  outline(pen, width, height) {
    const [first, end] = this.rows();
    const wide = (width - this.left) / this.map.columns.length;
    const tall = (height - BELOW) / (end - first);
    const y = (this.cursor.row - first) * tall;
    pen.strokeStyle = color("ink");
    pen.lineWidth = 2;
    pen.strokeRect(this.left + this.cursor.column * wide, y - Math.max(0, 6 - tall) / 2, wide, Math.max(6, tall));
  }
}
