// Client of the collector's API, with a token where it requires one. Paths are relative, for proxies.

const TOKEN_KEY = "rankscope-token";
const CONTROL_KEY = "rankscope-control-token";
const RETRY_MS = 2000;
const BUSY_RETRY_MS = 5000;

/** A response that is an error: its `status` and the error text. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** No response, or an incomplete one. */
export class Unreachable extends Error {}

const reach = (promise) => promise.catch((error) => Promise.reject(new Unreachable(error.message)));

/** The token of this tab, null without one. */
export const token = () => sessionStorage.getItem(TOKEN_KEY);
export const keepToken = (text) => sessionStorage.setItem(TOKEN_KEY, text);
export const forgetToken = () => sessionStorage.removeItem(TOKEN_KEY);

/** Take the token out of the address, which history and screenshots keep, and keep it for this tab. */
export const takeTokenFromAddress = () => {
  const query = new URLSearchParams(location.search);
  const held = query.get("token");
  if (held === null) return;
  if (held) keepToken(held);
  query.delete("token");
  const rest = query.size ? `?${query}` : "";
  history.replaceState(null, "", `${location.pathname}${rest}${location.hash}`);
};

/** The token for orders of this tab, null without one. It is sent with an order only. */
export const controlToken = () => sessionStorage.getItem(CONTROL_KEY);
export const keepControlToken = (text) => sessionStorage.setItem(CONTROL_KEY, text);
export const forgetControlToken = () => sessionStorage.removeItem(CONTROL_KEY);

/** The path of a run, or of what is below it. */
export const ofRun = (run, ...parts) => ["runs", ...[run, ...parts].map((one) => encodeURIComponent(one))].join("/");

const send = async (path, held, { headers = {}, ...request }) => {
  const asked = fetch(`api/v1/${path}`, {
    // Without the browser's credentials: it would open a dialogue, and the page has a field for the token.
    credentials: "omit",
    cache: "no-store",
    headers: held === null ? headers : { Authorization: `Bearer ${held}`, ...headers },
    ...request,
  });
  const answer = await reach(asked);
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, said.error ?? answer.statusText);
  }
  return answer;
};

const ask = (path, signal) => send(path, token(), { signal });

/** Order a capture of a run with this token, and return it. */
export const order = async (run, wanted, held) => {
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify(wanted);
  return reach((await send(ofRun(run, "captures"), held, { method: "POST", headers, body })).json());
};
export const readJson = async (path, signal) => reach((await ask(path, signal)).json());
export const readBytes = async (path, signal) => reach((await ask(path, signal)).arrayBuffer());

/** Return the data of the complete events in a text, and the remaining text of an incomplete one. */
export const parseEvents = (text) => {
  const blocks = text.split("\n\n");
  const rest = blocks.pop();
  const events = blocks.map((block) => block.split("\n").filter((line) => line.startsWith("data: ")));
  return {
    events: events.filter((lines) => lines.length).map((lines) => lines.map((line) => line.slice(6)).join("\n")),
    rest,
  };
};

const pause = (lastsMs, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, lastsMs);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

const followOnce = async (path, onSnapshot, signal) => {
  // An EventSource cannot send the token.
  const reader = (await ask(path, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reach(reader.read());
    if (done) return;
    const { events, rest } = parseEvents(text + value);
    text = rest;
    for (const event of events) onSnapshot(JSON.parse(event));
  }
};

/** Follow the snapshots of a run (null: of none) until `signal` is aborted, reconnecting when cut off. `onTrouble` gets
 * a Refused, or null without a response. */
export const follow = async (run, onSnapshot, onTrouble, signal) => {
  const path = run === null ? "events" : `events?run=${encodeURIComponent(run)}`;
  while (!signal.aborted) {
    let waitMs = RETRY_MS;
    try {
      await followOnce(path, onSnapshot, signal);
      if (!signal.aborted) onTrouble(null);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Refused || error instanceof Unreachable)) reportError(error); // a bug of the page
      onTrouble(error instanceof Refused ? error : null);
      if (error instanceof Refused && error.status === 401) return;
      if (error instanceof Refused) waitMs = BUSY_RETRY_MS;
    }
    await pause(waitMs, signal);
  }
};
