"""The site of docs/ as `make docs` builds it: no warning, no broken link, every page and public name is there."""

import importlib
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

from tests.integration.environments import run

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"

pytestmark = pytest.mark.xdist_group("docs_site")  # one worker builds it, once


class Page(HTMLParser):
    """The anchors of a page, and where it leads: `links` of a reader, `resources` that a browser fetches by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in {"stylesheet", "icon"}:
            self.resources.append(given["href"])
        elif "src" in given:
            self.resources.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """The pages by their files."""
    out = tmp_path_factory.mktemp("site")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (arguments,) = re.findall(r"^\t\$\(BIN\)/python (-m sphinx .*) build/docs$", makefile, re.MULTILINE)
    done = run(sys.executable, *arguments.split(), out, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return {path: Page(path.read_text(encoding="utf-8")) for path in out.rglob("*.html")}


def find_file(page: Path, link: str) -> Path | None:
    """Return the file that a link of a page leads to; None where it leaves the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    return (page.parent / unquote(parts.path)).resolve() if parts.path else page


def leads_somewhere(site: dict[Path, Page], page: Path, link: str) -> bool:
    target, anchor = find_file(page, link), unquote(urlsplit(link).fragment)
    if target is None or (target in site and (not anchor or anchor in site[target].anchors)):
        return True
    return target not in site and target.is_file()


def test_links_and_anchors_of_the_site_lead_somewhere(site: dict[Path, Page]) -> None:
    links = [(path, link) for path, page in site.items() for link in (*page.links, *page.resources)]
    assert [(path.name, link) for path, link in links if not leads_somewhere(site, path, link)] == []


def test_every_page_of_docs_is_in_the_navigation(site: dict[Path, Page]) -> None:
    (index,) = [path for path in site if path.name == "index.html" and path.with_name("README.html") in site]
    reached, waiting = {index}, [index]
    while waiting:
        path = waiting.pop()
        found = set(site).intersection(find_file(path, link) for link in site[path].links) - reached
        reached |= found
        waiting += found
    names = {path.relative_to(index.parent).with_suffix("").as_posix() for path in reached}
    assert {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")} <= names


@pytest.mark.parametrize("module", ["rankscope", "rankscope.collector.traces"])
def test_every_public_name_is_in_the_reference(module: str, site: dict[Path, Page]) -> None:
    (reference,) = [page for path, page in site.items() if path.name == "python.html"]
    public = [name for name in importlib.import_module(module).__all__ if name != "__version__"]
    assert [name for name in public if f"{module}.{name}" not in reference.anchors] == []


def test_the_site_fetches_nothing_from_elsewhere(site: dict[Path, Page]) -> None:
    fetched = [one for page in site.values() for one in page.resources if urlsplit(one).netloc]
    assert fetched == []
