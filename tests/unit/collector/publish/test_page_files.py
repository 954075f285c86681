"""The files of the live page: which there are, who gets them, and under what rules a browser runs them."""

import re
from pathlib import Path

import pytest

from rankscope.collector.detect.suggestions import ADVICE
from rankscope.collector.publish.page_files import HEADERS, POLICY, find_page_file, read_page_files

RUNBOOKS = Path(__file__).parents[4] / "docs" / "runbooks"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "text/plain"])
def test_list_of_paths_stays_for_whoever_is_no_browser(accept: str) -> None:
    assert find_page_file("/", accept) is None


def test_browser_gets_the_page_under_its_policy() -> None:
    answer = find_page_file("/", BROWSER)
    assert answer is not None
    assert (answer.status, answer.content_type) == (200, "text/html; charset=utf-8")
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["Vary"] == "Accept"


def test_every_file_has_its_type_and_the_same_policy() -> None:
    kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for name, body in read_page_files().items():
        answer = find_page_file(f"/live/{name}", "*/*")
        assert answer is not None
        assert answer.content_type.partition(";")[0] == kinds[name.rpartition(".")[2]]
        assert answer.body == body
        assert answer.headers.items() >= HEADERS.items()


@pytest.mark.parametrize(
    "path",
    [
        "/live/",
        "/live/runbooks/",
        "/live/runbooks/README",
        "/live/runbooks/../metrics.md",
        "/live/none.js",
        "/live/../api.py",
        "/live/%2e%2e/api.py",
        "/live/page.js/",
        "/LIVE/page.js",
        "//",
    ],
)
def test_nothing_else_is_served(path: str) -> None:
    assert find_page_file(path, BROWSER) is None


def test_runbook_of_each_finding_is_served_as_text() -> None:
    for kind, advice in ADVICE.items():
        answer = find_page_file(f"/live/runbooks/{advice.runbook}.md", "*/*")
        assert answer is not None, kind
        assert answer.content_type == "text/plain; charset=utf-8"
        assert answer.body == (RUNBOOKS / f"{advice.runbook}.md").read_bytes()
        assert answer.headers.items() >= HEADERS.items()


def test_all_files_asked_for_are_there_and_no_others() -> None:
    found = read_page_files()
    page = found["index.html"].decode()
    asked = {name.removeprefix("live/") for name in re.findall(r'(?:src|href)="(live/[^"]+)"', page)}
    for name in [name for name in found if name.endswith(".js")]:
        asked |= set(re.findall(r'^import .* from "\./([^"]+)";$', found[name].decode(), flags=re.MULTILINE))
    assert asked | {"index.html"} == set(found)


def test_every_color_that_is_used_is_one_in_either_scheme() -> None:
    found = {name: body.decode() for name, body in read_page_files().items()}
    light, _, rest = found["page.css"].partition("@media (prefers-color-scheme: dark)")
    dark = rest.partition("\n}\n")[0]
    colors = [set(re.findall(r"^ +--([\w-]+): #", text, flags=re.MULTILINE)) for text in (light, dark)]
    assert colors[0] == colors[1]
    meanings = set(re.findall(r"^ +--([\w-]+): var\(", light, flags=re.MULTILINE))  # of a color, in either scheme
    used = set(re.findall(r"var\(--([\w-]+)\)", found["page.css"]))
    assert used <= colors[0] | meanings


def test_no_file_makes_markup_or_code_of_text() -> None:
    makers = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\bon\w+=|style=\""
    )
    for name, body in read_page_files().items():
        assert makers.findall(body.decode()) == [], name
