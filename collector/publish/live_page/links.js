// Links from a finding or an incident to everything about it: rank, heat map, incident, captures, runbook, Grafana.

import { at, element } from "./dom.js";

const CAPTURES_MAX = 5; // captures that are linked, the newest
const known = { run: null, name: null, settings: null, showRanks: null };

/** Set what links lead to: the address of the run on this page and its name, the collector's settings for the page, and
 * what shows ranks in the heat map. */
export const aimLinks = (target) => Object.assign(known, target);

/** Move the focus to an element of the page, which is scrolled to. */
export const goToElement = (id) => {
  const node = at(id);
  if (node === null) return;
  if (!node.hasAttribute("tabindex")) node.setAttribute("tabindex", "-1");
  node.focus();
  node.scrollIntoView({ block: "nearest" });
};

const button = (words, act) => {
  const made = element("button", { type: "button" }, words);
  made.addEventListener("click", act);
  return made;
};

const outside = (address, words) => element("a", { href: address, target: "_blank", rel: "noopener" }, words);

const rankLinks = ({ ranks }) => {
  if (!ranks.length) return [];
  const [first] = ranks;
  const address = `#run=${encodeURIComponent(known.run)}&rank=${first}`;
  const beside = element("a", { href: address }, `Rank ${first} beside its peers`);
  beside.addEventListener("click", () => at("rank-title").focus());
  const shown = ranks.length === 1 ? "Its row in the heat map" : "Their rows in the heat map";
  return [beside, button(shown, () => known.showRanks(ranks))];
};

const incidentLink = ({ incident }) =>
  typeof incident === "number" ? [button(`Incident ${incident}`, () => goToElement(`incident-${incident}`))] : [];

const captureLinks = ({ captures }) =>
  captures.slice(0, CAPTURES_MAX).map((id) => button(`Capture ${id}`, () => goToElement(`capture-${id}`)));

const runbookLink = ({ runbook }) => {
  if (!runbook) return [];
  const base = known.settings.runbooks_url || "live/runbooks"; // where the collector has those of its release
  return [outside(`${base}/${runbook}.md`, "Runbook")];
};

/** Return the address of the dashboard for a finding: of its first rank or its node, else of the run. */
export const dashboardOf = (base, run, { ranks, nodes }) => {
  const asked = new URLSearchParams({ "var-run": run });
  if (nodes.length) asked.set("var-node", nodes[0]);
  else if (ranks.length) asked.set("var-rank", ranks[0]);
  const kind = nodes.length ? "node" : ranks.length ? "rank" : "run";
  return `${base}/d/rankscope-${kind}?${asked}`;
};

const grafanaLink = (one) => {
  const base = known.settings.grafana_url;
  return base ? [outside(dashboardOf(base, known.name, one), "Grafana")] : [];
};

/** Return the links of a finding, or of an incident with the fields of one. */
export const linksOf = (one) => [
  ...rankLinks(one),
  ...incidentLink(one),
  ...captureLinks(one),
  ...runbookLink(one),
  ...grafanaLink(one),
];
