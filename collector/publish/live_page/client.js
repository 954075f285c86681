// The collector's API, with its token where it asks for one. Paths are relative: a proxy may put the page anywhere.

const TOKEN_KEY = "rankscope-token";
const RETRY_MS = 2000;
const BUSY_RETRY_MS = 5000;

/** An answer other than 200: `status`, and what the collector says. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Nobody answers, or the answer broke off. */
export class Unreachable extends Error {}

const reach = (promise) => promise.catch((error) => Promise.reject(new Unreachable(error.message)));

/** The token of this tab, null without one. */
export const token = () => sessionStorage.getItem(TOKEN_KEY);
export const keepToken = (text) => sessionStorage.setItem(TOKEN_KEY, text);
export const forgetToken = () => sessionStorage.removeItem(TOKEN_KEY);

/** The path of a run, or of what is below it. */
export const ofRun = (run, ...parts) => ["runs", ...[run, ...parts].map((one) => encodeURIComponent(one))].join("/");

const ask = async (path, signal) => {
  const held = token();
  const asked = fetch(`api/v1/${path}`, {
    // Without the browser's own credentials: it would put up a dialogue where the page has a field.
    credentials: "omit",
    cache: "no-store",
    headers: held === null ? {} : { Authorization: `Bearer ${held}` },
    signal,
  });
  const answer = await reach(asked);
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, said.error ?? answer.statusText);
  }
  return answer;
};

export const readJson = async (path, signal) => reach((await ask(path, signal)).json());
export const readBytes = async (path, signal) => reach((await ask(path, signal)).arrayBuffer());

/** The data of the events in a text, and what is left of it: the begin of an event that is not whole yet. */
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

const followOnce = async (path, onPicture, signal) => {
  // An EventSource cannot send the token; a stream that is read by hand can.
  const reader = (await ask(path, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reach(reader.read());
    if (done) return;
    const { events, rest } = parseEvents(text + value);
    text = rest;
    for (const event of events) onPicture(JSON.parse(event));
  }
};

/** Follow the pictures of a run (null: of none) until `signal` is aborted; come again when cut off. `onTrouble` is told
 * of a Refused, or of null when nobody answers. */
export const follow = async (run, onPicture, onTrouble, signal) => {
  const path = run === null ? "events" : `events?run=${encodeURIComponent(run)}`;
  while (!signal.aborted) {
    let waitMs = RETRY_MS;
    try {
      await followOnce(path, onPicture, signal);
      if (!signal.aborted) onTrouble(null);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Refused || error instanceof Unreachable)) reportError(error); // a mistake of the page
      onTrouble(error instanceof Refused ? error : null);
      if (error instanceof Refused && error.status === 401) return;
      if (error instanceof Refused) waitMs = BUSY_RETRY_MS;
    }
    await pause(waitMs, signal);
  }
};
