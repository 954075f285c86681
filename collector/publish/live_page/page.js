// The live page: what is followed, when what is asked for again, and where it goes.

import { PHASES, addUp, deviceShares, drawShares, drawTwins, phaseShares } from "./charts.js";
import { Refused, Unreachable, follow, forgetToken, keepToken, ofRun, readBytes, readJson, token } from "./client.js";
import { at, element, fill, ms, number, percent, say, times } from "./dom.js";
import { FindingList, announce } from "./findings.js";
import { HeatMap, decode, drawScale } from "./heat_map.js";

const SLOWEST_SHOWN = 10;
const LATELY = 5; // stretches of /history that are "lately"
const PATIENCE = 10; // what is asked for keeps the collector busy for a tenth of the time at the most
const HISTORY_MS = 5000;
const INTERVALS_MS = 30000;
const STEPS_MS = 1000;
const CALM_MS = 5000; // for those who want less to move

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const shown = { run: null, rank: null, isPaused: false, missed: 0, picture: null, stretches: [], recent: null, pastKnown: -1, following: null };
const open = new FindingList(at("open-findings"));
const past = new FindingList(at("past-findings"));

/** Runs `work` when it is asked to, one at a time, and not more often than is good for either side: it waits at least
 * `leastMs`, and ten times as long as the last answer took. Who asks meanwhile is remembered. */
class Refresher {
  constructor(leastMs, work) {
    Object.assign(this, { leastMs, work, readyAt: 0, isBusy: false, isWanted: false, timer: undefined });
  }

  ask() {
    this.isWanted = true;
    clearTimeout(this.timer);
    if (!this.isBusy) this.timer = setTimeout(() => this.run(), Math.max(0, this.readyAt - performance.now()));
  }

  askAtOnce() {
    this.readyAt = 0;
    this.ask();
  }

  async run() {
    if (shown.run === null) return;
    const begin = performance.now();
    [this.isBusy, this.isWanted] = [true, false];
    try {
      await this.work(shown.run);
    } catch (error) {
      if (error instanceof Refused && error.status === 401) askForToken("");
      else if (!(error instanceof Refused || error instanceof Unreachable)) throw error;
    } finally {
      const lasted = performance.now() - begin;
      this.readyAt = performance.now() + Math.max(calm.matches ? CALM_MS : 0, this.leastMs, PATIENCE * lasted);
      this.isBusy = false;
      if (this.isWanted) this.ask();
    }
  }
}

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

const refreshers = {
  steps: new Refresher(STEPS_MS, heatOf("steps")),
  intervals: new Refresher(INTERVALS_MS, heatOf("intervals")),
  slowest: new Refresher(STEPS_MS, async (run) => {
    const { ranks } = await readJson(`${ofRun(run, "ranks")}?order=slowdown&limit=${SLOWEST_SHOWN}`);
    if (run === shown.run) showSlowest(ranks);
  }),
  history: new Refresher(HISTORY_MS, async (run) => {
    const { shares } = await readJson(`${ofRun(run, "history")}?points=0`);
    if (run === shown.run) showShares(shares);
  }),
  findings: new Refresher(STEPS_MS, async (run) => {
    const found = await readJson(ofRun(run, "findings"));
    if (run !== shown.run) return;
    past.show(found.past);
    say(at("past-count"), number(found.past.length));
    shown.pastKnown = found.past.length;
  }),
  rank: new Refresher(STEPS_MS, async (run) => {
    if (shown.rank === null) return;
    const asked = shown.rank;
    try {
      const answer = await readJson(ofRun(run, "ranks", asked));
      if (run === shown.run && asked === shown.rank) showRank(answer);
    } catch (error) {
      if (!(error instanceof Refused) || error.status === 401) throw error;
      at("rank-shown").hidden = true;
      say(at("rank-problem"), error.message);
    }
  }),
};

// -- what is shown ----------------------------------------------------------------------------------------------------

const linkTo = (run) => ({ key: run, make: () => [element("a", { href: `#run=${encodeURIComponent(run)}` }, run)] });

const showRuns = (runs) => {
  at("no-runs").hidden = runs.length > 0;
  fill(
    at("runs"),
    runs.map((one) => ({
      cells: [linkTo(one.run), `${number(one.ranks_up)} of ${number(one.world_size)}`, number(one.steps), number(one.samples_per_s, 1), number(one.open_findings)],
      right: [1, 2, 3, 4],
      current: one.run === shown.run,
    })),
  );
};

const showFigures = (run) => {
  const figures = [
    ["ranks up", `${number(run.ranks_up)} of ${number(run.world_size)}`], ["latest step", number(run.latest_step)],
    ["steps a second", number(run.steps_per_s, 2)], ["samples a second and rank", number(run.samples_per_s, 1)],
    ["tokens a second and rank", number(run.tokens_per_s, 0)], ["the run takes", run.run_slowdown_ratio === null ? "-" : `${times(run.run_slowdown_ratio)} times as long`],
    ["goodput", percent(run.goodput_ratio)], ["restarts", number(run.restart_count)],
    ...(run.abstained === null ? [] : [["no verdict on slow ranks", run.abstained]]),
  ];
  const list = at("figures");
  if (list.children.length !== figures.length) {
    list.replaceChildren(...figures.map(() => element("div", {}, element("dt"), element("dd"))));
  }
  figures.forEach(([name, value], place) => {
    const [term, told] = list.children[place].children;
    say(term, name);
    say(told, value);
    told.classList.toggle("words", name === "no verdict on slow ranks");
  });
};

const showFindings = (run, isFirst) => {
  const fresh = open.show(run.open_findings);
  at("no-findings").hidden = run.open_findings.length > 0;
  if (!isFirst) announce(fresh);
  if (run.findings_past !== shown.pastKnown) refreshers.findings.ask();
};

const stateOf = (rank) => (rank.up ? (rank.stalled ? "stalled" : "up") : rank.ended);

const showSlowest = (ranks) => {
  // Whoever stands on a button in it shall find the same rank under it.
  if (at("slowest").contains(document.activeElement)) return;
  fill(
    at("slowest"),
    ranks.map((one) => ({
      cells: [
        { key: `${shown.run} ${one.rank}`, make: () => [buttonFor(one.rank)] }, one.node, stateOf(one) ?? "-", times(one.slowdown_ratio),
        ms(one.self_ns_median), ms(one.step_ns_median), ms(one.wait_caused_ns_median),
      ],
      right: [0, 3, 4, 5, 6],
      current: one.rank === shown.rank,
    })),
  );
};

const buttonFor = (rank) => {
  const button = element("button", { type: "button", "aria-label": `Show rank ${rank} beside its twins` }, String(rank));
  button.addEventListener("click", () => {
    goTo(shown.run, rank);
    at("rank-title").focus();
  });
  return button;
};

const swatch = (name) => element("span", { class: `swatch ${name}` });

const showSharesOf = (chart, table, sharesOf) => {
  const told = shown.stretches.filter((stretch) => sharesOf(stretch).length);
  drawn[chart]();
  const lately = new Map(sharesOf(addUp(told.slice(-LATELY))).map(({ name, share }) => [name, share]));
  const rows = sharesOf(addUp(told)).filter(({ name, share }) => name !== "own-phase" || share > 0);
  const words = { "own-phase": "phases of the script", communication: "communication alone", compute: "compute alone", overlap: "both at once" };
  fill(
    at(table),
    rows.map(({ name, share }) => ({
      cells: [{ key: name, make: () => [swatch(name), words[name] ?? name] }, percent(lately.get(name)), percent(share)],
      right: [1, 2],
    })),
  );
};

const showShares = (stretches) => {
  shown.stretches = stretches;
  showSharesOf("phases", "phases-now", phaseShares);
  showSharesOf("device", "device-now", deviceShares);
};

const showRank = ({ number: which, node, local_rank: localRank, pid, gpu_model: gpu, rank, ratios, twins, recent }) => {
  const compared = twins === null ? "it has not been compared yet" : `compared with ${number(twins.count)} ${twins.are_twins ? "ranks that do the same work" : "ranks, all there are: too few do the same work"}`;
  const state = stateOf(rank) ?? "-";
  say(at("rank-problem"), "");
  say(at("rank-said"), `Rank ${which} on ${node} (local rank ${localRank}, process ${pid}${gpu === null ? "" : `, ${gpu}`}): ${state}; ${compared}.`);
  at("rank-shown").hidden = false;
  shown.recent = recent;
  drawn.twins();
  const line = (name, mine, theirs, format) => ({
    cells: [name, format(mine), format(theirs), mine > 0 && theirs > 0 ? times(mine / theirs) : "-"],
    right: [1, 2, 3],
  });
  const timed = [["own time, ms", "self_ns_median"], ["step, ms", "step_ns_median"], ["waiting caused in a step, ms", "wait_caused_ns_median"]];
  const phases = Object.keys(rank.phases_ns_median).sort((a, b) => PHASES.indexOf(a) - PHASES.indexOf(b));
  fill(at("beside"), [
    ...timed.map(([name, field]) => line(name, rank[field], twins?.[field], ms)),
    ...phases.map((name) => line(`phase ${name}, ms`, rank.phases_ns_median[name], twins?.phases_ns_median[name], ms)),
    ...Object.keys(ratios).map((name) => line(`${name.replaceAll("_", " ")}, share of the device's time`, ratios[name], twins?.ratios[name], percent)),
  ]);
};

// -- what happens -----------------------------------------------------------------------------------------------------

const takePicture = (picture) => {
  if (shown.isPaused) {
    shown.missed += 1;
    return sayPaused();
  }
  const isFirst = shown.picture === null || shown.picture.run?.run !== picture.run?.run;
  const isNewStep = isFirst || shown.picture.run?.latest_step !== picture.run?.latest_step;
  shown.picture = picture;
  at("sign-in").hidden = true;
  say(at("connection"), `Live; collector ${picture.version}.`);
  showRuns(picture.runs);
  if (shown.run === null && picture.runs.length) return goTo(picture.runs[0].run, null);
  at("run").hidden = picture.run === null;
  if (picture.run === null) return shown.run === null ? undefined : say(at("connection"), `No run ${shown.run} is known here.`);
  showFigures(picture.run);
  showFindings(picture.run, isFirst);
  refreshers.history.ask();
  if (isNewStep) for (const one of [at("source").value, "slowest", "rank"]) refreshers[one].ask();
};

const sayPaused = () =>
  say(at("connection"), `Paused: what is shown stays as it is; ${number(shown.missed)} picture${shown.missed === 1 ? "" : "s"} since.`);

const followRun = () => {
  shown.following?.abort();
  shown.following = new AbortController();
  follow(shown.run, takePicture, takeTrouble, shown.following.signal);
};

const takeTrouble = (refused) => {
  if (refused?.status === 401) return askForToken(token() === null ? "" : "That token is not the collector's.");
  say(at("connection"), refused === null ? "The collector does not answer; trying again." : `${refused.message}. Trying again.`);
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
  twins: () => drawTwins(at("twins"), shown.recent),
};

at("pause").addEventListener("click", () => {
  Object.assign(shown, { isPaused: !shown.isPaused, missed: 0 });
  at("pause").setAttribute("aria-pressed", String(shown.isPaused));
  if (shown.isPaused) sayPaused();
  else say(at("connection"), "Live.");
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
