// The live page: what is followed, when what is asked for again, and where it goes.

import { deviceShares, drawShares, drawPeers, phaseShares } from "./charts.js";
import { Refused, Unreachable, follow, forgetToken, keepToken, ofRun, readBytes, readJson, token } from "./client.js";
import { at, number, say } from "./dom.js";
import { FindingList, announce } from "./findings.js";
import { HeatMap, decode, drawScale } from "./heat_map.js";
import { Refresher } from "./refresher.js";
import { addressOf, showFigures, showRank, showRuns, showShares, showSlowest } from "./views.js";

const SLOWEST_SHOWN = 10;
const HISTORY_MS = 5000;
const INTERVALS_MS = 30000;
const STEPS_MS = 1000;
const CALM_MS = 5000; // for those who want less to move

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const shown = {
  run: null,
  rank: null,
  isPaused: false,
  missed: 0,
  picture: null,
  stretches: [],
  recent: null,
  pastKnown: -1,
  following: null,
};
const open = new FindingList(at("open-findings"));
const past = new FindingList(at("past-findings"));

// -- what is asked for ------------------------------------------------------------------------------------------------

const heat = new HeatMap(at("heat"), {
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

/** Asks about the run that is shown, not more often than that; a refusal leaves what is shown as it is. */
const refreshing = (leastMs, work) =>
  new Refresher(
    () => (calm.matches ? Math.max(CALM_MS, leastMs) : leastMs),
    async () => {
      if (shown.run === null) return;
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
  slowest: refreshing(STEPS_MS, async (run) => {
    const { ranks } = await readJson(`${ofRun(run, "ranks")}?order=slowdown&limit=${SLOWEST_SHOWN}`);
    if (run === shown.run) showSlowest(ranks, shown.rank, pickInTable);
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
  findings: refreshing(STEPS_MS, async (run) => {
    const found = await readJson(ofRun(run, "findings"));
    if (run !== shown.run) return;
    past.show(found.past);
    say(at("past-count"), number(found.past.length));
    shown.pastKnown = found.past.length;
  }),
  rank: refreshing(STEPS_MS, async (run) => {
    if (shown.rank === null) return;
    const asked = shown.rank;
    try {
      const answer = await readJson(ofRun(run, "ranks", asked));
      if (run !== shown.run || asked !== shown.rank) return;
      showRank(answer);
      shown.recent = answer.recent;
      drawn.peers();
    } catch (error) {
      if (!(error instanceof Refused) || error.status === 401) throw error;
      at("rank-shown").hidden = true;
      say(at("rank-problem"), error.message);
    }
  }),
};

const pickInTable = (rank) => {
  goTo(shown.run, rank);
  at("rank-title").focus();
};

// -- what happens -----------------------------------------------------------------------------------------------------

const takePicture = (picture) => {
  if (shown.isPaused) {
    shown.missed += 1;
    return sayPaused();
  }
  const isFirst = shown.picture === null || shown.picture.run?.run_id !== picture.run?.run_id;
  const isNewStep = isFirst || shown.picture.run?.latest_step !== picture.run?.latest_step;
  if (isFirst) Object.assign(shown, { stretches: [], recent: null, pastKnown: -1 }); // perhaps a new run of that name
  shown.picture = picture;
  at("sign-in").hidden = true;
  say(at("connection"), `Live; collector ${picture.version}.`);
  showRuns(picture.runs, shown.run);
  if (shown.run === null && picture.runs.length) return goTo(addressOf(picture.runs[0], picture.runs), null);
  at("run").hidden = picture.run === null;
  if (picture.run === null) {
    if (shown.run !== null) say(at("connection"), `No run ${shown.run} is known here.`);
    return undefined;
  }
  showFigures(picture.run);
  showFindings(picture.run, isFirst);
  refreshers.history.ask();
  if (isNewStep) for (const one of [at("source").value, "slowest", "rank"]) refreshers[one].ask();
};

const showFindings = (run, isFirst) => {
  const fresh = open.show(run.open_findings);
  at("no-findings").hidden = run.open_findings.length > 0;
  if (!isFirst) announce(fresh);
  if (run.findings_past !== shown.pastKnown) refreshers.findings.ask();
};

const sayPaused = () =>
  say(
    at("connection"),
    `Paused: what is shown stays as it is; ${number(shown.missed)} picture${shown.missed === 1 ? "" : "s"} since.`,
  );

const followRun = () => {
  shown.following?.abort();
  shown.following = new AbortController();
  follow(shown.run, takePicture, takeTrouble, shown.following.signal);
};

const takeTrouble = (refused) => {
  if (refused?.status === 401) return askForToken(token() === null ? "" : "That token is not the collector's.");
  say(
    at("connection"),
    refused === null ? "The collector does not answer; trying again." : `${refused.message}. Trying again.`,
  );
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
  if (location.hash === hash) takeAddress();
  else location.hash = hash;
};

const takeAddress = () => {
  const asked = new URLSearchParams(location.hash.slice(1));
  const run = asked.get("run");
  const rank = asked.get("rank");
  shown.rank = rank === null || !/^\d+$/.test(rank) ? null : Number(rank);
  at("rank").value = shown.rank ?? "";
  at("rank-shown").hidden = true;
  say(at("rank-problem"), "");
  if (run === shown.run) return refreshers.rank.askAtOnce();
  Object.assign(shown, { run, stretches: [], recent: null, pastKnown: -1 });
  document.title = run === null ? "rankscope" : `${run} - rankscope`;
  say(at("run-name"), run ?? "");
  open.show([]);
  past.show([]);
  heat.show(null);
  at("announcement").textContent = "";
  for (const one of Object.values(refreshers)) one.readyAt = 0; // another run is not to wait for the one before
  followRun();
};

const drawn = {
  "heat-scale": () => drawScale(at("heat-scale")),
  phases: () => drawShares(at("phases"), shown.stretches, phaseShares),
  device: () => drawShares(at("device"), shown.stretches, deviceShares),
  peers: () => drawPeers(at("peers"), shown.recent),
};

at("pause").addEventListener("click", () => {
  Object.assign(shown, { isPaused: !shown.isPaused, missed: 0 });
  at("pause").setAttribute("aria-pressed", String(shown.isPaused));
  if (!shown.isPaused) return say(at("connection"), "Live.");
  for (const one of Object.values(refreshers)) one.rest();
  return sayPaused();
});
at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(at("token").value.trim());
  at("token").value = "";
  followRun();
});
at("source").addEventListener("change", () => refreshers[at("source").value].askAtOnce());
at("ranks-shown").addEventListener("submit", (event) => {
  event.preventDefault();
  heat.look(Number(at("first-rank").value), Number(at("last-rank").value));
});
at("all-ranks").addEventListener("click", () => heat.look(0, Infinity));
at("pick-rank").addEventListener("submit", (event) => {
  event.preventDefault();
  goTo(shown.run, Number(at("rank").value));
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which run it is
  at("run").focus();
});
addEventListener("hashchange", takeAddress);
// A canvas is drawn anew when it is shown and when its size or the colours of the page change.
const resized = new ResizeObserver((entries) => entries.forEach((entry) => drawn[entry.target.id]()));
for (const name of Object.keys(drawn)) resized.observe(at(name));
dark.addEventListener("change", () => {
  heat.recolour();
  for (const draw of Object.values(drawn)) draw();
});
shown.run = undefined; // so that the first address is a new one, also without a run
takeAddress();
