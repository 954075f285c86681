"""Spelling is American, in text and in identifiers: what is in a name cannot be mended once there is a release."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
READ: Final = (
    "agent", "bench", "collector", "configs", "deploy", "docs", "measure", "tests", "uplink", "CHANGELOG.md",
    "CONTRIBUTING.md", "Makefile", "README.md", "SECURITY.md",
)  # fmt: skip
SUFFIXES: Final = frozenset({"", ".css", ".html", ".js", ".json", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"})
RECORDED: Final = frozenset({"results", "traces", "node_modules", "__pycache__"})
"""Folders below bench and tests with what others, or earlier releases, wrote."""
STEMS: Final = "al|an|en|in|on|rn|il|im|stom|or|ar|er|at|it|et|id|od|og|gn|nt|as"
"""What stands before -ise in British verbs; not so in advise, compromise, exercise, noise, otherwise, raise."""
BRITISH: Final = re.compile(
    rf"""
      [a-z](?:{STEMS})is(?:e|es|ed|ing|er|ers|ation|ations)(?![a-z])
    | analys(?:e|ed|ing|er|ers)(?![a-z])                                # the plural `analyses` is American, too
    | (?:behavi|col|endeav|fav|flav|harb|hon|hum|lab|neighb|rig|rum|vap)our
    | (?<![a-z])(?:cent|fib|lit|met|theat)res?(?![a-z])
    | (?:channel|fuel|initial|label|level|marshal|model|signal|travel|tunnel)l(?:ed|ing|er|ers)(?![a-z])
    | (?:licen|defen|offen)ce | artefact
    | (?<![a-z])(?:grey|programme|learnt|spelt|whilst|amongst)(?![a-z])
    """,
    re.VERBOSE,
)


def find_british(text: str) -> list[str]:
    """The words of a text, and the parts of its identifiers, that are spelled as in Britain."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ").lower()
    return [found[0] for found in BRITISH.finditer(apart)]


def is_read(path: Path) -> bool:
    """Whether a file is ours to spell."""
    parts = path.relative_to(ROOT).parts
    is_recorded = parts[0] in {"bench", "tests"} and RECORDED.intersection(parts)
    return path.is_file() and path.suffix in SUFFIXES and not is_recorded and path != Path(__file__)


def test_spelling_is_american() -> None:
    files = [path for name in READ for path in (ROOT / name, *(ROOT / name).rglob("*")) if is_read(path)]
    assert len(files) > 1000
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in files
        for word in find_british(f"{path.relative_to(ROOT)}\n{path.read_text(encoding='utf-8', errors='replace')}")
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    ["synchronisations", "low_gpu_utilisation", "SERIALISED", "WindowColours", "analysing", "a neighbour", "3 metres",
     "test_is_labelled", "Licence", "summarise_run", "optimiser", "grey"],
)  # fmt: skip
def test_british_words_are_found_in_text_and_in_names(text: str) -> None:
    assert len(find_british(text)) == 1


@pytest.mark.parametrize(
    "text",
    ["promised otherwise", "advise", "exercised", "raises", "comparison", "a noise of four hours", "analyses",
     "aria-labelledby", "arising", "premises", "supervisor", "controller", "size", "pairwise", "parameters"],
)  # fmt: skip
def test_words_that_only_look_british_are_not(text: str) -> None:
    assert find_british(text) == []
