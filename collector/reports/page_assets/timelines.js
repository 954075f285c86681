"use strict";
(() => {
  const PARTS = ["compute", "overlap", "communication", "copy", "host"];
  const NAMES = ["compute alone", "overlap", "exposed communication", "copy", "host only", "idle"];
  const [NS_PER_MS, NS_PER_S] = [1e6, 1e9];
  const [TICK_WIDTH_MIN, TICK_GAP] = [90, 6];
  const LANES_TALL_MAX = 16;
  const SVG = "http://www.w3.org/2000/svg";

  const embedded = document.getElementById("timeline-bins");
  if (embedded === null) return;
  const { lanes, waits, shown_max: shownMax, arrows_max: arrowsMax, first } = JSON.parse(embedded.textContent);
  const holder = document.getElementById("lanes");
  const noteLine = document.getElementById("note");
  const readout = document.getElementById("readout");
  const picked = document.getElementById("picked");
  const chosen = document.getElementById("view");
  const note = noteLine.textContent;
  let drawn = [];
  let axis = null;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const ms = (ns) => (ns / NS_PER_MS).toLocaleString("en", { maximumFractionDigits: 3 });
  const seconds = (ns) => (ns / NS_PER_S).toLocaleString("en", { maximumFractionDigits: 6 });
  const endOf = (view) => view.start_ns + Math.max(view.window_ns, 1);

  // The span of time that all lines share: from the first start to the last end of what is drawn.
  const spanOf = (views) => {
    const startNs = chosen.value === "0" ? 0 : Math.min(...views.map((view) => view.start_ns));
    return { startNs, lengthNs: Math.max(1, Math.max(...views.map(endOf)) - startNs) };
  };

  const prepare = (canvas) => {
    const scale = window.devicePixelRatio || 1;
    const { width, height } = canvas.getBoundingClientRect();
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    // An edge between two pixels would show the background.
    const snap = (at) => Math.round(at * scale) / scale;
    const place = (ns) => ((ns - axis.startNs) * width) / axis.lengthNs;
    return { pen, width, height, snap, place };
  };

  const drawLane = ({ lane, view, canvas, at }) => {
    const { pen, width, height, snap, place } = prepare(canvas);
    const { count } = view;
    const endNs = endOf(view);
    pen.fillStyle = color("idle");
    pen.fillRect(place(view.start_ns), 0, place(endNs) - place(view.start_ns), height);
    const colors = PARTS.map(color);
    // Bins narrower than a pixel are summed: drawn over each other they would hide each other.
    const step = Math.max(1, Math.ceil(axis.lengthNs / (view.bin_ns * width)));
    for (let bin = 0; bin < count; bin += step) {
      const last = Math.min(bin + step, count);
      const fromNs = view.start_ns + bin * view.bin_ns;
      const toNs = Math.min(view.start_ns + last * view.bin_ns, endNs);
      const x = snap(place(fromNs));
      let top = height;
      view.parts.forEach((bins, part) => {
        let sum = 0;
        for (let one = bin; one < last; one += 1) sum += bins[one] ?? 0;
        const tall = (height * sum) / Math.max(1, toNs - fromNs);
        pen.fillStyle = colors[part];
        pen.fillRect(x, top - tall, snap(place(toNs)) - x, tall);
        top -= tall;
      });
    }
    pen.fillStyle = color("ink");
    if (chosen.value === "0") for (const [, startNs] of lane.marks) pen.fillRect(place(startNs), 0, 1, height);
    if (at !== null) pen.fillRect(place(view.start_ns + (at + 0.5) * view.bin_ns), 0, 1, height);
  };

  const drawAxis = (canvas) => {
    const { pen, width, place } = prepare(canvas);
    const rough = axis.lengthNs / NS_PER_MS / Math.max(1, Math.floor(width / TICK_WIDTH_MIN));
    const power = 10 ** Math.floor(Math.log10(rough));
    const tickNs = [1, 2, 5, 10].find((one) => one * power >= rough) * power * NS_PER_MS;
    pen.fillStyle = color("faint");
    pen.font = "12px system-ui, sans-serif";
    const endNs = axis.startNs + axis.lengthNs;
    let free = 0; // where the text before has ended
    for (let at = Math.ceil(axis.startNs / tickNs) * tickNs; at <= endNs; at += tickNs) {
      const x = place(at);
      const text = endNs < NS_PER_S ? `${ms(at)} ms` : `${seconds(at)} s`;
      const wide = pen.measureText(text).width;
      const left = Math.min(Math.max(x - 10, 0), width - wide);
      pen.fillRect(Math.min(x, width - 1), 0, 1, 6);
      if (left < free) continue;
      pen.fillText(text, left, 20);
      free = left + wide + TICK_GAP;
    }
  };

  // -- arrows: from where a rank began to wait to where the late one came ------------------------------------------

  const make = (name, attributes) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
    return element;
  };

  const findSeen = () => {
    const rows = new Map(drawn.map((one) => [one.lane.rank, one]));
    const endNs = axis.startNs + axis.lengthNs;
    const seen = waits.filter((one) => rows.has(one.rank) && rows.has(one.late)
      && Math.min(one.start_ns, one.late_ns) >= axis.startNs && Math.max(one.start_ns, one.late_ns) <= endNs);
    return seen.slice(0, arrowsMax).map((one) => ({ ...one, from: rows.get(one.rank), to: rows.get(one.late) }));
  };

  const addArrow = (layer, wait) => {
    const frame = layer.getBoundingClientRect();
    const [from, to] = [wait.from, wait.to].map((one) => one.canvas.getBoundingClientRect());
    const x = (box, ns) => box.left - frame.left + ((ns - axis.startNs) * box.width) / axis.lengthNs;
    const middle = (box) => box.top - frame.top + box.height / 2;
    const attributes = {
      x1: x(from, wait.start_ns), y1: middle(from), x2: x(to, wait.late_ns), y2: middle(to), "marker-end": "url(#tip)",
    };
    const line = make("line", attributes);
    const title = make("title", {});
    title.textContent = `rank ${wait.rank} waited ${ms(wait.wait_ns)} ms for rank ${wait.late}: ${wait.op}`;
    line.append(title);
    layer.append(line);
  };

  const drawArrows = () => {
    const layer = holder.querySelector("svg");
    layer.replaceChildren();
    const seen = findSeen();
    const title = make("title", {});
    title.textContent = `Arrows of the ${seen.length} longest waits, from the rank that waited to the late one.`;
    const tip = make("marker", { id: "tip", viewBox: "0 0 6 6", refX: 6, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" });
    tip.append(make("path", { d: "M0,0 L6,3 L0,6 z" }));
    layer.append(title, tip);
    for (const wait of seen) addArrow(layer, wait);
  };

  // -- reading ---------------------------------------------------------------------------------------------------

  const describe = ({ lane, view }, bin) => {
    const from = view.start_ns + bin * view.bin_ns;
    const to = Math.min(from + view.bin_ns, endOf(view));
    const spent = view.parts.map((bins) => bins[bin] ?? 0);
    const idle = Math.max(0, to - from - spent.reduce((a, b) => a + b, 0));
    const share = (ns) => `${((100 * ns) / Math.max(1, to - from)).toFixed(1)} %`;
    const parts = [...spent, idle].map((ns, part) => `${NAMES[part]} ${share(ns)}`);
    return `${lane.name}, ${ms(from)} to ${ms(to)} ms: ${parts.join(", ")}`;
  };

  const moveTo = (one, bin) => {
    one.at = Math.min(Math.max(bin, 0), one.view.count - 1);
    const text = describe(one, one.at);
    one.canvas.setAttribute("aria-valuenow", String(one.at));
    one.canvas.setAttribute("aria-valuetext", text);
    readout.textContent = text;
    drawLane(one);
  };

  const listen = (one) => {
    const { view, canvas } = one;
    const { count } = view;
    canvas.addEventListener("pointermove", (event) => {
      const atNs = axis.startNs + (event.offsetX / canvas.clientWidth) * axis.lengthNs;
      moveTo(one, Math.floor((atNs - view.start_ns) / view.bin_ns));
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

  // -- the lines ---------------------------------------------------------------------------------------------------

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
    const view = lane.views[Number(chosen.value)];
    const canvas = addRow(lane.name);
    const attributes = {
      role: "slider", tabindex: "0", "aria-label": `Timeline of ${lane.name}`, "aria-valuemin": "0",
      "aria-valuemax": String(view.count - 1), "aria-valuenow": "0", "aria-valuetext": "not read yet",
    };
    for (const [key, value] of Object.entries(attributes)) canvas.setAttribute(key, value);
    const one = { lane, view, canvas, at: null };
    listen(one);
    return one;
  };

  const redraw = () => {
    if (drawn.length === 0) return;
    axis = spanOf(drawn.map((one) => one.view));
    drawn.forEach(drawLane);
    drawAxis(holder.lastElementChild.lastElementChild);
    drawArrows();
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
    const wanted = lanes.filter((lane) => lane.views[Number(chosen.value)] !== null
      && spans.some(([from, to]) => lane.rank >= from && lane.rank <= to));
    if (wanted.length === 0) {
      noteLine.textContent = `None of the ${lanes.length} ranks is among these, or none of these has this step.`;
      return;
    }
    holder.replaceChildren(make("svg", { role: "img", class: "arrows" }));
    drawn = wanted.slice(0, shownMax).map(addLane);
    holder.classList.toggle("many", drawn.length > LANES_TALL_MAX);
    addRow("").setAttribute("aria-hidden", "true");
    noteLine.textContent = note.replace(/^\d+/, String(drawn.length));
    readout.textContent = "\u00a0";
    redraw();
  };

  picked.value = first;
  picked.addEventListener("change", show);
  chosen.addEventListener("change", show);
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  show();
})();
