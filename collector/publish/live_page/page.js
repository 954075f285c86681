// The live page: follow the event stream, refresh the views, show them.

import { CaptureList } from "./captures.js";
import { deviceShares, drawShares, drawPeers, phaseShares } from "./charts.js";
import {
  Refused,
  Unreachable,
  follow,
  forgetToken,
  keepToken,
  ofRun,
  readBytes,
  readJson,
  takeTokenFromAddress,
  token,
} from "./client.js";
import { clearComparison, offerRuns, startComparing } from "./compare.js";
import { at, clock, number, say } from "./dom.js";
import { FindingList, announce } from "./findings.js";
import { HeatMap, decode, drawScale } from "./heat_map.js";
import { showIncidents } from "./incidents.js";
import { aimLinks, goToElement } from "./links.js";
import { showMachines } from "./machines.js";
import { openOrder } from "./order_dialog.js";
import { forgetPorts } from "./ports.js";
import { Readout } from "./readout.js";
import { Refresher } from "./refresher.js";
import { describeSteps, drawSteps, eventsOf, pointsOf, wallOfStep } from "./step_chart.js";
import { addressOf, showFigures, showJoining, showRank, showRanks, showRuns, showShares, startSorting } from "./views.js";

const RANKS_BESIDE = 4;
const POINTS = 400; // of the step time
const STEP_TIMES_MS = 10000;
const HISTORY_MS = 5000;
const MACHINES_MS = 5000;
const INCIDENTS_MS = 5000;
const INTERVALS_MS = 30000;
const STEPS_MS = 1000;
const CALM_MS = 5000; // with reduced motion

// Of a run before its first answers.
const NOTHING_KNOWN = {
  stretches: [],
  recent: null,
  points: [],
  events: [],
  incidents: [],
  history: null,
  pastKnown: -1,
};

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const shown = {
  run: null,
  rank: null,
  isPaused: false,
  missed: 0,
  snapshot: null,
  ...NOTHING_KNOWN,
  following: null,
  outlined: "", // what of the open findings is outlined in the heat map
};
const capture = (rank) => openOrder(shown.snapshot.run, rank, shown.snapshot.takes_orders);
const wallOf = (step) => wallOfStep(shown.points, step) ?? heat.wallOf(step);
const open = new FindingList(at("open-findings"), capture);
const past = new FindingList(at("past-findings"));
const sorted = { order: "slowdown", isReversed: false };
const captures = new CaptureList(at("capture-list"));

// -- requests -------------------------------------------------------------------------------------------------------

const heat = new HeatMap(at("heat"), {
  found: at("heat-found"),
  onRead: (text) => say(at("heat-readout"), text),
  onPick: (rank) => goTo(shown.run, rank),
  onView: (first, last) => ((at("first-rank").value = first), (at("last-rank").value = last)),
});

const heatOf = (source) => async (run) => {
  let map = null;
  try {
    map = decode(await readBytes(`${ofRun(run, "heatmap")}?source=${source}`));
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 404) throw error;
    say(at("heat-readout"), error.message);
  }
  if (run !== shown.run || at("source").value !== source) return;
  heat.show(map);
};

/** Refresh a view of the selected run, at most every `leastMs`; a refusal leaves the view as it is. */
const refreshing = (leastMs, work) =>
  new Refresher(
    () => (calm.matches ? Math.max(CALM_MS, leastMs) : leastMs),
    async () => {
      if (shown.run === null || !shown.snapshot?.run) return; // the first event asks again
      try {
        await work(shown.run);
      } catch (error) {
        if (!(error instanceof Refused || error instanceof Unreachable)) throw error;
        if (error.status === 401) askForToken("");
      }
    },
  );

const refreshers = {
  steps: refreshing(STEPS_MS, heatOf("steps")),
  intervals: refreshing(INTERVALS_MS, heatOf("intervals")),
  ranks: refreshing(STEPS_MS, async (run) => {
    const asked = `order=${sorted.order}&reversed=${sorted.isReversed ? "yes" : "no"}&limit=${at("ranks-count").value}`;
    const answer = await readJson(`${ofRun(run, "ranks")}?${asked}`);
    if (run === shown.run) showRanks(answer, shown.rank, shown.snapshot.wall_s, pickInTable);
  }),
  history: refreshing(HISTORY_MS, async (run) => {
    const { shares } = await readJson(`${ofRun(run, "history")}?points=0`);
    if (run !== shown.run) return;
    shown.stretches = shares;
    showShares(at("phases-now"), shares, phaseShares);
    showShares(at("device-now"), shares, deviceShares);
    drawn.phases();
    drawn.device();
  }),
  stepTimes: refreshing(STEP_TIMES_MS, async (run) => {
    const lastS = Number(at("steps-range").value);
    const since = lastS ? `&since_wall_s=${Math.max(0, Math.floor(shown.snapshot.wall_s - lastS))}` : "";
    const history = await readJson(`${ofRun(run, "history")}?points=${POINTS}${since}`);
    if (run === shown.run && lastS === Number(at("steps-range").value)) showSteps(history, lastS);
  }),
  incidents: refreshing(INCIDENTS_MS, async (run) => {
    const { incidents } = await readJson(`incidents?run=${encodeURIComponent(shown.snapshot.run.run_id)}`);
    if (run !== shown.run) return;
    shown.incidents = incidents;
    if (shown.history !== null) showSteps(shown.history, Number(at("steps-range").value));
    showIncidents(incidents, shown.snapshot.wall_s);
  }),
  machines: refreshing(MACHINES_MS, async (run) => {
    const answer = await readJson(ofRun(run, "machines"));
    if (run === shown.run) showMachines(answer);
  }),
  findings: refreshing(STEPS_MS, async (run) => {
    const found = await readJson(ofRun(run, "findings"));
    if (run !== shown.run) return;
    past.show(found.past);
    say(at("past-count"), number(found.past.length));
    at("past").hidden = !found.past.length;
    shown.pastKnown = found.past.length;
  }),
  rank: refreshing(STEPS_MS, async (run) => {
    if (shown.rank === null) return;
    const wanted = shown.rank;
    try {
      const answer = await readJson(ofRun(run, "ranks", wanted));
      if (run !== shown.run || wanted !== shown.rank) return;
      showRank(answer, shown.snapshot.wall_s);
      shown.recent = answer.recent;
      drawn.peers();
    } catch (error) {
      if (!(error instanceof Refused) || error.status === 401) throw error;
      at("rank-shown").hidden = true;
      say(at("rank-problem"), error.message);
    }
  }),
};

/** Show the step time of the last so many seconds, 0 for all, from an answer of /history. */
const showSteps = (history, lastS) => {
  shown.history = history;
  const least = lastS ? shown.snapshot.wall_s - lastS : 0;
  shown.points = pointsOf(history).filter(({ wallS }) => wallS >= least);
  const begin = shown.points[0]?.wallS ?? Infinity; // what happened before is in the list of incidents
  shown.events = eventsOf(shown.points, shown.incidents, shown.snapshot.run, wallOf).filter(({ wallS }) => wallS >= begin);
  describeSteps(shown.points, shown.events, Boolean(history.steps?.length));
  for (const one of ["steps", "phases", "device"]) drawn[one]();
};

/** Show ranks in the heat map with some beside them, and read the slowest of their cells. */
const showInHeatMap = (ranks) => {
  const [first, last] = [Math.min(...ranks), Math.max(...ranks)];
  heat.setView(first - RANKS_BESIDE, last + RANKS_BESIDE);
  heat.moveToSlowestOf(first, last);
  goToElement("heat");
};

const pickInTable = (rank) => {
  goTo(shown.run, rank);
  at("rank-title").focus();
};

// -- events -----------------------------------------------------------------------------------------------------------

const showSnapshot = (snapshot) => {
  if (shown.isPaused) {
    shown.missed += 1;
    return sayPaused();
  }
  const isFirst = shown.snapshot === null || shown.snapshot.run?.run_id !== snapshot.run?.run_id;
  const isNewStep = isFirst || shown.snapshot.run?.latest_step !== snapshot.run?.latest_step;
  const isNewEnd = JSON.stringify(shown.snapshot?.run?.end) !== JSON.stringify(snapshot.run?.end);
  if (isFirst) Object.assign(shown, { ...NOTHING_KNOWN }); // may be a new run of that name
  shown.snapshot = snapshot;
  at("sign-in").hidden = true;
  sayConnected(snapshot);
  showRuns(snapshot.runs, shown.run, at("run-filter").value);
  if (!snapshot.runs.length) showJoining(snapshot.settings, location.hostname);
  if (shown.run === null && snapshot.runs.length) return goTo(addressOf(snapshot.runs[0], snapshot.runs), null);
  at("run").hidden = snapshot.run === null;
  if (snapshot.run === null) {
    if (shown.run !== null) say(at("connection"), `No run ${shown.run} is known.`);
    return undefined;
  }
  aimLinks({ run: shown.run, name: snapshot.run.run, settings: snapshot.settings });
  showFigures(snapshot.run, snapshot.wall_s);
  offerRuns(snapshot.runs, snapshot.run.run_id);
  showFindings(snapshot.run, isFirst);
  captures.show(snapshot.run, snapshot.takes_orders, isFirst);
  at("capture-rank").hidden = snapshot.run.end !== null;
  for (const one of ["history", "incidents", "stepTimes", "machines"]) refreshers[one].ask();
  const mayDiffer = isNewStep || isNewEnd || snapshot.run.end === null; // without a new step silent ranks grow older
  if (mayDiffer) for (const one of ["ranks", "rank"]) refreshers[one].ask();
  if (isNewStep) refreshers[at("source").value].ask();
};

const sayConnected = ({ version, run }) => {
  document.body.classList.remove("stale");
  say(at("connection"), `Live; collector ${version}. Times are UTC.`);
  const found = run?.open_findings.filter(({ severity }) => severity !== "info").length ?? 0;
  if (run) document.title = `${found ? `(${found}) ` : ""}${run.run} - rankscope`;
};

const showFindings = (run, isFirst) => {
  const fresh = open.show(run.open_findings);
  const facts = run.open_findings.map((one) => [one.number, one.ranks, one.since_step, one.slowdown_ratio]);
  const outlined = JSON.stringify(facts);
  if (outlined !== shown.outlined) heat.setFound(run.open_findings, shown.run);
  shown.outlined = outlined;
  at("no-findings").hidden = run.open_findings.length > 0;
  say(at("no-findings"), describeNoFindings(run));
  if (!isFirst) announce(fresh);
  if (run.findings_past !== shown.pastKnown) refreshers.findings.ask();
};

const describeNoFindings = ({ end, abstained }) => {
  if (end !== null) return "No open findings: the run is over. Incidents are listed below.";
  if (abstained !== null) return `No verdict yet: ${abstained}.`;
  return "No open findings. The ranks are compared, and none is slower than the others.";
};

const sayPaused = () =>
  say(at("connection"), `Paused; ${number(shown.missed)} snapshot${shown.missed === 1 ? "" : "s"} skipped.`);

const followRun = () => {
  shown.following?.abort();
  shown.following = new AbortController();
  follow(shown.run, showSnapshot, showConnectionError, shown.following.signal);
};

const showConnectionError = (refused) => {
  if (refused?.status === 401) return askForToken(token() === null ? "" : "Wrong token.");
  document.body.classList.add("stale");
  const until = shown.snapshot === null ? "" : ` What is shown is of ${clock(shown.snapshot.wall_s)} UTC.`;
  const why = refused === null ? "The collector does not answer" : refused.message;
  say(at("connection"), `${why}; trying again.${until}`);
};

const askForToken = (problem) => {
  shown.following?.abort();
  forgetToken();
  say(at("connection"), "Not signed in.");
  say(at("sign-in-problem"), problem);
  if (!at("sign-in").hidden) return;
  at("sign-in").hidden = false;
  at("token").focus();
};

const goTo = (run, rank) => {
  const named = [run === null ? "" : `run=${encodeURIComponent(run)}`, rank === null ? "" : `rank=${rank}`];
  const hash = `#${named.filter((one) => one).join("&")}`;
  if (location.hash === hash) readAddress();
  else location.hash = hash;
};

const readAddress = () => {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const run = wanted.get("run");
  const rank = wanted.get("rank");
  shown.rank = rank === null || !/^\d+$/.test(rank) ? null : Number(rank);
  at("rank").value = shown.rank ?? "";
  at("rank-shown").hidden = true;
  say(at("rank-problem"), "");
  if (run === shown.run) return refreshers.rank.askAtOnce();
  Object.assign(shown, { run, snapshot: null, ...NOTHING_KNOWN }); // its snapshot is that of the previous run
  document.title = run === null ? "rankscope" : `${run} - rankscope`;
  say(at("run-name"), run ?? "");
  open.show([]);
  past.show([]);
  at("past").hidden = true;
  captures.clear();
  showIncidents([], 0);
  clearComparison();
  forgetPorts();
  heat.setFound([], run);
  heat.show(null);
  shown.outlined = "";
  at("announcement").textContent = "";
  for (const one of Object.values(refreshers)) one.readyAt = 0; // do not delay a new run because of the previous one
  followRun();
};

const begins = () => shown.events.filter(({ kind }) => kind === "begin");

/** The first steps of the open findings about the rank that is shown. */
const sinceSteps = () =>
  (shown.snapshot?.run?.open_findings ?? [])
    .filter((one) => one.ranks.includes(shown.rank) && one.since_step !== null)
    .map((one) => one.since_step);

/** A chart whose values can be read, by the id of its canvas. */
const readable = (id, draw) => {
  const marking = (...pen) => {
    const drawn_ = draw(...pen);
    at(id).classList.toggle("empty", drawn_ === null); // takes less room
    return drawn_;
  };
  const chart = new Readout(at(id), at(`${id}-readout`), marking);
  return { [id]: () => chart.show() };
};

const drawn = {
  "heat-scale": () => drawScale(at("heat-scale"), at("heat-least"), at("heat-most")),
  ...readable("steps", (...pen) => drawSteps(...pen, shown.points, shown.events)),
  ...readable("phases", (...pen) => drawShares(...pen, shown.stretches, phaseShares, begins())),
  ...readable("device", (...pen) => drawShares(...pen, shown.stretches, deviceShares, begins())),
  ...readable("peers", (...pen) => drawPeers(...pen, shown.recent, sinceSteps())),
};

at("pause").addEventListener("click", () => {
  Object.assign(shown, { isPaused: !shown.isPaused, missed: 0 });
  at("pause").setAttribute("aria-pressed", String(shown.isPaused));
  if (!shown.isPaused) return say(at("connection"), "Live.");
  for (const one of Object.values(refreshers)) one.cancel();
  return sayPaused();
});
at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(at("token").value.trim());
  at("token").value = "";
  followRun();
});
at("steps-range").addEventListener("change", () => refreshers.stepTimes.askAtOnce());
at("run-filter").addEventListener("input", () => {
  if (shown.snapshot !== null) showRuns(shown.snapshot.runs, shown.run, at("run-filter").value);
});
at("ranks-count").addEventListener("change", () => refreshers.ranks.askAtOnce());
startSorting(sorted, () => refreshers.ranks.askAtOnce());
at("source").addEventListener("change", () => refreshers[at("source").value].askAtOnce());
at("ranks-shown").addEventListener("submit", (event) => {
  event.preventDefault();
  heat.setView(Number(at("first-rank").value), Number(at("last-rank").value));
});
at("all-ranks").addEventListener("click", () => heat.setView(0, Infinity));
at("pick-rank").addEventListener("submit", (event) => {
  event.preventDefault();
  goTo(shown.run, Number(at("rank").value));
});
startComparing(
  () => shown.snapshot?.run?.run_id ?? shown.run,
  () => askForToken(""),
);
at("capture-rank").addEventListener("click", () => capture(shown.rank));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the run
  at("run").focus();
});
addEventListener("hashchange", readAddress);
aimLinks({ showRanks: showInHeatMap });
// Redraw a canvas when it appears and when its size or the colors of the page change.
const resized = new ResizeObserver((entries) => entries.forEach((entry) => drawn[entry.target.id]()));
for (const name of Object.keys(drawn)) resized.observe(at(name));
dark.addEventListener("change", () => {
  heat.recolor();
  for (const draw of Object.values(drawn)) draw();
});
takeTokenFromAddress();
shown.run = undefined; // so that the first address counts as new, also without a run
readAddress();
