// Text and tables: runs, figures, ranks, time shares.

import { PART_NAMES, PHASES, addUp } from "./charts.js";
import { at, duration, element, fill, ms, number, percent, say, sayWithCode, times } from "./dom.js";
import { hideEmpty } from "./machines.js";

const RECENT = 5; // slices of /history in the column "recent"
const TIMED = {
  "own time, ms": "own_ns_median",
  "step, ms": "step_ns_median",
  "caused wait per step, ms": "wait_caused_ns_median",
};


const linkTo = (run) => ({ key: run, make: () => [element("a", { href: `#run=${encodeURIComponent(run)}` }, run)] });

/** Return the address of a run: its name if it is the latest of that name, else its id. Runs of a name are in order. */
export const addressOf = (run, runs) =>
  runs.findLast((one) => one.run === run.run).run_id === run.run_id ? run.run : run.run_id;

/** What the figures of a run mean. */
const MEANINGS = {
  "ranks up": "Ranks that report, of all",
  "latest step": "The last step that all parts of the page know",
  "steps a second": "In the last seconds",
  "samples a second and rank": "Where the data loader or the script says how large a batch is",
  "tokens a second and rank": "Where the data loader or the script says how many there are",
  "run slowdown": "A step now, over a step without the slow ranks: 1x is no loss, at 2x every second GPU hour is lost",
  goodput: "Share of the run's time so far that went into steps, less what slow ranks have cost",
  MFU: "Model FLOPs utilization: FLOPs that the model needs, over what the devices could do in that time",
  restarts: "Starts of this run after the first",
  "last checkpoint": "The last step in which a rank saved",
};

const FILTER_FROM = 6; // fewer runs need no field for a filter

/** Return whose run it is: its user, its Slurm job, its pod; "-" where nothing is known. */
export const whoseIs = ({ user, slurm_job_id: job, k8s_namespace: namespace, k8s_pod: pod }) => {
  const inPod = [namespace, pod].filter((one) => one).join("/");
  return [user, job && `Slurm job ${job}`, inPod].filter((one) => one).join(", ") || "-";
};

/** Whether every word is part of the name, the id or the state of a run, or of whose it is. */
export const isAsked = (run, words) => {
  const state = run.end === null ? "running" : run.end_in_words;
  const text = `${run.run} ${run.run_id} ${state} ${whoseIs(run.origin)}`.toLowerCase();
  return words.every((word) => text.includes(word));
};

let wasListed = null;

/** Open the list of runs where there is one to choose, and close it where not; what a reader has chosen since stays. */
const showRunList = (isListed) => {
  if (isListed !== wasListed) at("runs-shown").open = isListed;
  wasListed = isListed;
};

/** Show the list of runs; `current` is the selected one, `wallS` the time, `wanted` the text of the filter. */
export const showRuns = (runs, current, wanted) => {
  showRunList(runs.length !== 1);
  at("no-runs").hidden = runs.length > 0;
  at("runs").hidden = !runs.length;
  at("run-filter-shown").hidden = runs.length < FILTER_FROM && !wanted;
  const words = wanted.toLowerCase().split(/\s+/).filter((word) => word);
  const asked = runs.filter((one) => isAsked(one, words));
  say(at("runs-count"), words.length ? `${number(asked.length)} of ${number(runs.length)} runs` : "");
  fill(
    at("runs"),
    asked.map((one) => ({
      cells: [
        linkTo(addressOf(one, runs)),
        `${number(one.ranks_up)} of ${number(one.world_size)}`,
        number(one.steps),
        number(one.samples_per_s, 1),
        number(one.open_findings),
        one.end === null ? "running" : one.end_in_words,
        duration(one.age_s),
        whoseIs(one.origin),
      ],
      right: [1, 2, 3, 4, 6],
      current: [one.run_id, addressOf(one, runs)].includes(current),
    })),
  );
};

/** Show how to point a run here: `settings` are those of the collector, `host` the name by which this page is read. */
export const showJoining = ({ listen, needs_keys: needsKeys }, host) => {
  const [, own, port] = /^tcp:\/\/(.*):(\d+)$/.exec(listen) ?? [null, "", "0"];
  const isAnywhere = ["*", "0.0.0.0", "[::]"].includes(own);
  const isLocal = /^(127\.|\[::1\]|localhost$)/.test(own);
  const address = `tcp://${isAnywhere ? host : own}:${port === "0" ? "PORT" : port}`;
  const keys = needsKeys ? "RANKSCOPE_KEY_FILE=agent.key RANKSCOPE_COLLECTOR_KEY_FILE=collector.pub " : "";
  const variables = `RANKSCOPE_COLLECTOR=${address} RANKSCOPE_RUN=first ${keys}`;
  say(at("join-command"), `${variables}torchrun ... -m rankscope.agent train.py`);
  const notes = [
    isLocal ? "This collector accepts ranks of its own machine only. For others set listen to an address that they can reach, with keys (docs/keys.md)." : "",
    port === "0" ? "PORT is in the first lines of its log." : "",
    needsKeys ? "It requires keys: docs/keys.md says how to make them." : "",
    "RANKSCOPE_RUN names the run; docs/quickstart.md has the rest, and rankscope doctor says why nothing arrives.",
  ];
  say(at("join-note"), notes.filter((one) => one).join(" "));
};

/** Whether a run that is over has had a verdict: a collector that has restored it cannot give another one. */
const hasVerdict = ({ end, findings_past: past }) => end !== null && past > 0;

/** Return the last marked checkpoint and how long ago it was: "step 1,200, 12 min ago, 3 in all". */
const lastCheckpoint = ({ count, latest }, nowS) => {
  const last = latest.at(-1);
  return `step ${number(last.step)}, ${duration(Math.max(0, nowS - last.wall_s))} ago, ${number(count)} in all`;
};

/** Show the figures of a run, from a LiveRun of the time `nowS` (seconds since 1970). */
export const showFigures = (run, nowS) => {
  say(at("run-end"), run.end_in_words);
  at("run-end").hidden = run.end === null;
  sayWithCode(at("run-end-do"), `What to do: ${run.end_suggestion}`);
  at("run-end-do").hidden = !run.end_suggestion;
  say(at("run-settings"), `Changed settings: ${run.settings_said}`);
  at("run-settings").hidden = !run.settings_said;
  const speed = [
    ["steps a second", number(run.steps_per_s, 2)],
    ["samples a second and rank", number(run.samples_per_s, 1)],
    ["tokens a second and rank", number(run.tokens_per_s, 0)],
    ["run slowdown", run.run_slowdown_ratio === null ? "-" : `${times(run.run_slowdown_ratio)}x`],
  ];
  const figures = [
    ["ranks up", `${number(run.ranks_up)} of ${number(run.world_size)}`],
    ["latest step", number(run.latest_step)],
    ...(run.end === null ? speed : []),
    ["goodput", percent(run.goodput_ratio)],
    ...(run.mfu_ratio === null ? [] : [["MFU", percent(run.mfu_ratio)]]),
    ["restarts", number(run.restart_count)],
    ...(run.checkpoints.count ? [["last checkpoint", lastCheckpoint(run.checkpoints, nowS)]] : []),
  ];
  showTerms(at("figures"), figures.filter(([, value]) => value !== "-"), MEANINGS);
  const notes = [
    ...(run.abstained === null || hasVerdict(run) ? [] : [["no straggler verdict", run.abstained]]),
    ...(run.without_peers_said === null ? [] : [["not judged", run.without_peers_said]]),
    ...(run.injected_faults ? [["injected faults", run.injected_faults]] : []),
    ...(run.pipeline_said ? [["pipeline", run.pipeline_said]] : []),
    ...(run.layers_said ? [["layers", run.layers_said]] : []),
    ...(run.experts_said ? [["experts", run.experts_said]] : []),
    ...(run.compilation_said ? [["compilation", run.compilation_said]] : []),
    ...(run.flops_said ? [["use of the devices' peak", run.flops_said]] : []),
    ...(run.energy_said ? [["energy of the GPUs", run.energy_said]] : []),
    ...(run.window_ratios_said ? [["full windows", run.window_ratios_said]] : []),
    ...(run.window_effect === null ? [] : [["cost of full windows", run.window_effect]]),
    ...(run.timing_effect === null ? [] : [["timing of collectives", run.timing_effect]]),
  ];
  at("notes-shown").hidden = !notes.length;
  say(at("notes-count"), `${number(notes.length)} note${notes.length === 1 ? "" : "s"}`);
  showTerms(at("notes"), notes);
  showHealth(run);
};

/** Fill a list of terms, each with what is said of it; `meanings` has titles of terms. */
const showTerms = (list, terms, meanings = {}) => {
  if (list.children.length !== terms.length) {
    list.replaceChildren(...terms.map(() => element("div", {}, element("dt"), element("dd"))));
  }
  terms.forEach(([name, value], place) => {
    const [term, detail] = list.children[place].children;
    say(term, name);
    say(detail, value);
    list.children[place].title = meanings[name] ?? "";
  });
};

const plural = (count, name) => `${number(count)} ${name}${count === 1 ? "" : "s"}`;

/** Return how a run is, in a few words, and the class of that: its severest finding, how it ended, or whether it is judged. */
export const healthOf = (run) => {
  if (run.end !== null) return run.end_suggestion ? ["failed", "critical"] : ["ended", "info"];
  const counted = ["critical", "warning", "info"].map((severity) => [
    severity,
    run.open_findings.filter((one) => one.severity === severity).length,
  ]);
  const [worst] = counted.find(([severity, count]) => count && severity !== "info") ?? [null];
  if (worst !== null) {
    return [counted.filter(([, count]) => count).map(([name, count]) => plural(count, name)).join(", "), worst];
  }
  if (run.abstained !== null) return ["no verdict yet", "info"];
  const told = run.open_findings.length;
  return [told ? `no rank is slow; ${plural(told, "finding")} for information` : "healthy: no rank is slow", "good"];
};

const showHealth = (run) => {
  const [words, kind] = healthOf(run);
  say(at("health"), words);
  at("health").className = `chip ${kind}`;
};

/** Return the state of a rank; of one that is silent also how old its last report is, at `wallS`. */
const stateOf = (rank, wallS) => {
  if (rank.ended === "silent" && rank.last_report_wall_s !== null)
    return `silent, last report ${duration(Math.max(0, wallS - rank.last_report_wall_s))} ago`;
  if (!rank.up) return rank.ended ?? "-";
  return rank.stalled ? "stalled" : "up";
};

/** Show ranks as a table; `current` is the selected one, `onPick(rank)` is called when another is selected. */
export const showRanks = ({ ranks, ranks_known: known, medians_said: said }, current, wallS, onPick) => {
  // Keep the table while a button in it has the focus, so that it stays the button of the same rank.
  if (at("ranks").tBodies[0].contains(document.activeElement)) return;
  const shown = ranks.length < known ? `of ${number(known)} ranks` : `${plural(known, "rank")}, all of them`;
  say(at("ranks-said"), said ? `${shown}; ${said}` : shown);
  fill(
    at("ranks"),
    ranks.map((one) => ({
      cells: [
        { key: String(one.rank), make: () => [buttonFor(one.rank, onPick)] },
        one.node,
        stateOf(one, wallS),
        times(one.slowdown_ratio),
        ms(one.own_ns_median),
        ms(one.step_ns_median),
        ms(one.phases_ns_median.data),
        ms(one.phases_ns_median.forward),
        ms(one.phases_ns_median.backward),
        ms(one.wait_caused_ns_median),
        shareOf(one.ratios.exposed_communication),
        shareOf(one.ratios.idle),
        shareOf(one.mfu_ratio),
        shareOf(one.gpu?.utilization_ratio),
      ],
      right: [0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
      current: one.rank === current,
    })),
  );
  hideEmpty(at("ranks"));
};

const shareOf = (share) => (share === null || share === undefined ? "-" : percent(share));

const ARIA_SORT = { false: "descending", true: "ascending" };

/** Make the heads of the table of ranks buttons that sort it. `asked` is the order, `{order, isReversed}`; `onSort` is
 * called when it has changed. By rank the lowest number comes first, by all else the largest value. */
export const startSorting = (asked, onSort) => {
  const heads = [...document.querySelectorAll("#ranks th[data-order]")];
  const mark = () => {
    for (const head of heads) {
      const { order } = head.dataset;
      const isLargestFirst = asked.isReversed === (order === "rank");
      if (order === asked.order) head.setAttribute("aria-sort", ARIA_SORT[!isLargestFirst]);
      else head.removeAttribute("aria-sort");
    }
  };
  for (const head of heads) {
    const button = element("button", { type: "button", class: "sorts" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      asked.isReversed = asked.order === head.dataset.order && !asked.isReversed;
      asked.order = head.dataset.order;
      mark();
      onSort();
    });
  }
  mark();
};

const buttonFor = (rank, onPick) => {
  const button = element(
    "button",
    { type: "button", "aria-label": `Show rank ${rank} beside its peers` },
    String(rank),
  );
  button.addEventListener("click", () => onPick(rank));
  return button;
};

const swatch = (name) => element("span", { class: `swatch ${name}` });

/** Show the shares of the last time slices, and of all together, as a table. */
export const showShares = (table, stretches, sharesOf) => {
  const known = stretches.filter((stretch) => sharesOf(stretch).length);
  const recent = new Map(sharesOf(addUp(known.slice(-RECENT))).map(({ name, share }) => [name, share]));
  const rows = sharesOf(addUp(known)).filter(({ name, share }) => name !== "own-phase" || share > 0);
  table.hidden = !rows.length;
  fill(
    table,
    rows.map(({ name, share }) => ({
      cells: [
        { key: name, make: () => [swatch(name), PART_NAMES[name] ?? name] },
        percent(recent.get(name)),
        percent(share),
      ],
      right: [1, 2],
    })),
  );
};

const compared = (peers) => {
  if (peers === null) return "not compared yet";
  const whom = peers.do_same_work ? "peer ranks" : "ranks, all of the run: it has no peer ranks";
  return `compared with ${number(peers.count)} ${whom}`;
};

/** Show one rank beside its peers at `wallS`, in a sentence and as a table, from a RankAnswer. */
export const showRank = (answer, wallS) => {
  const { rank, ratios, peers } = answer;
  const gpu = answer.gpu_model === null ? "" : `, ${answer.gpu_model}`;
  const place = `local rank ${answer.local_rank}, process ${answer.pid}${gpu}`;
  const said = `Rank ${answer.number} on ${answer.node} (${place}): ${stateOf(rank, wallS)}; ${compared(peers)}.`;
  say(at("rank-problem"), "");
  const basis = answer.ratios_said ? ` Shares of the device's time: ${answer.ratios_said}.` : "";
  const memory = answer.memory_said ? ` Memory: ${answer.memory_said}.` : "";
  const copies = answer.host_copies_said ? ` Copies from the host: ${answer.host_copies_said}.` : "";
  const flops = answer.flops_said ? ` Last minute of its steps: ${answer.flops_said}.` : "";
  say(at("rank-said"), `${said}${basis}${memory}${copies}${flops}`);
  at("rank-shown").hidden = false;
  const line = (name, mine, theirs, format) => ({
    cells: [name, format(mine), format(theirs), mine > 0 && theirs > 0 ? times(mine / theirs) : "-"],
    right: [1, 2, 3],
  });
  const phases = Object.keys(rank.phases_ns_median).sort((a, b) => PHASES.indexOf(a) - PHASES.indexOf(b));
  fill(at("beside"), [
    ...Object.entries(TIMED).map(([name, field]) => line(name, rank[field], peers?.[field], ms)),
    ...phases.map((name) =>
      line(`phase ${name}, ms`, rank.phases_ns_median[name], peers?.phases_ns_median[name], ms),
    ),
    ...Object.keys(ratios).map((name) =>
      line(`${name.replaceAll("_", " ")}, share of the device's time`, ratios[name], peers?.ratios[name], percent),
    ),
  ]);
  showWaits(answer.blocking_calls ?? []);
};

/** Show the blocking calls of a rank by kind, the longest waits first; nothing where none was seen. */
const showWaits = (kinds) => {
  at("waits-shown").hidden = !kinds.length;
  fill(
    at("waits"),
    kinds.map((kind) => ({
      cells: [
        kind.line ?? "line not known",
        kind.operator ?? "not recorded",
        kind.call,
        number(kind.count, 1),
        ms(kind.wait_ns),
        ms(kind.idle_ns),
      ],
      right: [3, 4, 5],
    })),
  );
};
