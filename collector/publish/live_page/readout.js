// Values of a chart under the pointer or, by the arrow keys, under a cursor: with units, as text below the chart.

import { color, prepare, say } from "./dom.js";

/** Reads a chart aloud. `draw(pen, width, height)` draws it and returns `places`, the x of each of its columns in
 * pixels, and `read(column)`, the text of one; null while there is nothing to draw. */
export class Readout {
  constructor(canvas, output, draw) {
    Object.assign(this, { canvas, output, draw, chart: null, column: null });
    canvas.addEventListener("pointermove", ({ offsetX }) => this.moveTo(this.nearest(offsetX)));
    canvas.addEventListener("pointerleave", () => this.moveTo(null));
    canvas.addEventListener("blur", () => this.moveTo(null));
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  /** Draw the chart anew; the cursor stays in its column while there is one. */
  show() {
    const { pen, width, height } = prepare(this.canvas);
    this.chart = this.draw(pen, width, height) ?? null;
    const count = this.chart?.places.length ?? 0;
    if (this.column !== null && this.column >= count) this.column = count ? count - 1 : null;
    if (this.column !== null) {
      pen.fillStyle = color("ink");
      pen.fillRect(this.chart.places[this.column] - 0.5, 0, 1, height);
    }
    say(this.output, this.column === null ? "" : this.chart.read(this.column));
  }

  moveTo(column) {
    if (column === this.column) return;
    this.column = column;
    this.show();
  }

  nearest(x) {
    const places = this.chart?.places ?? [];
    if (!places.length) return null;
    return places.reduce((best, one, column) => (Math.abs(one - x) < Math.abs(places[best] - x) ? column : best), 0);
  }

  press(event) {
    const last = (this.chart?.places.length ?? 0) - 1;
    if (last < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const from = this.column;
    const to = {
      ArrowLeft: from === null ? last : Math.max(0, from - 1),
      ArrowRight: from === null ? 0 : Math.min(last, from + 1),
      Home: 0,
      End: last,
      Escape: null,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.moveTo(to);
  }
}
