// The incidents of the run, newest first: what outlives a finding and a restart of the collector.

import { at, dateAndClock, duration, element, number, say } from "./dom.js";
import { titleOf } from "./findings.js";
import { linksOf } from "./links.js";

const SHOWN_MAX = 50; // the API has them all

/** Describe when an incident was open and what it has cost. */
export const describeIncident = (one, nowWallS) => {
  const since = one.reopened_wall_s ?? one.opened_wall_s;
  const again = one.reopened_wall_s === null ? "" : `, opened again ${dateAndClock(one.reopened_wall_s)}`;
  const opened = `opened ${dateAndClock(one.opened_wall_s)}${again}`;
  const isOpen = one.resolved_wall_s === null;
  const cost = one.lost_said ? `; it ${isOpen ? "has " : ""}cost ${one.lost_said}` : "";
  if (isOpen) return `open for ${duration(Math.max(0, nowWallS - since))}, ${opened}${cost}`;
  const reason = one.resolved_reason ? `, ${one.resolved_reason}` : "";
  return `resolved ${dateAndClock(one.resolved_wall_s)}${reason}; ${opened}${cost}`;
};

const build = (one, nowWallS) => {
  const [head, sentence, when] = [
    `Incident ${one.id}. ${titleOf(one)}`,
    one.sentence,
    describeIncident(one, nowWallS),
  ].map((text) => element("p", {}, text));
  head.className = "severity";
  const history = one.node_history.map((text) => element("p", {}, text));
  const links = element("p", { class: "links" }, ...linksOf({ ...one, incident: null }));
  const isOpen = one.resolved_wall_s === null;
  const kind = isOpen ? one.severity : "resolved";
  const parts = [head, sentence, when, ...history, links];
  return element("li", { id: `incident-${one.id}`, class: kind }, ...parts);
};

let shown = "";

/** Show the incidents of a run, as of a time; the list is left alone while the focus is inside. */
export const showIncidents = (incidents, nowWallS) => {
  const list = at("incident-list");
  at("no-incidents").hidden = incidents.length > 0;
  const more = `The newest ${SHOWN_MAX} of ${number(incidents.length)}; api/v1/incidents has all.`;
  say(at("incidents-kept"), incidents.length > SHOWN_MAX ? more : "");
  const said = JSON.stringify([incidents, Math.floor(nowWallS / 60)]);
  if (said === shown || (list.contains(document.activeElement) && incidents.length)) return;
  shown = said;
  list.replaceChildren(...incidents.slice(0, SHOWN_MAX).map((one) => build(one, nowWallS)));
};
