"use strict";
(() => {
  const PARTS = ["compute", "overlap", "communication", "copy"];
  const NAMES = ["compute alone", "overlap", "communication alone", "copy"];
  const NS_PER_MS = 1e6;
  const AXIS_TICKS = 8;

  // -- tables: a click on a head sorts by it; unknown values stay last either way --------------------------------

  const orderOf = (cell) => {
    const number = cell.getAttribute("data-sort");
    if (number !== null) return Number(number);
    return cell.textContent === "-" ? null : cell.textContent;
  };

  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === typeof b) return a < b ? -1 : Number(a > b);
    return typeof a === "number" ? -1 : 1;
  };

  const sortBy = (table, place, head) => {
    const numeric = head.classList.contains("right");
    const before = head.getAttribute("aria-sort");
    const ascending = before === null ? !numeric : before === "descending";
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => ({ row, order: orderOf(row.cells[place]) }));
    rows.sort((a, b) => {
      if (a.order === null || b.order === null) return Number(a.order === null) - Number(b.order === null);
      return ascending ? compare(a.order, b.order) : compare(b.order, a.order);
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...rows.map((one) => one.row));
  };

  for (const table of document.querySelectorAll("table")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sortBy(table, place, head));
    });
  }

  // -- timelines -----------------------------------------------------------------------------------------------------

  const embedded = document.getElementById("timeline-bins");
  if (embedded === null) return;
  const { lanes, shown_max: shownMax, first } = JSON.parse(embedded.textContent);
  const holder = document.getElementById("lanes");
  const noteLine = document.getElementById("note");
  const readout = document.getElementById("readout");
  const picked = document.getElementById("picked");
  const note = noteLine.textContent;
  let drawn = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const endOf = (lane) => lane.start_ns + lane.bin_ns * lane.parts[0].length;
  const ms = (ns) => (ns / NS_PER_MS).toLocaleString("en", { maximumFractionDigits: 3 });

  const prepare = (canvas) => {
    const scale = window.devicePixelRatio || 1;
    const { width, height } = canvas.getBoundingClientRect();
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    // An edge between two pixels would show the background.
    const snap = (at) => Math.round(at * scale) / scale;
    return { pen, width, height, snap };
  };

  const drawLane = (lane, canvas, endNs, at) => {
    const { pen, width, height, snap } = prepare(canvas);
    const count = lane.parts[0].length;
    const perNs = width / endNs;
    pen.fillStyle = colour("idle");
    pen.fillRect(lane.start_ns * perNs, 0, (endOf(lane) - lane.start_ns) * perNs, height);
    const colours = PARTS.map(colour);
    // Bins narrower than a pixel are summed: drawn over each other they would hide each other.
    const step = Math.max(1, Math.ceil(1 / (lane.bin_ns * perNs)));
    for (let bin = 0; bin < count; bin += step) {
      const last = Math.min(bin + step, count);
      const x = snap((lane.start_ns + bin * lane.bin_ns) * perNs);
      const right = snap((lane.start_ns + last * lane.bin_ns) * perNs);
      let top = height;
      lane.parts.forEach((bins, part) => {
        let sum = 0;
        for (let one = bin; one < last; one += 1) sum += bins[one];
        const tall = (height * sum) / (lane.bin_ns * (last - bin));
        pen.fillStyle = colours[part];
        pen.fillRect(x, top - tall, right - x, tall);
        top -= tall;
      });
    }
    if (at === null) return;
    pen.fillStyle = colour("ink");
    pen.fillRect((lane.start_ns + (at + 0.5) * lane.bin_ns) * perNs, 0, 1, height);
  };

  const drawAxis = (canvas, endNs) => {
    const { pen, width } = prepare(canvas);
    const rough = endNs / NS_PER_MS / AXIS_TICKS;
    const power = 10 ** Math.floor(Math.log10(rough));
    const tick = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
    pen.fillStyle = colour("faint");
    pen.font = "12px system-ui, sans-serif";
    for (let at = 0; at * NS_PER_MS <= endNs; at += tick) {
      const x = (at * NS_PER_MS * width) / endNs;
      const text = `${ms(at * NS_PER_MS)} ms`;
      pen.fillRect(Math.min(x, width - 1), 0, 1, 6);
      pen.fillText(text, Math.min(Math.max(x - 10, 0), width - pen.measureText(text).width), 20);
    }
  };

  const describe = (lane, bin) => {
    const spent = lane.parts.map((bins) => bins[bin]);
    const idle = Math.max(0, lane.bin_ns - spent.reduce((a, b) => a + b, 0));
    const share = (ns) => `${((100 * ns) / lane.bin_ns).toFixed(1)} %`;
    const from = lane.start_ns + bin * lane.bin_ns;
    const parts = [...spent, idle].map((ns, part) => `${[...NAMES, "idle"][part]} ${share(ns)}`);
    return `${lane.name}, ${ms(from)} to ${ms(from + lane.bin_ns)} ms: ${parts.join(", ")}`;
  };

  const redraw = () => {
    const endNs = Math.max(1, ...drawn.map((one) => endOf(one.lane)));
    for (const { lane, canvas, at } of drawn) drawLane(lane, canvas, endNs, at);
    drawAxis(holder.lastElementChild.lastElementChild, endNs);
    return endNs;
  };

  const moveTo = (one, bin) => {
    const count = one.lane.parts[0].length;
    one.at = Math.min(Math.max(bin, 0), count - 1);
    const text = describe(one.lane, one.at);
    one.canvas.setAttribute("aria-valuenow", String(one.at));
    one.canvas.setAttribute("aria-valuetext", text);
    readout.textContent = text;
    const endNs = Math.max(1, ...drawn.map((other) => endOf(other.lane)));
    drawLane(one.lane, one.canvas, endNs, one.at);
  };

  const listen = (one) => {
    const { lane, canvas } = one;
    const count = lane.parts[0].length;
    canvas.addEventListener("pointermove", (event) => {
      const endNs = Math.max(1, ...drawn.map((other) => endOf(other.lane)));
      const atNs = (event.offsetX / canvas.clientWidth) * endNs;
      moveTo(one, Math.floor((atNs - lane.start_ns) / lane.bin_ns));
    });
    canvas.addEventListener("keydown", (event) => {
      const page = Math.max(1, Math.round(count / 20));
      const at = one.at === null ? -1 : one.at;
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, PageUp: at + page, PageDown: at - page, Home: 0, End: count - 1 };
      if (!(event.key in to)) return;
      event.preventDefault();
      moveTo(one, to[event.key]);
    });
  };

  const addRow = (name) => {
    const row = document.createElement("div");
    const label = document.createElement("span");
    const canvas = document.createElement("canvas");
    row.className = "lane";
    label.textContent = name;
    label.title = name;
    row.append(label, canvas);
    holder.append(row);
    return canvas;
  };

  const addLane = (lane) => {
    const canvas = addRow(lane.name);
    const attributes = {
      role: "slider", tabindex: "0", "aria-label": `Timeline of ${lane.name}`, "aria-valuemin": "0",
      "aria-valuemax": String(lane.parts[0].length - 1), "aria-valuenow": "0", "aria-valuetext": "not read yet",
    };
    for (const [key, value] of Object.entries(attributes)) canvas.setAttribute(key, value);
    const one = { lane, canvas, at: null };
    listen(one);
    return one;
  };

  const parseRanks = (text) => {
    const spans = text.split(",").map((part) => part.trim()).filter(Boolean).map((part) => /^(\d+)(?:\s*-\s*(\d+))?$/.exec(part));
    if (spans.includes(null)) return null;
    return spans.map((span) => [Number(span[1]), Number(span[2] ?? span[1])]);
  };

  const show = () => {
    const spans = parseRanks(picked.value);
    picked.setAttribute("aria-invalid", String(spans === null));
    if (spans === null) {
      noteLine.textContent = "Ranks are numbers and ranges with commas between them, such as 0-7, 12.";
      return;
    }
    const wanted = lanes.filter((lane) => spans.some(([from, to]) => lane.rank >= from && lane.rank <= to));
    if (wanted.length === 0) {
      noteLine.textContent = `None of the ${lanes.length} ranks is among these.`;
      return;
    }
    holder.replaceChildren();
    drawn = wanted.slice(0, shownMax).map(addLane);
    addRow("").setAttribute("aria-hidden", "true");
    noteLine.textContent = note.replace(/^\d+/, String(drawn.length));
    readout.textContent = "\u00a0";
    redraw();
  };

  picked.value = first;
  picked.addEventListener("change", show);
  window.addEventListener("resize", () => { if (drawn.length > 0) redraw(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  show();
})();
