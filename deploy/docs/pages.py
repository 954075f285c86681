"""What the site has beside the text of docs/: navigation, links that leave docs/, the reference of a module."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIRST = DOCS / "README.md"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
REFERENCE = re.compile(r"^<!-- reference: ([\w.]+) -->$", re.MULTILINE)


def read_setting(name: str) -> str:
    """Return a line's text in pyproject.toml: `name = "text"`."""
    (text,) = re.findall(rf'^{name} = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return str(text)


def add_parts(page: Path, text: str) -> str:
    """Return the text of a page as the site has it."""
    text = LINK.sub(lambda link: find_target(page, link[1]), text)
    text = REFERENCE.sub(lambda module: render_reference(module[1]), text)
    has_pages = page.name == FIRST.name or page.with_suffix("").is_dir()
    return text + render_navigation(page) if has_pages else text


def find_target(page: Path, target: str) -> str:
    """Return the target that a relative link has on the site: a page, a file, or the project's address."""
    found = (page.parent / target).resolve()
    if found.is_relative_to(DOCS):
        return f"{target.rstrip('/')}/README.md" if (found / "README.md").is_file() else target
    return f"{read_setting('Source')}/{found.relative_to(ROOT).as_posix()}"


def render_reference(module: str) -> str:
    """Return the directive for the docstrings of a module's public names."""
    return f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n   :imported-members:\n   :undoc-members:\n```"


def mark_examples(lines: list[str]) -> list[str]:
    """Return the lines of a docstring with `::` before each indented block: reStructuredText leaves that as it is."""
    following = [*lines[1:], "", ""]
    return [
        f"{line}:" if line.endswith(":") and not after and later.startswith(" ") else line
        for line, after, later in zip(lines, following, following[1:], strict=False)
    ]


def render_navigation(page: Path) -> str:
    """Return the list of contents of the first page of a folder: the order of its links, then what lies there. That
    page lies in the folder, or beside it with its name.
    """
    linked = [name for name in re.findall(r"\]\(([\w./-]+)\)", page.read_text(encoding="utf-8")) if ".." not in name]
    pages = [name if name.endswith(".md") else f"{name.rstrip('/')}/README.md" for name in linked]
    is_inside = page.name == FIRST.name and page != FIRST
    beside = sorted(path.name for path in page.parent.glob("*.md") if path != page) if is_inside else []
    names = [
        name for name in dict.fromkeys([*pages, *beside]) if (page.parent / name).is_file() and name.endswith(".md")
    ]
    return "\n\n```{toctree}\n:hidden:\n:maxdepth: 1\n\n" + "\n".join(names) + "\n```\n"
