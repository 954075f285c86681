// Two charts: time shares over time, and one rank between its peers. Each draws and returns what Readout asks for.

import { markBegin, roomFor, writeEnds, writeLevels, writeShares } from "./axes.js";
import { color, clock, number, percent, span } from "./dom.js";

const BELOW = 20;

/** Names of shares that are not their own. */
export const PART_NAMES = {
  "own-phase": "phases of the script",
  communication: "exposed communication",
  compute: "compute only",
};
export const PHASES = ["data", "forward", "backward", "optimizer", "other"];
const OWN_PHASE = "own-phase";

/** Of a stretch of /history: the share of each phase; of the phases a script adds the sum. */
export const phaseShares = (stretch) => {
  const own = Object.entries(stretch.phases_ns).filter(([name]) => !PHASES.includes(name));
  const named = PHASES.map((name) => [name, stretch.phases_ns[name] ?? 0]);
  return shares([...named, [OWN_PHASE, own.reduce((sum, [, ns]) => sum + ns, 0)]], stretch.step_ns);
};

/** Of a stretch: what the device did in profiled windows. The parts are disjoint: overlap is compute as well. */
export const deviceShares = (stretch) =>
  shares(
    [
      ["compute", stretch.compute_ns - stretch.overlap_ns],
      ["overlap", stretch.overlap_ns],
      ["communication", stretch.exposed_communication_ns],
      ["copy", stretch.copy_ns],
      ["idle", stretch.idle_ns],
    ],
    stretch.window_ns,
  );

const shares = (parts, wholeNs) =>
  wholeNs > 0 ? parts.map(([name, ns]) => ({ name, share: Math.max(0, ns) / wholeNs })) : [];

/** All stretches as one. */
export const addUp = (stretches) => {
  const sum = { phases_ns: {} };
  for (const stretch of stretches) {
    for (const [name, value] of Object.entries(stretch))
      if (typeof value === "number") sum[name] = (sum[name] ?? 0) + value;
    for (const [phase, ns] of Object.entries(stretch.phases_ns))
      sum.phases_ns[phase] = (sum.phases_ns[phase] ?? 0) + ns;
  }
  return sum;
};

/** Shares over time, stacked from below. `sharesOf` gives those of a stretch; one that has none leaves a gap. `begins`
 * are the times at which findings begin, with their texts. */
export const drawShares = (pen, width, height, stretches, sharesOf, begins) => {
  const told = stretches.filter((stretch) => sharesOf(stretch).length);
  if (!told.length) return drawNothing(pen);
  const [begin, end] = [told[0].begin_wall_s, told.at(-1).end_wall_s];
  const left = roomFor(pen, ["100 %"]);
  const place = (wallS) => left + ((wallS - begin) / Math.max(1e-9, end - begin)) * (width - left);
  for (const stretch of told) {
    const x = Math.floor(place(stretch.begin_wall_s));
    const wide = Math.max(1, Math.ceil(place(stretch.end_wall_s)) - x);
    let top = height - BELOW;
    for (const { name, share } of sharesOf(stretch)) {
      const tall = share * (height - BELOW);
      pen.fillStyle = color(name);
      pen.fillRect(x, top - tall, wide, tall);
      top -= tall;
    }
  }
  const marked = begins.filter(({ wallS }) => begin <= wallS && wallS <= end);
  for (const { wallS } of marked) markBegin(pen, place(wallS), height - BELOW);
  writeEnds(pen, [clock(begin), clock(end)], left, width, height - 5);
  writeShares(pen, left, height - BELOW);
  return {
    places: told.map((one) => place((one.begin_wall_s + one.end_wall_s) / 2)),
    read: (column) => [readShares(told[column], sharesOf), ...textsIn(told[column], marked)].join("; "),
  };
};

const textsIn = (stretch, begins) =>
  begins.filter(({ wallS }) => stretch.begin_wall_s <= wallS && wallS <= stretch.end_wall_s).map(({ text }) => text);

const readShares = (stretch, sharesOf) => {
  const parts = sharesOf(stretch).filter(({ share }) => share > 0);
  const said = parts.map(({ name, share }) => `${PART_NAMES[name] ?? name} ${percent(share)}`).join(", ");
  return `${clock(stretch.begin_wall_s)} to ${clock(stretch.end_wall_s)}: ${said}`;
};

const drawNothing = (pen) => {
  pen.fillStyle = color("faint");
  pen.fillText("No data yet.", 0, 20);
  return null;
};

/** `recent` of a rank: its own time, and the median of its peers between the least and the most of them. `since` are
 * the first steps of the findings about it. */
export const drawPeers = (pen, width, height, recent, since) => {
  const series = ["own_ns", "peers_own_ns_median", "peers_own_ns_min", "peers_own_ns_max"].map(
    (name) => recent?.[name] ?? [],
  );
  const known = series.flat().filter((value) => value !== null);
  if (!known.length) return drawNothing(pen);
  const most = Math.max(...known) * 1.05;
  const left = roomFor(pen, [span(most)]);
  const place = (column) => left + ((column + 0.5) / recent.steps.length) * (width - left);
  const level = (ns) => (1 - ns / most) * (height - BELOW);
  const [mine, peers, least, most_of_peers] = series.map((values) =>
    values.flatMap((value, column) => (value === null ? [] : [[place(column), level(value)]])),
  );
  pen.fillStyle = color("spread");
  trace(pen, [...least, ...most_of_peers.reverse()]);
  pen.fill();
  for (const [points, name] of [
    [peers, "peers"],
    [mine, "mine"],
  ]) {
    pen.strokeStyle = pen.fillStyle = color(name);
    pen.lineWidth = 2;
    trace(pen, points);
    pen.stroke();
    for (const [x, y] of points) pen.fillRect(x - 2, y - 2, 4, 4);
  }
  const ends = [recent.steps[0], recent.steps.at(-1)].map((step) => `step ${number(step)}`);
  writeEnds(pen, ends, left, width, height - 5);
  pen.fillRect(left, height - BELOW, width - left, 1);
  writeLevels(pen, most, left, width, 0, height - BELOW);
  for (const step of since) {
    const column = recent.steps.findIndex((one) => one >= step);
    if (column >= 0 && recent.steps[0] <= step) markBegin(pen, place(column), height - BELOW);
  }
  return { places: recent.steps.map((_, column) => place(column)), read: (column) => readPeers(recent, column) };
};

const readPeers = (recent, column) => {
  const [mine, peers, least, most] = ["own_ns", "peers_own_ns_median", "peers_own_ns_min", "peers_own_ns_max"].map(
    (name) => recent[name][column],
  );
  const withUnit = (ns) => (ns === null ? "not known" : span(ns));
  const spread = least === null ? "" : ` (${span(least)} to ${span(most)})`;
  return `step ${number(recent.steps[column])}: this rank ${withUnit(mine)}, its peers ${withUnit(peers)}${spread}`;
};

const trace = (pen, points) => {
  pen.beginPath();
  points.forEach(([x, y], place) => (place ? pen.lineTo(x, y) : pen.moveTo(x, y)));
};
