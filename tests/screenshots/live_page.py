"""The picture of the live page in the README: `python -m tests.screenshots.live_page [docs/images/live-page.png]`.

It runs `rankscope demo`, opens the page of its collector in chromium, waits until the slow rank has been found and its
steps are drawn, and takes the picture of what a reader sees first. It takes a minute and a half, and the job is ended
when the picture is there.
"""

import argparse
import base64
from pathlib import Path
from typing import Final

from selenium.webdriver import Chrome

from rankscope.collector.demo.run import RUN
from tests.integration.chromium import find, prefer, starting_chromium, wait_until
from tests.screenshots.demo import SLOW_RANK, running_demo

DEFAULT: Final = Path(__file__).parents[2] / "docs" / "images" / "live-page.png"
WIDTH: Final = 1_100
HEIGHT: Final = 1_500
"""CSS pixels of the window. The picture ends with the heat map, and the slow rank outlined in it, wherever that is."""
MARGIN: Final = 8
COLUMNS_MIN: Final = 125
"""Steps of the heat map, so that both is to be seen: how it was before step 60, and how it has been since."""
FOUND_S_MAX: Final = 240.0
IS_FOUND: Final = """
const label = document.querySelector("#heat").getAttribute("aria-label") ?? "";
const columns = Number(label.match(/by (\\d+) steps/)?.[1] ?? 0);
const count = (selector) => document.querySelectorAll(selector).length;
return count("#open-findings > li") > 0 && count("#device-now tbody tr") > 0 && columns >= arguments[0];
"""


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT)
    file: Path = parser.parse_args().file
    with running_demo() as address, starting_chromium() as browser:
        picture = take_picture(browser, address)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(picture)


def take_picture(browser: Chrome, address: str) -> bytes:
    """A PNG of the page once the slow rank has been found."""
    prefer(browser, color_scheme="light")
    browser.set_window_size(WIDTH, HEIGHT)
    browser.get(f"{address}#run={RUN}&rank={SLOW_RANK}")
    wait_until(browser, lambda: browser.execute_script(IS_FOUND, COLUMNS_MIN), FOUND_S_MAX)
    last = find(browser, ".scale").rect
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": last["y"] + last["height"] + MARGIN, "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(taken["data"])


if __name__ == "__main__":
    main()
