"""The live page in a browser: opened, and asked what it shows."""

from typing import Any, Protocol

from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.integration.chromium import find, wait_until

PIXELS = """
const [canvas, x] = arguments;
const scale = canvas.width / canvas.getBoundingClientRect().width;
const bytes = [...canvas.getContext("2d").getImageData(Math.floor(x * scale), 0, 1, canvas.height).data];
return Array.from({ length: canvas.height }, (_, line) => bytes.slice(4 * line, 4 * line + 3));
"""
PLOT = """
const { width, height } = arguments[0].getBoundingClientRect();
return [width, height];
"""
COLOR = """
const probe = document.body.appendChild(document.createElement("i"));
probe.style.color = `var(--${arguments[0]})`;
const found = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
probe.remove();
return found;
"""
LEFT, BELOW = 62, 36
"""What the axes of the heat map take of its canvas, in CSS pixels (heat_map.js)."""
CHART_BELOW = 20
"""The same below the other charts (charts.js)."""

Color = list[int]


class Serving(Protocol):
    """What serves the page: a server alone, or a whole collector."""

    @property
    def url(self) -> str:
        """Its address."""
        ...

    def close(self) -> None:
        """End it."""


class LivePage:
    """The page of a server, in a browser."""

    def __init__(self, browser: webdriver.Chrome, server: "Serving") -> None:
        self.browser = browser
        self.server = server

    def open(self, address: str = "") -> "LivePage":
        """Open it anew, at `#...` where that is given."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.server.url}/{address}")
        return self

    def text(self, selector: str) -> str:
        """What stands there now."""
        return find(self.browser, selector).text

    def wait_for_text(self, selector: str, part: str) -> str:
        """What stands there, once that is in it."""

        def look() -> str | None:
            text = str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))
            return text if part in text else None

        return wait_until(self.browser, look) or ""

    def rows(self, table: str) -> list[list[str]]:
        """The texts of a table's cells."""
        rows: list[list[str]] = self.run(
            "return [...document.querySelectorAll(`${arguments[0]} tbody tr`)].map(row => "
            "[...row.cells].map(cell => cell.textContent))",
            table,
        )
        return rows

    def wait_for_rows(self, table: str, count: int) -> list[list[str]]:
        """The same, once there are at least so many."""
        return wait_until(self.browser, lambda: rows if len(rows := self.rows(table)) >= count else None) or []

    def wait_for_map(self, columns: int, ranks: int) -> None:
        """Until the heat map is drawn with so many columns and ranks."""
        self.wait_for_label("#heat", f"{ranks:,} ranks by {columns:,} ")

    def wait_for_label(self, selector: str, part: str) -> str:
        """The accessible name, once that is in it."""

        def look() -> str | None:
            label = find(self.browser, selector).get_attribute("aria-label") or ""
            return label if part in label else None

        return wait_until(self.browser, look) or ""

    def cell(self, row: int, rows: int, column: int, columns: int) -> Color:
        """The color in the middle of a cell of the heat map, of which so many rows and columns are in view."""
        canvas = find(self.browser, "#heat")
        width, height = self.run(PLOT, canvas)
        x = LEFT + (column + 0.5) / columns * (width - LEFT)
        return self.pixel("#heat", x, (row + 0.5) / rows * (height - BELOW))

    def pixel(self, selector: str, x: float, y: float) -> Color:
        """The color of a canvas there, in CSS pixels from its left upper corner."""
        pixels = self.pixels(selector, x)
        return pixels[int(y / self.size(selector)[1] * len(pixels))]

    def pixels(self, selector: str, x: float) -> list[Color]:
        """The colors of a canvas there, from above."""
        found: list[Color] = self.run(PIXELS, find(self.browser, selector), x)
        return found

    def size(self, selector: str) -> tuple[float, float]:
        """Width and height, in CSS pixels."""
        width, height = self.run(PLOT, find(self.browser, selector))
        return width, height

    def color(self, name: str) -> Color:
        """A color of the page by its name in page.css, as it is now."""
        found: Color = self.run(COLOR, name)
        return found

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page."""
        return self.browser.execute_script(script, *arguments)

    def shown(self, selector: str) -> bool:
        """Whether it is to be seen."""
        return find(self.browser, selector).is_displayed()

    def click(self, selector: str) -> None:
        """Click on it."""
        find(self.browser, selector).click()

    def count(self, selector: str) -> int:
        """How many there are."""
        return len(self.browser.find_elements(By.CSS_SELECTOR, selector))


def heat_of(color: Color) -> int:
    """How much hotter than neutral a color is: red without blue."""
    return color[0] - color[2]


def is_near(color: Color, other: Color, distance: int = 12) -> bool:
    """Whether two colors are the same but for rounding."""
    return all(abs(one - another) <= distance for one, another in zip(color, other, strict=True))
