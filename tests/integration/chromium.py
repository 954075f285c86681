"""A real browser for the tests of pages: Debian's chromium and chromium-driver through pip's selenium."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

DEADLINE_S = 300.0
"""How long a test waits for what a page must do."""

T = TypeVar("T")


@contextmanager
def starting_chromium() -> Iterator[webdriver.Chrome]:
    """A browser without a window, which tells what is said on its console and what it asks for."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail("no chromium or no chromedriver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # Root has no sandbox, and a container's /dev/shm is small.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        chrome.set_page_load_timeout(DEADLINE_S)
        yield chrome
    finally:
        chrome.quit()


def find(browser: webdriver.Chrome, selector: str) -> WebElement:
    """The first element that a CSS selector finds, once there is one."""
    return wait_until(browser, lambda: browser.find_element(By.CSS_SELECTOR, selector))


def wait_until(browser: webdriver.Chrome, look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """What `look` gives once that is something. What is missing meanwhile is looked for again."""
    return WebDriverWait(browser, deadline_s).until(lambda _: look())


def read_log(browser: webdriver.Chrome, kind: str) -> list[dict[str, Any]]:
    """What came in the log `browser` or `performance` since it was last asked for."""
    entries: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


def read_requests(browser: webdriver.Chrome) -> list[str]:
    """The addresses that were asked for since the log was last read."""
    messages: list[dict[str, Any]] = [
        json.loads(entry["message"])["message"] for entry in read_log(browser, "performance")
    ]
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return [request["request"]["url"] for request in sent]


def prefer(browser: webdriver.Chrome, **features: str) -> None:
    """Pretend that the user prefers this: `color_scheme="dark"`. Nothing: as the browser is."""
    named = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})
