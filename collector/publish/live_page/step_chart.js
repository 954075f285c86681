// Step time over time, with what happened: findings, restarts, checkpoints, captures, changed settings, the end of the run.

import { HEAD, drawHead, markBegin, roomFor, writeEnds, writeLevels } from "./axes.js";
import { at, clock, color, dateAndClock, element, number, say, span } from "./dom.js";
import { nameRanks } from "./found_ranks.js";

const BELOW = 20;
const TOP = HEAD;
const CUT_OFF = 4; // times the median: one stalled step must not flatten all others
const NEAR_PX = 5;
const DASHES = [4, 2];
const NS_PER_S = 1e9;
const EVENTS_MAX = 50;
const CHECKPOINTS_LISTED = 3; // the latest: those of a day would hide all else

/** What the marks at the upper edge are, in the order of the legend. */
const MARKS = {
  begin: "a finding begins",
  finding: "found",
  over: "over",
  restart: "restart",
  checkpoint: "checkpoint",
  capture: "capture ordered",
  setting: "setting changed",
  end: "the run ended",
};

const middle = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

/** Points that came together, as steps of one report do, one after the other: each ends as long before the next one as
 * that took, and none before the points that came earlier. */
const spread = (points) => {
  const placed = [...points];
  for (let place = placed.length - 2; place >= 0; place -= 1) {
    const [point, next] = [points[place], points[place + 1]];
    if (point.wallS !== next.wallS || point.attempt !== next.attempt) continue;
    placed[place] = { ...point, wallS: placed[place + 1].wallS - (next.ns * next.steps) / NS_PER_S };
  }
  let latest = -Infinity;
  points.forEach((point, place) => {
    if (place > 0 && points[place - 1].wallS !== point.wallS) latest = points[place - 1].wallS;
    if (placed[place].wallS < latest) placed[place] = { ...placed[place], wallS: latest };
  });
  return placed;
};

/** The points of /history in order of time: of the store's steps, each of which is a range of steps, or, where there
 * are none, of the time slices since this collector process knows the run. `ns` is the median over the ranks, or the
 * mean. */
export const pointsOf = ({ steps, shares }) =>
  steps?.length
    ? spread(
        steps.map((one) => ({
          wallS: one.wall_s,
          ns: one.median_ns,
          longestNs: one.longest_ns,
          attempt: one.attempt,
          first: one.first_step,
          last: one.last_step,
          steps: one.steps,
        })),
      )
    : shares
        .filter((one) => one.steps > 0)
        .map((one) => ({
          wallS: one.end_wall_s,
          ns: one.step_ns / one.steps,
          longestNs: null,
          attempt: null,
          first: null,
        }));

/** Return when a step ended, in seconds since 1970, by the points of the last attempt; null where they do not say. */
export const wallOfStep = (points, step) => {
  const attempt = points.at(-1)?.attempt ?? null;
  const point = points.find((one) => one.attempt === attempt && one.first !== null && one.first <= step && step <= one.last);
  return point?.wallS ?? null;
};

/** Where findings begin: at the end of their first step where the points have it, else at the time that they tell. */
const beginsOf = (findings, wallOf) =>
  findings.flatMap((one) => {
    const wallS = (one.since_step === null ? null : wallOf(one.since_step)) ?? one.since_wall_s;
    const step = one.since_step === null ? "" : `, step ${number(one.since_step)}`;
    return wallS === null ? [] : [["begin", wallS, `begin${step}: ${one.headline}`]];
  });

const ofIncident = (one) => {
  const whom = one.ranks.length ? ` of ${nameRanks(one.ranks)}` : "";
  const name = `${one.kind.replaceAll("_", " ")}${whom}`;
  const again = one.reopened_wall_s === null ? [] : [["finding", one.reopened_wall_s, `found again: ${name}`]];
  const end = one.resolved_wall_s === null ? [] : [["over", one.resolved_wall_s, `over: ${name}`]];
  return [["finding", one.opened_wall_s, `found: ${name}`], ...again, ...end];
};

const restartsOf = (points) =>
  points
    .filter((point, place) => place > 0 && point.attempt !== points[place - 1].attempt)
    .map(({ wallS, attempt }) => ["restart", wallS, `steps go on after restart ${number(attempt)}`]);

const ofCheckpoint = (one) => [
  "checkpoint",
  one.wall_s,
  `checkpoint in step ${number(one.step)}: ${span(one.duration_ns)}`,
];

/** Return what happened, oldest first: [kind, time, text]. `wallOf(step)` is when a step was; null: not known. */
export const eventsOf = (points, incidents, run, wallOf) => {
  const { captures, checkpoints, end, open_findings: findings, setting_changes: changes } = run;
  return [
    ...beginsOf(findings, wallOf),
    ...incidents.flatMap(ofIncident),
    ...restartsOf(points),
    ...checkpoints.latest.map(ofCheckpoint),
    ...captures.map((one) => ["capture", one.asked_wall_s, `capture ${one.id} ordered`]),
    ...changes.map((one) => ["setting", one.wall_s, `setting ${one.text}`]),
    ...(end === null || end.ended_wall_s === null
      ? []
      : [["end", end.ended_wall_s, `the run ended: ${end.reason}`.replaceAll("_", " ")]]),
  ]
    .map(([kind, wallS, text]) => ({ kind, wallS, text }))
    .sort((a, b) => a.wallS - b.wallS);
};

const readPoint = ({ wallS, ns, longestNs, first, last }) => {
  const steps =
    first === null ? "" : first === last ? `, step ${number(first)}` : `, steps ${number(first)} to ${number(last)}`;
  const typical = `${span(ns)} ${longestNs === null ? "in the mean" : "in the median"}`;
  return `${dateAndClock(wallS)}${steps}: ${typical}${longestNs === null ? "" : `, the longest ${span(longestNs)}`}`;
};

const drawLine = (pen, points, toX, toY, name, wide) => {
  Object.assign(pen, { strokeStyle: color(name), fillStyle: color(name), lineWidth: wide });
  pen.beginPath();
  points.forEach((point, place) => {
    const isNew = place === 0 || point.attempt !== points[place - 1].attempt;
    if (isNew) pen.moveTo(toX(point), toY(point));
    else pen.lineTo(toX(point), toY(point));
    pen.fillRect(toX(point) - 1, toY(point) - 1, 2, 2);
  });
  pen.stroke();
};

/** Begin and find of a finding have one color: where it begins the line is whole and the head full. */
const drawEvents = (pen, events, toX, height) => {
  for (const { kind, wallS } of events) {
    const x = toX({ wallS });
    if (kind === "begin") {
      markBegin(pen, x, height - BELOW);
      continue;
    }
    pen.fillStyle = pen.strokeStyle = color(`event-${kind}`);
    pen.lineWidth = 1;
    if (kind !== "checkpoint") {
      // they are many
      pen.setLineDash(kind === "finding" ? DASHES : []);
      pen.beginPath();
      pen.moveTo(x, TOP - 2);
      pen.lineTo(x, height - BELOW);
      pen.stroke();
      pen.setLineDash([]);
    }
    drawHead(pen, x);
    if (kind !== "finding") pen.fill();
  }
};

const drawAxes = (pen, left, width, height, most, begin, end) => {
  writeEnds(pen, [clock(begin), clock(end)], left, width, height - 5);
  pen.fillRect(left, height - BELOW, width - left, 1);
  writeLevels(pen, most, left, width, TOP, height - BELOW);
};

/** Draw points and those of the events that lie between them; returns what Readout asks for. */
export const drawSteps = (pen, width, height, points, events) => {
  if (!points.length) {
    pen.fillStyle = color("faint");
    pen.fillText("No data yet.", 0, 20);
    return null;
  }
  const longest = Math.max(...points.map(({ ns, longestNs }) => longestNs ?? ns));
  const most = 1.05 * Math.min(longest, CUT_OFF * middle(points.map(({ ns }) => ns)));
  const [begin, end] = [points[0].wallS, points.at(-1).wallS];
  const part = (wallS) => Math.min(1, (wallS - begin) / Math.max(1e-9, end - begin)); // events may be newer than steps
  const left = roomFor(pen, [span(most)]);
  const toX = ({ wallS }) => left + part(wallS) * (width - left - 6);
  const toY = (ns) => Math.max(TOP, height - BELOW - (ns / most) * (height - BELOW - TOP));
  if (points[0].longestNs !== null) drawLine(pen, points, toX, ({ longestNs }) => toY(longestNs), "mine", 1);
  drawLine(pen, points, toX, ({ ns }) => toY(ns), "peers", 2);
  drawEvents(pen, events, toX, height);
  drawAxes(pen, left, width, height, most, begin, end);
  const places = points.map(toX);
  const read = (column) => {
    const near = events.filter((one) => Math.abs(toX(one) - places[column]) <= NEAR_PX).map(({ text }) => text);
    return [readPoint(points[column]), ...near].join("; ");
  };
  return { places, read };
};

const NO_STORE =
  "The mean of all ranks since this collector process was started or first heard of the run. Set store to keep the history.";
const OF_STORE = "The median over the ranks, and the longest duration of any rank, from the store.";

/** Show what the chart stands on, its name for screen readers, and the list of events. */
export const describeSteps = (points, events, hasStore) => {
  const limit = points.length ? CUT_OFF * middle(points.map(({ ns }) => ns)) : 0;
  const cut = points.filter(({ ns, longestNs }) => (longestNs ?? ns) > limit).length;
  const ofAll = `${number(cut)} of ${number(points.length)} points ${cut === 1 ? "is" : "are"}`;
  const cutText = cut ? ` ${ofAll} cut off at the top.` : "";
  at("steps-longest").hidden = !hasStore;
  say(at("steps-basis"), points.length ? `${hasStore ? OF_STORE : NO_STORE}${cutText}` : "");
  const latest = points.length ? ` Latest: ${readPoint(points.at(-1))}.` : " No data yet.";
  at("steps").setAttribute("aria-label", `Step time over time.${latest} Events are listed below.`);
  const marked = events.filter(({ kind }) => kind === "checkpoint");
  const left = new Set(marked.slice(0, -CHECKPOINTS_LISTED));
  const shown = events.filter((one) => !left.has(one)).slice(-EVENTS_MAX).reverse();
  const more = left.size ? [`and ${number(left.size)} earlier checkpoint${left.size === 1 ? "" : "s"}`] : [];
  at("events-shown").hidden = !shown.length;
  say(at("events-count"), number(events.length));
  const said = JSON.stringify([shown, more]);
  if (at("events").dataset.said === said) return;
  at("events").dataset.said = said;
  at("marks").replaceChildren(
    ...Object.entries(MARKS)
      .filter(([kind]) => events.some((one) => one.kind === kind))
      .map(([kind, text]) => element("span", {}, element("span", { class: `swatch event-${kind}` }), text)),
  );
  at("events").replaceChildren(
    ...shown.map(({ kind, wallS, text }) =>
      element("li", {}, element("span", { class: `swatch event-${kind}` }), `${dateAndClock(wallS)}: ${text}`),
    ),
    ...more.map((text) => element("li", {}, element("span", { class: "swatch event-checkpoint" }), text)),
  );
};
