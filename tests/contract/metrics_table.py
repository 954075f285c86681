"""The table of metrics in README.md, from the catalog. `python -m tests.contract.metrics_table` writes it there."""

from pathlib import Path

from rankscope.measure.catalog import CATALOG

README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- metrics: written by `python -m tests.contract.metrics_table` -->\n"
END = "<!-- end of metrics -->\n"


def render_table() -> str:
    """One line a family."""
    lines = ["| family | kind | labels | meaning |", "|---|---|---|---|"]
    lines += [f"| `{m.name}` | {m.kind} | {', '.join(m.labels) or '-'} | {m.help} |" for m in CATALOG]
    return "\n".join(lines) + "\n"


def read_table() -> str:
    """The table that stands in the README."""
    return README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    README.write_text(f"{before}{BEGIN}{render_table()}{END}{rest.partition(END)[2]}", encoding="utf-8")
