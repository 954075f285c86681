// List of findings: headline, facts, what to do and evidence. A finding that changes keeps its place and stays open.

import { at, element, number, say, sayWithCode, span } from "./dom.js";
import { linksOf } from "./links.js";

const KEPT_MAX = 200; // past findings on the page; the API has them all

/** Format a number of the evidence; its name ends in its unit. */
const withUnit = (name, value) => {
  if (name.endsWith("_ns")) return span(value);
  return number(value, Number.isInteger(value) ? 0 : 2);
};

const evidenceOf = (finding) => {
  const numbers = Object.entries(finding.evidence).map(([name, value]) => [name, withUnit(name, value)]);
  const said = Object.entries(finding.details);
  const rows = numbers.map(([name, text]) =>
    element("tr", {}, element("th", { scope: "row" }, name), element("td", { class: "right" }, text)),
  );
  const words = said.flatMap(([name, text]) => [element("p", {}, name), element("pre", {}, text)]);
  const table = element("table", {}, element("caption", {}, "Evidence"), element("tbody", {}, ...rows));
  return rows.length ? [table, ...words] : words;
};

/** Return a button that captures the first rank of a finding. A run that hangs reaches no further step. */
const captureButton = (onCapture) => {
  const button = element("button", { type: "button", class: "capture" });
  let rank = null;
  button.addEventListener("click", () => onCapture(rank));
  const update = ({ kind, ranks }) => {
    button.hidden = kind === "hang" || !ranks.length;
    rank = ranks[0] ?? null;
    say(button, `Capture rank ${rank} and two for comparison`);
  };
  return { button, update };
};

/** Return the table of source lines that samples have shown: what each costs the rank and its peer in a step. */
const linesOf = ({ lines }) => {
  if (!lines?.lines.length) return [];
  const hasPeer = lines.peer !== null;
  const isHang = lines.first_step === null;
  const heads = isHang ? ["ranks"] : [`rank ${lines.rank}`, ...(hasPeer ? [`rank ${lines.peer}`] : [])];
  const head = [...heads, "line", "calls", "inside", "waits in"].map((text) => element("th", { scope: "col" }, text));
  const rows = lines.lines.map((one) => {
    const times = isHang ? [one.ranks.join(", ")] : [span(one.ns), ...(hasPeer ? [span(one.peer_ns ?? 0)] : [])];
    const cells = times.map((text) => element("td", { class: "right" }, text));
    const words = [one.line, one.call, one.inside, one.waits_in].map((text) => element("td", {}, text));
    words[0].title = one.stack.join(" > ");
    return element("tr", {}, ...cells, ...words);
  });
  const steps = isHang ? "" : `, per step, mean of ${lines.steps} steps`;
  return [
    element(
      "table",
      {},
      element("caption", {}, `Source lines${steps}`),
      element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, ...rows),
    ),
  ];
};

const FACTS = ["Cost", "Why", "Also", "Times"];

/** Return how severe a finding or an incident is and what it is, with its cause where that is another word, as "Warning: slow link". */
export const titleOf = ({ severity, kind, cause }) => {
  const words = [kind, ...(cause === kind ? [] : [cause])].map((word) => word.replaceAll("_", " "));
  return `${severity[0].toUpperCase()}${severity.slice(1)}: ${words.join(", ")}`;
};

const build = (finding, onCapture) => {
  const evidence = element("details", {}, element("summary", {}, `Evidence of finding ${finding.number}`));
  const body = element("div");
  evidence.append(body);
  const [head, headline, line, suggestion, links] = [1, 2, 3, 4, 5].map(() => element("p"));
  head.className = "severity";
  headline.className = "headline";
  suggestion.className = "do";
  const todo = element("span");
  suggestion.append(element("strong", {}, "What to do:"), " ", todo);
  const lineSaid = element("span");
  line.append(element("strong", {}, "Source line:"), " ", lineSaid);
  links.className = "links";
  const rows = FACTS.map((name) => element("div", {}, element("dt", {}, name), element("dd")));
  const facts = element("dl", { class: "facts" }, ...rows);
  const capture = onCapture === null ? null : captureButton(onCapture);
  const tools = element("div", { class: "tools" }, links, ...(capture === null ? [] : [capture.button]));
  const node = element("li", {}, head, headline, facts, suggestion, line, tools, evidence);
  let aimed = "";
  const update = (now) => {
    node.className = now.severity;
    say(head, titleOf(now));
    say(headline, now.headline);
    [now.whole_cost, now.reason_said, now.also.join("; "), now.figures].forEach((text, place) => {
      say(rows[place].lastChild, text);
      rows[place].hidden = !text;
    });
    say(lineSaid, now.lines?.sentence ?? "");
    line.hidden = !now.lines;
    sayWithCode(todo, now.suggestion);
    suggestion.hidden = !now.suggestion;
    const aims = JSON.stringify([now.ranks, now.nodes, now.incident, now.captures, now.runbook]);
    if (aims !== aimed) links.replaceChildren(...linksOf(now)); // else one of them may have the focus
    aimed = aims;
    links.hidden = !links.children.length;
    capture?.update(now);
    const made = [...linesOf(now), ...evidenceOf(now)];
    evidence.hidden = !made.length;
    body.replaceChildren(...made);
  };
  update(finding);
  return { node, update, said: "" };
};

/** A list of findings; `show` updates it and returns the new ones. `onCapture(rank)`: a capture is wanted; null: those of this list cannot be captured any more. */
export class FindingList {
  constructor(list, onCapture = null) {
    this.list = list;
    this.onCapture = onCapture;
    this.shown = new Map();
  }

  show(findings) {
    const kept = findings.slice(0, KEPT_MAX);
    const numbers = new Set(kept.map((finding) => finding.number));
    for (const [one, { node }] of this.shown) if (!numbers.has(one)) (node.remove(), this.shown.delete(one));
    const fresh = [];
    kept.forEach((finding, place) => {
      const said = JSON.stringify(finding);
      let entry = this.shown.get(finding.number);
      if (entry === undefined) {
        entry = build(finding, this.onCapture);
        this.shown.set(finding.number, entry);
        fresh.push(finding);
      } else if (entry.said !== said) entry.update(finding);
      entry.said = said;
      if (this.list.children[place] !== entry.node)
        this.list.insertBefore(entry.node, this.list.children[place] ?? null);
    });
    return fresh;
  }
}

/** Announce new findings to screen readers. */
export const announce = (findings) => {
  if (findings.length) at("announcement").textContent = findings.map((one) => `New finding. ${one.headline}`).join(" ");
};
