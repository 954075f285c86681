// The captures of the run: how far each is, what it costs, and its files.

import { readBytes, token } from "./client.js";
import { at, dateAndClock, element, number, say } from "./dom.js";
import { handOver } from "./perfetto.js";

const [BYTES_PER_KB, BYTES_PER_MB] = [1e3, 1e6];
const REPORT = "report.html";
const MERGED = "merged.json.gz";
const TRACE = ".pt.trace.json.gz";
const PRICE_SETTING = "capture_pause_s_max"; // in the reason of a rank that refuses a capture because of its price
const FILE_WORDS = { [REPORT]: "report", [MERGED]: "timeline of all ranks" };
const STATE_WORDS = {
  ordered: "the ranks are being told the steps",
  recording: "the ranks wait for these steps, record them and write their files",
  fetching: "the files are on their way to the collector",
  analyzing: "the collector analyses the files",
};
const KEPT_HERE = "The file is handed over inside this browser, which shows it; it is not uploaded.";

const seconds = (s) => `${number(s, 2)} s`;
const size = (bytes) =>
  bytes < BYTES_PER_MB ? `${number(bytes / BYTES_PER_KB, 1)} kB` : `${number(bytes / BYTES_PER_MB, 1)} MB`;
const pathOf = (capture, name) => ["captures", capture.id, "files", name].map(encodeURIComponent).join("/");

const stepsOf = ({ first_step: first, last_step: last }) => {
  if (first === null || last === null) return "steps not known yet";
  return first === last ? `step ${number(first)}` : `steps ${number(first)} to ${number(last)}`;
};

/** Describe how far a capture is, in a sentence. */
const stateOf = (capture) => {
  const { state, fetched_bytes: fetched, size_bytes: all } = capture;
  const bytes = state === "fetching" && all ? `, ${size(fetched)} of ${size(all)}` : "";
  return `${state}${state in STATE_WORDS ? `: ${STATE_WORDS[state]}` : ""}${bytes}`;
};

/** Describe for how long it stops training: as expected until that is known. Ranks wait for each other. */
const costOf = ({ pause_s: paused, expected_pause_s: expected, state }) => {
  if (paused !== null) return `It has stopped training for ${seconds(paused)}.`;
  if (state === "complete") return "For how long it has stopped training is not known.";
  if (state === "failed") return "";
  if (expected !== null) return `It is expected to stop training for ${seconds(expected)}.`;
  return "What it is expected to cost is not known yet.";
};

/** Quote a word for a shell. */
const quote = (word) => (/^[\w./:@%+=-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

/** Write the command that orders a capture of a run once more, whatever it is expected to cost. */
const commandOf = (run, { ranks, first_step: first, last_step: last, options }) => {
  const steps = first === null || last === null ? [] : ["--steps", last - first + 1];
  const names = options.map((name) => `--${name}`);
  return ["rankscope capture", quote(run), "--ranks", ranks.join(","), ...steps, ...names, "--force"].join(" ");
};

/** Describe what went wrong, with the cure where the price was too high; empty where nothing did. */
const problemOf = (run, capture) => {
  const { problem } = capture;
  return problem.includes(PRICE_SETTING)
    ? `${problem}. To take it all the same: ${commandOf(run, capture)}`
    : problem;
};

/** Save a file that needs the token, which a link cannot send. */
const save = async (path, name) => {
  const address = URL.createObjectURL(new Blob([await readBytes(path)]));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 0);
};

const linkTo = (capture, file, said) => {
  const path = pathOf(capture, file.name);
  const words = `${FILE_WORDS[file.name] ?? file.name} (${size(file.size_bytes)})`;
  const link = element("a", { href: `api/v1/${path}`, target: "_blank", rel: "noopener" }, words);
  link.addEventListener("click", async (event) => {
    if (token() === null) return;
    event.preventDefault();
    try {
      await save(path, file.name);
    } catch (error) {
      say(said, `${file.name} could not be read: ${error.message}.`);
    }
  });
  return link;
};

/** Return the file to look at: that of all ranks, or the only trace; null without one. */
const timelineOf = ({ files }) => {
  const traces = files.filter(({ name }) => name.endsWith(TRACE));
  return files.find(({ name }) => name === MERGED) ?? (traces.length === 1 ? traces[0] : null);
};

const open = async (capture, name, said) => {
  const address = at("captures").dataset.perfetto;
  const { origin } = new URL(address);
  const perfetto = window.open(address);
  if (perfetto === null) return say(said, "The browser has blocked the window: allow pop-ups for this page.");
  const byHand = `save the timeline and open it by \`rankscope view ${name} --perfetto URL\` in a Perfetto of your own`;
  say(said, `Reading the file, and waiting for ${origin}.`);
  try {
    await handOver(perfetto, origin, {
      title: `capture ${capture.id}`,
      readBytes: () => readBytes(pathOf(capture, name)),
      onSlow: () => say(said, `${origin} does not answer. If this browser cannot reach it, ${byHand}.`),
    });
    return say(said, `Handed over to the window of ${origin}.`);
  } catch (error) {
    return say(said, `Not handed over: ${error.message}. Or ${byHand}.`);
  }
};

const perfettoButton = (capture, said) => {
  const file = timelineOf(capture);
  if (file === null) return [];
  const words = "Open in Perfetto";
  const name = `${words}: capture ${capture.id}`;
  const button = element("button", { type: "button", title: KEPT_HERE, "aria-label": name }, words);
  button.addEventListener("click", () => open(capture, file.name, said));
  return [button];
};

const build = (id) => {
  const [head, state, cost, problem, files] = [1, 2, 3, 4, 5].map(() => element("p"));
  const verdict = element("div");
  const said = element("p", { role: "status" });
  head.className = "severity";
  problem.className = "problem";
  files.className = "files";
  const node = element("li", { id: `capture-${id}` }, head, state, cost, problem, verdict, files, said);
  let listed = "";
  const update = (run, now) => {
    const options = now.options.length ? `, with ${now.options.join(", ")}` : "";
    const ranks = `rank${now.ranks.length === 1 ? "" : "s"} ${now.ranks.join(", ")}`;
    node.className = now.state;
    say(head, `${ranks}, ${stepsOf(now)}${options}`);
    const by = now.asked_by ? ` by ${now.asked_by}` : "";
    say(state, `${stateOf(now)}; capture ${now.id}, ordered${by} at ${dateAndClock(now.asked_wall_s)}`);
    say(cost, costOf(now));
    say(problem, problemOf(run, now));
    if (verdict.textContent !== now.verdict.replaceAll("\n", ""))
      verdict.replaceChildren(...now.verdict.split("\n").map((line) => element("p", {}, line)));
    for (const one of [cost, problem]) one.hidden = !one.textContent;
    const names = JSON.stringify([now.state === "complete", now.files]);
    if (names === listed) return;
    listed = names;
    const links = now.files.map((file) => linkTo(now, file, said));
    files.replaceChildren(...links, ...(now.state === "complete" ? perfettoButton(now, said) : []));
  };
  return { node, update };
};

/** The list of captures of one run; `show` updates it, and tells screen readers of each other state. */
export class CaptureList {
  constructor(list) {
    this.list = list;
    this.shown = new Map();
  }

  /** Forget the run that is shown. */
  clear() {
    this.shown.clear();
    this.list.replaceChildren();
  }

  show({ run, captures, captures_kept: kept, end }, takesOrders, isFirst) {
    at("captures").hidden = !(kept || (takesOrders && end === null));
    at("no-captures").hidden = kept > 0;
    say(at("captures-kept"), kept > captures.length ? `The newest ${captures.length} of ${number(kept)}.` : "");
    const ids = new Set(captures.map(({ id }) => id));
    for (const [id, { node }] of this.shown) if (!ids.has(id)) (node.remove(), this.shown.delete(id));
    const changed = [];
    captures.forEach((capture, place) => {
      const entry = this.shown.get(capture.id) ?? build(capture.id);
      if (entry.state !== capture.state) changed.push(capture);
      entry.state = capture.state;
      entry.update(run, capture);
      this.shown.set(capture.id, entry);
      if (this.list.children[place] !== entry.node)
        this.list.insertBefore(entry.node, this.list.children[place] ?? null);
    });
    if (changed.length && !isFirst)
      say(at("capture-said"), changed.map((one) => `Capture ${one.id}: ${stateOf(one)}. ${one.problem}`).join(" "));
  }
}
