"""`rankscope view` as a user starts it, in a real browser, with a page of this test in the part of Perfetto."""

import contextlib
import gzip
import http.client
import http.server
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.integration.chromium import find, read_log, read_requests, starting_chromium, wait_until
from tests.integration.torchrun import ATTENTIVE

CONTENT = gzip.compress(b'{"traceEvents": []}' * 1000)
PLAYED = b"""<!doctype html><title>waiting</title><script>
// As Perfetto: the first two PINGs come before it listens, then PONG, then one message with the bytes.
let pings = 0;
addEventListener("message", async event => {
  if (event.source !== opener) return;
  if (event.data === "PING") { if (++pings > 2) event.source.postMessage("PONG", event.origin); return; }
  const { buffer, title, fileName } = event.data.perfetto;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", buffer));
  const hex = Array.from(digest, byte => byte.toString(16).padStart(2, "0")).join("");
  document.title = [title, fileName, buffer.byteLength, hex].join(" ");
});
</script>"""
LIMIT_S = 300.0


class _Perfetto(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PLAYED)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's signature
        """Say nothing."""


@contextlib.contextmanager
def serving_perfetto() -> Iterator[str]:
    """The address of a page that plays the part of Perfetto, for tests of other pages, too."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Perfetto) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://localhost:{server.server_address[1]}/"  # by this name it is another origin than the page
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def perfetto() -> Iterator[str]:
    with serving_perfetto() as address:
        yield address


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("view") / "merged.json.gz"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def viewing(perfetto: str, file: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [*ATTENTIVE, sys.executable, "-m", "rankscope.collector", "view", str(file), "--perfetto", perfetto]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        yield started
        if started.poll() is None:
            started.kill()


@pytest.fixture
def url(viewing: "subprocess.Popen[str]") -> str:
    assert viewing.stdout is not None
    return viewing.stdout.readline().rstrip()


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    with starting_chromium() as chromium:
        yield chromium


def test_click_hands_the_file_to_perfetto(browser: webdriver.Chrome, url: str, perfetto: str) -> None:
    from hashlib import sha256  # noqa: PLC0415 - the truth of this one test

    browser.get(url)
    before = read_requests(browser)
    assert [asked for asked in before if asked.startswith(perfetto) or asked.endswith("/trace")] == []
    find(browser, "#open").click()
    wait_until(browser, lambda: find(browser, "#state").text == "Handed over.")
    page = browser.current_window_handle
    wait_until(browser, lambda: len(browser.window_handles) > 1)
    browser.switch_to.window(next(handle for handle in browser.window_handles if handle != page))
    expected = f"merged.json.gz merged.json.gz {len(CONTENT)} {sha256(CONTENT).hexdigest()}"
    assert wait_until(browser, lambda: browser.title != "waiting" and browser.title) == expected


def test_page_runs_under_its_own_policy(browser: webdriver.Chrome, url: str) -> None:
    browser.get(url)
    assert find(browser, "#open").text == "Open in Perfetto"
    errors = [entry["message"] for entry in read_log(browser, "browser") if "favicon" not in entry["message"]]
    assert errors == []


def test_window_closed_too_early_is_said(browser: webdriver.Chrome, url: str, perfetto: str) -> None:
    browser.get(url.replace("127.0.0.1", "localhost"))  # as through a tunnel
    script = f"document.getElementById('open').dataset.perfetto = '{perfetto}'; window.open = () => ({{closed: true}});"
    browser.execute_script(script)
    find(browser, "#open").click()
    said = wait_until(
        browser, lambda: "Not handed over" in find(browser, "#state").text and find(browser, "#state").text
    )
    assert said == "Not handed over: the window of Perfetto was closed before it answered. Open the file by hand."


def test_blocked_window_is_said(browser: webdriver.Chrome, url: str) -> None:
    browser.get(url)
    browser.execute_script("window.open = () => null;")
    find(browser, "#open").click()
    assert find(browser, "#state").text.startswith("The browser has blocked the window: allow pop-ups")
    assert browser.find_element(By.ID, "open").is_enabled()


def test_interrupt_ends_it_and_frees_the_port(viewing: "subprocess.Popen[str]", url: str) -> None:
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT_S)
    connection.request("GET", "/" + url.split("/")[3] + "/trace")
    assert connection.getresponse().read() == CONTENT
    viewing.send_signal(signal.SIGINT)
    assert viewing.wait(LIMIT_S) == 0
    assert viewing.stderr is not None
    assert viewing.stderr.read() == ""
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(host, int(port), timeout=LIMIT_S).request("GET", "/")


def test_print_says_how_to_open_it_by_hand(file: Path) -> None:
    command = [sys.executable, "-m", "rankscope.collector", "view", str(file), "--print"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    first = f"Open https://ui.perfetto.dev, choose `Open trace file`, and select {file} ({len(CONTENT):,} bytes)."
    assert (ended.returncode, ended.stderr, ended.stdout.splitlines()[0]) == (0, "", first)
