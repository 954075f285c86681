// Hand a trace to a Perfetto in a window of its own, as its documentation says ("Deep linking to the Perfetto UI"): send
// PING until it answers PONG, then send the bytes. Everything happens inside this browser.

const PING_MS = 100;
const SLOW_MS = 15000;

const untilReady = (perfetto, origin, onSlow, signal) =>
  new Promise((resolve, reject) => {
    const end = (settle) => {
      clearInterval(pinging);
      clearTimeout(patience);
      removeEventListener("message", onMessage);
      settle();
    };
    const onMessage = (event) => {
      if (event.source === perfetto && event.origin === origin && event.data === "PONG") end(resolve);
    };
    addEventListener("message", onMessage);
    const pinging = setInterval(() => {
      if (perfetto.closed) end(() => reject(new Error("the window of Perfetto was closed before it answered")));
      else perfetto.postMessage("PING", origin);
    }, PING_MS);
    const patience = setTimeout(onSlow, SLOW_MS);
    signal.addEventListener("abort", () => end(reject), { once: true });
  });

/** Hand the bytes that `readBytes` returns to the Perfetto of this origin in an open window, which must have been opened
 * in the click: browsers block windows that come later. `onSlow` is called once when it has not answered for long. */
export const handOver = async (perfetto, origin, { title, readBytes, onSlow }) => {
  const over = new AbortController();
  try {
    const [buffer] = await Promise.all([readBytes(), untilReady(perfetto, origin, onSlow, over.signal)]);
    perfetto.postMessage({ perfetto: { buffer, title, fileName: title } }, origin, [buffer]);
  } finally {
    over.abort();
  }
};
