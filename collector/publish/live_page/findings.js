// List of findings: sentence, suggestion and evidence. A finding that changes keeps its place and stays open.

import { at, element, ms, number, say } from "./dom.js";

const KEPT_MAX = 200; // past findings on the page; the API has them all

/** Format a number of the evidence; its name ends in its unit. */
const withUnit = (name, value) => {
  if (name.endsWith("_ns")) return `${ms(value)} ms`;
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

const build = (finding) => {
  const evidence = element("details", {}, element("summary", {}, `Evidence of finding ${finding.number}`));
  const body = element("div");
  evidence.append(body);
  const [head, sentence, suggestion] = [element("p", { class: "severity" }), element("p"), element("p")];
  const node = element("li", {}, head, sentence, suggestion, evidence);
  const update = (now) => {
    node.className = now.severity;
    say(head, `${now.severity}: ${now.kind}, ${now.cause}`);
    say(sentence, now.sentence);
    say(suggestion, now.suggestion);
    suggestion.hidden = !now.suggestion;
    const made = evidenceOf(now);
    evidence.hidden = !made.length;
    body.replaceChildren(...made);
  };
  update(finding);
  return { node, update, said: JSON.stringify(finding) };
};

/** A list of findings; `show` updates it and returns the new ones. */
export class FindingList {
  constructor(list) {
    this.list = list;
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
        entry = build(finding);
        this.shown.set(finding.number, entry);
        fresh.push(finding);
      } else if (entry.said !== said) {
        entry.update(finding);
        entry.said = said;
      }
      if (this.list.children[place] !== entry.node)
        this.list.insertBefore(entry.node, this.list.children[place] ?? null);
    });
    return fresh;
  }
}

/** Announce new findings to screen readers. */
export const announce = (findings) => {
  if (findings.length)
    at("announcement").textContent = findings.map((one) => `New finding. ${one.sentence}`).join(" ");
};
