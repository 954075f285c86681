"""Check that each picture of the documents is taken by a script, of a real run, and listed in the table."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "README.md"
PICTURES = sorted((ROOT / "docs" / "images").iterdir())
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md") for path in ROOT.glob(pattern) if path.is_file()
)
ROW = re.compile(r"^\| \[([\w.-]+)\]\(images/\1\) \| .* \| `python -m (tests\.screenshots\.\w+)` \| \[.*\]\((.*)\) \|$")


def read_rows() -> dict[str, tuple[str, Path]]:
    """Return the script and the page of each picture in the table."""
    rows = filter(None, map(ROW.match, TABLE.read_text(encoding="utf-8").splitlines()))
    return {row[1]: (row[2], (TABLE.parent / row[3]).resolve()) for row in rows}


def find_shown(page: Path) -> set[Path]:
    """Return the pictures that a page shows."""
    targets = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*src=\"([^\"]+)\"", page.read_text(encoding="utf-8"))
    return {(page.parent / (in_markdown or in_html)).resolve() for in_markdown, in_html in targets}


def test_the_table_has_every_picture_and_no_other() -> None:
    assert sorted(read_rows()) == [path.name for path in PICTURES]


def test_documents_show_only_pictures_of_the_table() -> None:
    shown = {picture for page in PAGES for picture in find_shown(page)}
    assert shown == set(PICTURES)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_picture_is_taken_by_its_script_during_a_run(picture: Path) -> None:
    script, page = read_rows()[picture.name]
    assert picture in find_shown(page)
    source = (ROOT / f"{script.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert f'"docs" / "images" / "{picture.name}"' in source
    assert "running_demo()" in source
    assert f"-m {script}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
