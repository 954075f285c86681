// What is shown as text and tables: runs, figures, ranks, shares.

import { PHASES, addUp } from "./charts.js";
import { at, element, fill, ms, number, percent, say, times } from "./dom.js";

const LATELY = 5; // stretches of /history that are "lately"
const PART_NAMES = {
  "own-phase": "phases of the script",
  communication: "communication alone",
  compute: "compute alone",
  overlap: "both at once",
};
const TIMED = {
  "own time, ms": "self_ns_median",
  "step, ms": "step_ns_median",
  "waiting caused in a step, ms": "wait_caused_ns_median",
};

const linkTo = (run) => ({ key: run, make: () => [element("a", { href: `#run=${encodeURIComponent(run)}` }, run)] });

/** What a run is asked for by: the latest of its name by that name, a former one by its id. Runs of one name are in order. */
export const addressOf = (run, runs) =>
  runs.findLast((one) => one.run === run.run).run_id === run.run_id ? run.run : run.run_id;

/** The runs there are; `current` is the one that is shown. */
export const showRuns = (runs, current) => {
  at("no-runs").hidden = runs.length > 0;
  fill(
    at("runs"),
    runs.map((one) => ({
      cells: [
        linkTo(addressOf(one, runs)),
        `${number(one.ranks_up)} of ${number(one.world_size)}`,
        number(one.steps),
        number(one.samples_per_s, 1),
        number(one.open_findings),
        one.end === null ? "goes on" : one.end_in_words,
      ],
      right: [1, 2, 3, 4],
      current: [one.run_id, addressOf(one, runs)].includes(current),
    })),
  );
};

/** The figures of a run, from a LiveRun. */
export const showFigures = (run) => {
  say(at("run-end"), run.end_in_words);
  at("run-end").hidden = run.end === null;
  const speed = [
    ["steps a second", number(run.steps_per_s, 2)],
    ["samples a second and rank", number(run.samples_per_s, 1)],
    ["tokens a second and rank", number(run.tokens_per_s, 0)],
    ["the run takes", run.run_slowdown_ratio === null ? "-" : `${times(run.run_slowdown_ratio)} times as long`],
  ];
  const figures = [
    ["ranks up", `${number(run.ranks_up)} of ${number(run.world_size)}`],
    ["latest step", number(run.latest_step)],
    ...(run.end === null ? speed : []),
    ["goodput", percent(run.goodput_ratio)],
    ["restarts", number(run.restart_count)],
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

const stateOf = (rank) => {
  if (!rank.up) return rank.ended ?? "-";
  return rank.stalled ? "stalled" : "up";
};

/** The slowest ranks; `current` is the one that is shown below, `onPick(rank)` is told of another. */
export const showSlowest = (ranks, current, onPick) => {
  // Whoever stands on a button in it shall find the same rank under it.
  if (at("slowest").contains(document.activeElement)) return;
  fill(
    at("slowest"),
    ranks.map((one) => ({
      cells: [
        { key: String(one.rank), make: () => [buttonFor(one.rank, onPick)] },
        one.node,
        stateOf(one),
        times(one.slowdown_ratio),
        ms(one.self_ns_median),
        ms(one.step_ns_median),
        ms(one.wait_caused_ns_median),
      ],
      right: [0, 3, 4, 5, 6],
      current: one.rank === current,
    })),
  );
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

/** The shares of the last stretches, and of all together, as a table. */
export const showShares = (table, stretches, sharesOf) => {
  const told = stretches.filter((stretch) => sharesOf(stretch).length);
  const lately = new Map(sharesOf(addUp(told.slice(-LATELY))).map(({ name, share }) => [name, share]));
  const rows = sharesOf(addUp(told)).filter(({ name, share }) => name !== "own-phase" || share > 0);
  fill(
    table,
    rows.map(({ name, share }) => ({
      cells: [
        { key: name, make: () => [swatch(name), PART_NAMES[name] ?? name] },
        percent(lately.get(name)),
        percent(share),
      ],
      right: [1, 2],
    })),
  );
};

const compared = (peers) => {
  if (peers === null) return "it has not been compared yet";
  const whom = peers.do_same_work ? "ranks that do the same work" : "ranks, all there are: too few do the same work";
  return `compared with ${number(peers.count)} ${whom}`;
};

/** One rank beside its peers in words and as a table, from a RankAnswer. */
export const showRank = (answer) => {
  const { rank, ratios, peers } = answer;
  const gpu = answer.gpu_model === null ? "" : `, ${answer.gpu_model}`;
  const place = `local rank ${answer.local_rank}, process ${answer.pid}${gpu}`;
  const said = `Rank ${answer.number} on ${answer.node} (${place}): ${stateOf(rank)}; ${compared(peers)}.`;
  say(at("rank-problem"), "");
  say(at("rank-said"), said);
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
};
