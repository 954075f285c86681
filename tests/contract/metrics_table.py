"""Write the tables of docs/metrics.md from the catalogue: `python -m tests.contract.metrics_table`.

Only the text between the two marks is written.
"""

from collections.abc import Iterator
from pathlib import Path

from rankscope.collector.publish.metrics.catalog import CATALOG, SERIES_PER_RANK_MAX
from rankscope.collector.publish.metrics.measures import Measure
from rankscope.collector.valid_answers import describe_range

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
BEGIN = "<!-- metrics: written by `python -m tests.contract.metrics_table` -->\n"
END = "<!-- end of metrics -->\n"


def render_table() -> str:
    """Two tables, one for each page, with a line a family in the order of the catalogue."""
    summary = [measure for measure in CATALOG if not measure.is_per_rank]
    by_rank = [measure for measure in CATALOG if measure.is_per_rank]
    about = "of runs, nodes, findings, the worst ranks and the collector"
    where = "on /metrics of small runs and on /metrics/ranks of others"
    lines = ["## On /metrics", "", f"{len(summary)} families, {about}.", "", *_head("labels")]
    lines += [f"| {' | '.join(_cells(measure))} |" for measure in summary]
    lines += ["", "## Of every rank", ""]
    lines += [f"{len(by_rank)} families, {where}; together at most {SERIES_PER_RANK_MAX} series a rank.", ""]
    lines += _head("labels", "most a rank")
    lines += [f"| {' | '.join(_cells(measure, str(measure.series_per_rank_max)))} |" for measure in by_rank]
    return "\n".join(lines) + "\n"


def _head(*labels: str) -> list[str]:
    names = ["family", "kind", *labels, "meaning", "formula", "range", "source"]
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _cells(measure: Measure, *bound: str) -> Iterator[str]:
    yield from (f"`{measure.name}`", measure.kind, ", ".join(measure.labels) or "-", *bound)
    for text in (measure.help, measure.formula, describe_range(measure.valid_range), measure.source):
        yield text.replace("|", r"\|")


def read_table() -> str:
    """What stands between the marks."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{render_table()}{END}{rest.partition(END)[2]}", encoding="utf-8")
