"""Check that every finding, of each cause that the documents and the code know, has a suggestion in the one table, and
that its runbook begins with the same sentence.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.detectors import build_detectors
from rankscope.collector.detect.finding import UNMATCHED
from rankscope.collector.detect.suggestions import ADVICE, FINDINGS_PAGE, UNKNOWN_KIND, suggest
from rankscope.collector.runs.hearing import NOTHING_HEARD
from rankscope.collector.runs.run_end_words import FAILURE, VERBS
from tests.contract.alert_index import read_alerts
from tests.contract.suggestion_pages import HEADING, RUNBOOKS, list_pages, render_page

ROOT = Path(__file__).parents[2]
GOOD_ENDS = {"finished", "stopped"}
WORDS_MAX = 28
"""Words of an advice: a line or two of a terminal."""
SENTENCE_WORDS_MAX = 25


def read_table(page: str, head: str) -> list[str]:
    """Return the names in the first column of the table with that head of a page of docs."""
    _, _, after = (ROOT / "docs" / page).read_text().partition(f"\n| {head} |")
    rows = after.partition("\n\n")[0].splitlines()[2:]
    assert rows, head
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]


def find_named_causes(path: str) -> set[str]:
    """Return the causes that the rules of a file return: names in lower case, first in a tuple or an argument."""
    tree = ast.parse((ROOT / path).read_text())
    constants = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    firsts = [node.elts[0] for node in ast.walk(tree) if isinstance(node, ast.Tuple) and len(node.elts) == 2]
    names = {constants.get(one.id) if isinstance(one, ast.Name) else getattr(one, "value", None) for one in firsts}
    words = {name for name in names if isinstance(name, str) and re.fullmatch(r"[a-z]+(_[a-z]+)+|unattributed", name)}
    return {name for name in words if not name.endswith("_ns")}  # those are numbers of the evidence


STRAGGLER_CAUSES = read_table("definitions/05-why.md", "cause | evidence")
CHANGE_CAUSES = find_named_causes("collector/detect/stragglers/regression_cause.py") | {
    "host_cpu",
    "cpu_pressure",
    "unseen_wait",
}
RULES = read_table("definitions/05-why.md", "kind, which is the cause | when")
OF_RUNS = {FAILURE, NOTHING_HEARD}
"""Kinds that are no finding of detection: how a run ended, and that nobody is heard."""
PAIRS = [
    *(("straggler", cause) for cause in STRAGGLER_CAUSES),
    *((kind, cause) for kind in ("run_slowdown", "stage_slowdown") for cause in sorted(CHANGE_CAUSES)),
    *(("hang", cause) for cause in read_table("definitions/06-hangs.md", "cause | what holds | whom it names")),
    *(("out_of_memory", cause) for cause in read_table("detection.md", "cause | what holds | what helps")),
    *((kind, kind) for kind in (*RULES, "periodic_work", "run_stalls", "slow_gpu_model", "slow_link")),
    ("slower_than_earlier_runs", "slower_than_earlier_runs"),
    (UNMATCHED, UNMATCHED),
    *((FAILURE, reason) for reason in VERBS if reason not in GOOD_ENDS),
    (NOTHING_HEARD, NOTHING_HEARD),
    ("memory_growth", "host_memory"),
    ("imbalance", "more_work"), ("more_work", "more_work"),
    *(("uneven_work", cause) for cause in ("data_imbalance", "cpu_pressure", "unattributed")),
]  # fmt: skip


def find_calls(name: str, folder: str) -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_the_rules_and_the_documents_name_enough_causes() -> None:
    assert {"data_loading", "pcie_downgrade", "unattributed"} < set(STRAGGLER_CAUSES)
    assert {"data_loading", "slow_link", "gpu_slow_clock", "unseen_wait"} < CHANGE_CAUSES
    assert find_named_causes("collector/detect/stragglers/root_cause.py") <= set(STRAGGLER_CAUSES)


def test_every_kind_of_finding_is_in_the_table() -> None:
    kinds = {kind for detector in build_detectors(CollectorConfig()) for kind in detector.kinds} | OF_RUNS
    assert kinds == set(ADVICE) == {kind for kind, _ in PAIRS}
    assert set(read_table("detection.md", "kind | about | finding | detector")) == kinds - OF_RUNS


@pytest.mark.parametrize(("kind", "cause"), PAIRS)
def test_every_cause_has_a_suggestion_of_its_own(kind: str, cause: str) -> None:
    text = ADVICE[kind].by_cause[cause]
    assert suggest(kind, cause) == text
    assert (text[0].isupper(), text[-1]) == (True, ".")


@pytest.mark.parametrize("text", sorted({text for advice in ADVICE.values() for text in advice.by_cause.values()}))
def test_a_suggestion_is_short(text: str) -> None:
    assert len(text.split()) <= WORDS_MAX
    assert all(len(sentence.split()) <= SENTENCE_WORDS_MAX for sentence in re.split(r"(?<=\.) (?=[A-Z])", text))


def test_an_unknown_cause_names_a_measurement_that_shows_it() -> None:
    unknown = [suggest(kind, "unattributed") for kind, cause in PAIRS if cause == "unattributed"]
    assert all(re.search(r"rankscope (capture|status|memory|compare)", text) for text in unknown)
    assert len(unknown) == 6
    assert suggest("straggler", "of_tomorrow") == suggest("straggler", "unattributed")
    assert suggest("of_tomorrow", "of_tomorrow") == suggest("data_bound", "of_tomorrow") == UNKNOWN_KIND


def is_copy(call: ast.Call) -> bool:
    """Return whether all that it is made of comes from another finding (`finding_memory.forget`)."""
    return not call.args and all(keyword.arg is None for keyword in call.keywords)


@pytest.mark.parametrize("folder", ["collector/detect", "collector/runs"])
def test_no_finding_is_made_without_a_suggestion_of_the_table(folder: str) -> None:
    calls = [found for found in find_calls("Finding", folder) if not is_copy(found[1])]
    assert calls
    for place, call in calls:
        given = [keyword.value for keyword in call.keywords if keyword.arg == "suggestion"]
        names = {node.id for value in given for node in ast.walk(value) if isinstance(node, ast.Name)}
        assert "suggest" in names, place


@pytest.mark.parametrize("page", list_pages())
def test_what_to_do_begins_with_the_suggestions(page: str) -> None:
    assert (RUNBOOKS / f"{page}.md").read_text() == render_page(page)


@pytest.mark.parametrize("kind", ADVICE)
def test_the_runbook_of_a_kind_has_each_of_its_sentences(kind: str) -> None:
    _, _, advice = (RUNBOOKS / f"{ADVICE[kind].runbook}.md").read_text().partition(HEADING)
    cells = [line.split(" | ", 2) for line in advice.splitlines() if line.startswith("| `")]
    assert [text.removesuffix(" |") for kinds, _, text in cells if f"`{kind}`" in kinds] == [
        *ADVICE[kind].by_cause.values()
    ]


def test_the_runbook_of_a_kind_is_that_of_its_alert() -> None:
    known = {rule["alert"] for rule in read_alerts()} | {FINDINGS_PAGE}
    assert {advice.runbook for advice in ADVICE.values()} <= known
    for rule in read_alerts():
        for kinds in re.findall(r'rankscope_finding_open\{kind=~?"([\w|]+)"', rule["expr"]):
            assert {ADVICE[kind].runbook for kind in kinds.split("|")} == {rule["alert"]}
