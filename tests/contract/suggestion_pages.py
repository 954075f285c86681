"""Write the suggestions into the runbooks, from their one table: `python -m tests.contract.suggestion_pages`."""

from pathlib import Path
from typing import Final

from rankscope.collector.detect.suggestions import ADVICE, FINDINGS_PAGE

RUNBOOKS: Final = Path(__file__).parents[2] / "docs" / "runbooks"
HEADING: Final = "## What to do\n\n"
BEGIN: Final = "<!-- from collector/detect/suggestions.py -->\n"
END: Final = "<!-- end -->\n"
INTRODUCTION: Final = f"""\
# Findings without an alert

These findings are in `rankscope status`, in incidents and on the live page, and fire no alert: they are about how the
training is written, or what it runs on.

{HEADING}"""


def list_pages() -> tuple[str, ...]:
    """Return the names of the pages with suggestions."""
    return tuple(sorted({advice.runbook for advice in ADVICE.values()}))


def render_block(page: str) -> str:
    """Return the suggestions of one page, as a table between two comments."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for kind, advice in ADVICE.items():
        for cause, text in advice.by_cause.items() if advice.runbook == page else ():
            kinds.setdefault((cause, text), []).append(f"`{kind}`")
    rows = [f"| {', '.join(names)} | {_code(cause)} | {text} |" for (cause, text), names in kinds.items()]
    return BEGIN + "\n".join(["| finding | cause | do |", "|---|---|---|", *rows]) + "\n" + END


def _code(cause: str) -> str:
    return ", ".join(f"`{part}`" for part in cause.split(": "))


def render_page(page: str) -> str:
    """Return the page with its suggestions at the start of what to do. Raises ValueError where it has no such part."""
    path = RUNBOOKS / f"{page}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else INTRODUCTION
    before, found, after = text.partition(HEADING)
    if not found:
        raise ValueError(f"{path.name} has no part {HEADING.strip()!r}")
    if after.startswith(BEGIN):
        after = after.partition(END)[2].removeprefix("\n")
    return f"{before}{HEADING}{render_block(page)}{chr(10) if after else ''}{after}"


if __name__ == "__main__":
    assert FINDINGS_PAGE in list_pages()
    for name in list_pages():
        (RUNBOOKS / f"{name}.md").write_text(render_page(name), encoding="utf-8")
