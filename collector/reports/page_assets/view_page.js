// Hands the file of this page to a Perfetto in a window of its own, on the user's click. `handOver` is that of the live
// page (perfetto.js), in front of this text.

const button = document.getElementById("open");
const state = document.getElementById("state");

async function readFile() {
  const response = await fetch("trace", { cache: "no-store" });
  if (!response.ok) throw new Error(await response.text());
  return response.arrayBuffer();
}

button.addEventListener("click", async () => {
  const { perfetto: perfettoUrl, title } = button.dataset;
  const { origin } = new URL(perfettoUrl);
  const perfetto = window.open(perfettoUrl); // at once: browsers block windows that come long after the click
  if (perfetto === null) {
    state.textContent = "The browser has blocked the window: allow pop-ups for this page, then click again.";
    return;
  }
  button.disabled = true;
  state.textContent = `Reading the file, and waiting for ${origin}.`;
  try {
    const onSlow = () => {
      state.textContent = `${origin} does not answer yet; its window shows whether this browser reaches it.`;
    };
    await handOver(perfetto, origin, { title, readBytes: readFile, onSlow });
    state.textContent = "Handed over.";
  } catch (error) {
    state.textContent = `Not handed over: ${error.message}. Open the file by hand.`;
  } finally {
    button.disabled = false;
  }
});
