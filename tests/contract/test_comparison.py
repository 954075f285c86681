"""docs/comparison.md: every row about another tool names a source, every source is named somewhere and can be found."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text()
BODY, SOURCES = TEXT.split("## Sources")
OWN = "rankscope"
ASKED = {
    "TraceML", "resiliency extension", "Megatron-LM's straggler detector", "Megatron-LM's telemetry", "NCCL Inspector",
    "NCCL RAS", "Ingero", "dynolog", "TraceLens", "Holistic Trace Analysis", "Datadog", "dcgm-exporter", "nvitop",
    "xpu_timer",
}  # fmt: skip
"""Tools of today that the comparison must have."""


def find_numbers(text: str) -> set[int]:
    """The numbers of sources in a text: [16], [16, 17]."""
    return {int(number) for found in re.findall(r"\[(\d+(?:, \d+)*)\](?!\()", text) for number in found.split(", ")}


def read_sources() -> dict[int, str]:
    """The text of each source by its number."""
    parts = re.split(r"^(\d+)\. ", SOURCES, flags=re.MULTILINE)[1:]
    return {int(number): text for number, text in zip(parts[::2], parts[1::2], strict=True)}


def read_rows(title: str) -> list[str]:
    """The rows of the table of a section, without its head."""
    section = BODY.split(f"## {title}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize("title", ["At a glance", "What they do better"])
def test_every_row_about_another_tool_names_its_source(title: str) -> None:
    rows = [row for row in read_rows(title) if f"**{OWN}**" not in row]
    assert rows
    assert [row for row in rows if not find_numbers(row.split("|")[1])] == []


def test_sources_are_numbered_and_each_is_named_in_the_text() -> None:
    sources = read_sources()
    assert list(sources) == list(range(1, len(sources) + 1))
    assert find_numbers(BODY) == set(sources)


def test_every_source_has_an_address() -> None:
    assert [number for number, text in read_sources().items() if "https://" not in text and "arXiv" not in text] == []


@pytest.mark.parametrize("tool", sorted(ASKED))
def test_tool_of_today_has_a_row(tool: str) -> None:
    assert [row for row in read_rows("At a glance") if tool in row.split("|")[1]]


def test_every_tool_has_a_paragraph_or_does_something_better() -> None:
    said = "".join(read_rows("What they do better")) + BODY.split("## One by one")[1]
    rows = [row.split("|")[1] for row in read_rows("At a glance") if f"**{OWN}**" not in row]
    assert [row for row in rows if not find_numbers(row) & find_numbers(said)] == []
