"""Check the documents for those who carry on: links, decisions, glossary, CI and issue templates."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DECISIONS = ROOT / "docs" / "decisions"
GLOSSARY = ROOT / "docs" / "glossary.md"
GITHUB = ROOT / ".github"
PAGES = sorted(
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")) if path.is_file()
)
WORDS_MAX = 35
"""Of a sentence in the first section of a page for users."""
BEHIND_THE_FIRST = re.compile(r"^(?:#{2,} |\||```|    |[-*] |\d+\. )", re.MULTILINE)
"""What ends the first section of a page that has no headings of a second level: a table, a list, an example."""
DECISION_PARTS = ("**Decision.**", "**Instead of.**", "**Cost accepted.**", "**Measurement.**", "**Look again when**")
README_ORDER = (
    "Install, and one line", "What is found", "How it works", "Into your stack",
    "What is supported, and what has been tried", "Questions", "Versions and what comes next", "Documentation",
)  # fmt: skip


def find_anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def find_broken_links(path: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        if not page.exists() or (anchor and page.suffix == ".md" and anchor not in find_anchors(page)):
            broken.append(target)
    return broken


def find_first_section(text: str) -> str:
    """Return the prose of a page up to its first heading of a second level, else its first table, list or example."""
    body = re.sub(r"^# .*$", "", text, count=1, flags=re.MULTILINE)
    if "\n## " not in body:
        return BEHIND_THE_FIRST.split(body, maxsplit=1)[0]
    prose = re.sub(r"```.*?```|<!--.*?-->", "", body.split("\n## ", 1)[0], flags=re.DOTALL)
    return re.sub(r"^(?:    |\|).*$", "", prose, flags=re.MULTILINE)


def find_sentences(prose: str) -> list[str]:
    """Return the sentences of prose. Code and the address of a link are a word."""
    plain = re.sub(r"`[^`]+`", "code", re.sub(r"\]\([^)]*\)", "]", prose))
    parts = re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", plain)
    return [sentence for part in parts for sentence in re.split(r"(?<=[.!?])(?:\*\*)?\s+", part.strip())]


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if DECISIONS not in path.parents],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_first_section_has_no_long_sentence(path: Path) -> None:
    sentences = find_sentences(find_first_section(path.read_text(encoding="utf-8")))
    assert [sentence for sentence in sentences if len(sentence.split()) > WORDS_MAX] == []


def test_long_sentence_would_be_found() -> None:
    long = " ".join(["word"] * (WORDS_MAX + 1))
    page = f"# Title\n\nShort. {long}. Short.\n\n## More\n\n{long}.\n"
    assert [len(one.split()) for one in find_sentences(find_first_section(page)) if one] == [1, WORDS_MAX + 1, 1]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(path: Path) -> None:
    assert find_broken_links(path) == []


def test_readme_is_in_order() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert tuple(line.removeprefix("## ") for line in lines if line.startswith("## ")) == README_ORDER


def test_decisions_are_numbered_complete_and_listed() -> None:
    files = sorted(path for path in DECISIONS.glob("*.md") if path.name != "README.md")
    assert [path.name[:3] for path in files] == [f"{number:03d}" for number in range(1, len(files) + 1)]
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert [part for part in DECISION_PARTS if part not in text] == [], path.name
        assert text.startswith(f"# {path.name[:3]}. "), path.name
        assert re.search(r"^Decided \d{4}-\d\d-\d\d, .*\b[0-9a-f]{7}\b", text, flags=re.MULTILINE), path.name
        assert f"({path.name})" in index


def test_glossary_has_each_term_once() -> None:
    terms = re.findall(r"^\| (?!term \|)(\w[^|]*?) \|", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(set(terms)) == len(terms) > 0


def test_ci_runs_every_test_by_the_commands_of_developers() -> None:
    workflow = yaml.safe_load((GITHUB / "workflows" / "test.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert [command for command in commands if command.startswith("make ")] == [
        "make test WORKERS=4",
        "make test-rest WORKERS=4",
    ]


@pytest.mark.parametrize("name", ["bug", "hardware", "proposal"])
def test_issue_form_has_a_name_and_different_fields(name: str) -> None:
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    fields = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(set(fields)) == len(fields) > 0
