"""Read the PromQL queries of the dashboards in deploy/grafana: their panels, annotations and variables."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

DASHBOARDS = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"


class Asked(NamedTuple):
    """One expression. `legend` is what its series are called, with `{{label}}` for a label's value."""

    dashboard: str
    title: str
    number: int
    expr: str
    legend: str = ""
    is_instant: bool = False

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.title} {self.number}"

    @property
    def labels(self) -> list[str]:
        """The labels that the legend needs."""
        return re.findall(r"{{(\w+)}}", self.legend)


def find_dashboards() -> list[str]:
    """Their names."""
    return sorted(path.stem for path in DASHBOARDS.glob("*.json"))


@cache
def read_dashboard(name: str) -> dict[str, Any]:
    """Return one, as Grafana reads it."""
    found: dict[str, Any] = json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def find_panels(name: str) -> Iterator[dict[str, Any]]:
    """Yield its panels, also those of closed rows, without the rows and the text on top."""
    for group in find_groups(name):
        yield from (panel for panel in group if panel["type"] not in {"row", "text"})


def find_groups(name: str) -> list[list[dict[str, Any]]]:
    """Return what lies on the page itself, rows included, and the panels of each closed row."""
    on_page = read_dashboard(name)["panels"]
    return [on_page, *(row["panels"] for row in on_page if row["type"] == "row" and row.get("collapsed"))]


def find_queries(name: str) -> Iterator[Asked]:
    """Yield every query of every panel."""
    for panel in find_panels(name):
        for number, target in enumerate(panel["targets"]):
            yield Asked(name, panel["title"], number, target["expr"], target["legendFormat"], target["instant"])


def find_annotations(name: str) -> Iterator[Asked]:
    """Yield the query of every annotation."""
    for number, found in enumerate(read_dashboard(name).get("annotations", {}).get("list", [])):
        text = found["titleFormat"] + found["textFormat"]
        yield Asked(name, found["name"], number, found["target"]["expr"], text)


def find_variables(name: str) -> Iterator[tuple[str, str, str]]:
    """Of every variable that is asked for its name, the series, and the label whose values are offered."""
    for variable in read_dashboard(name)["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None, variable["query"]
            yield variable["name"], found[1], found[2]
