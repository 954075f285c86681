// The dialogue that orders a capture of a rank and those beside it, with the control token.

import { Refused, Unreachable, controlToken, forgetControlToken, keepControlToken, order } from "./client.js";
import { at, number, say } from "./dom.js";

const STEPS = 3;
const WRONG_TOKEN = [401, 403];
const RIGHT_TOKEN = [404, 409, 422]; // refused for another reason than the token
const asked = { runId: null, rank: null, takesOrders: false };

/** Show the field for the token where one is needed and none is held. */
const askForToken = () => {
  const isNeeded = asked.takesOrders && controlToken() === null;
  at("order-token-asked").hidden = !isNeeded;
  at("order-token").required = isNeeded;
};

/** Describe what the last capture of the run has cost; empty where none has told. */
const describeLast = (captures) => {
  const last = captures.find(({ pause_s: paused }) => paused !== null);
  return last === undefined ? "" : `The last one of this run stopped training for ${number(last.pause_s, 2)} s.`;
};

const showRefusal = (error, held) => {
  if (!(error instanceof Refused || error instanceof Unreachable)) throw error;
  if (WRONG_TOKEN.includes(error.status)) forgetControlToken();
  else if (RIGHT_TOKEN.includes(error.status)) keepControlToken(held);
  const silence = "The collector does not answer. If it has taken the order, the capture is listed under Captures.";
  say(at("order-problem"), error instanceof Refused ? `The collector answers: ${error.message}` : silence);
  askForToken();
  if (!at("order-token-asked").hidden) at("order-token").focus();
};

const send = async (held) => {
  at("order-send").disabled = true;
  say(at("order-problem"), "");
  try {
    await order(asked.runId, { ranks: { around: asked.rank }, steps: STEPS }, held);
    keepControlToken(held);
    at("order").close();
    at("captures-title").focus();
  } catch (error) {
    showRefusal(error, held);
  } finally {
    at("order-token").value = "";
    at("order-send").disabled = false;
  }
};

/** Open the dialogue for a rank of a LiveRun. A collector that takes no orders is asked at once, for its reason. */
export const openOrder = (run, rank, takesOrders) => {
  Object.assign(asked, { runId: run.run_id, rank, takesOrders });
  const others = "for comparison, its healthiest peer and a neighbor on its node";
  say(at("order-what"), `This records a trace of the same ${STEPS} steps on rank ${rank} and, ${others}.`);
  say(at("order-last"), describeLast(run.captures));
  say(at("order-problem"), "");
  askForToken();
  for (const id of ["order-price", "order-last", "order-send"]) at(id).hidden = !takesOrders;
  at("order").showModal();
  if (!takesOrders) send(null);
};

at("order-form").addEventListener("submit", (event) => {
  event.preventDefault();
  send(controlToken() ?? at("order-token").value.trim());
});
at("order-cancel").addEventListener("click", () => at("order").close());
at("order").addEventListener("close", () => (at("order-token").value = ""));
