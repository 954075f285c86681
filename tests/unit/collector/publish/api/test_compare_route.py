"""The API compares two runs of the store as the command does."""

import json
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.comparison.compared_runs import compare_selections
from rankscope.collector.comparison.run_comparison import RunComparison
from rankscope.collector.publish.api.compare_route import CompareRoute
from rankscope.collector.publish.routes import Response
from tests.unit.collector.comparison.compared_runs import keep_steps, vary

OTHER = Response(HTTPStatus.OK, "text/plain", b"other")
PATH = "/api/v1/compare"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a run, one that is slower, and one of other ranks."""
    path = tmp_path / "store.db"
    keep_steps(path, "a", vary(100.0, seed=1))
    keep_steps(path, "b", vary(110.0, seed=2))
    keep_steps(path, "wide", vary(110.0, seed=3), world_size=4)
    return path


def ask(path: Path | None, query: str) -> Response:
    found = CompareRoute(path, lambda _target: None).answer(f"{PATH}?{query}")
    assert found is not None
    return found


def test_answer_is_that_of_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--store", str(path), "--json"]) == 0
    assert json.loads(ask(path, "a=a&b=b").body) == json.loads(capsys.readouterr().out)


def test_steps_of_a_run_are_compared(path: Path) -> None:
    answer = ask(path, f"a={quote('a@steps 10:110')}&b={quote('a@steps 110:')}&margin=0.1")
    found = json.loads(answer.body)
    assert (found["outcome"], found["a"]["last_step"], found["margin"]) == ("no difference", 109, 0.1)


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("a=a", HTTPStatus.BAD_REQUEST, "b missing: ?a=RUN&b=RUN compares B with A"),
        ("a=a&b=b&c=1", HTTPStatus.BAD_REQUEST, "'c' is no parameter here; a, b, margin, force are"),
        ("a=a&b=b&margin=x", HTTPStatus.BAD_REQUEST, "margin is 'x'; it must be a number"),
        ("a=a&b=b&margin=nan", HTTPStatus.BAD_REQUEST, "margin is nan; allowed is more than 0, up to 0.5."),
        ("a=a&b=b&force=1", HTTPStatus.BAD_REQUEST, "force is '1'; it must be yes or no"),
        ("a=a%20b&b=b", HTTPStatus.NOT_FOUND, "no run 'a b'"),
        ("a=a&b=b@steps", HTTPStatus.BAD_REQUEST, "b@steps is followed by '', which is no range of steps"),
        ("a=a@steps+x&b=b", HTTPStatus.BAD_REQUEST, "is no range of steps"),
        ("a=a&b=nobody", HTTPStatus.NOT_FOUND, "no run 'nobody'"),
        ("a=a&b=wide", HTTPStatus.NOT_FOUND, "A has 2 ranks and B 4. force=yes compares"),
    ],
)
def test_refusals_have_a_reason(path: Path, query: str, status: HTTPStatus, text: str) -> None:
    answer = ask(path, query)
    assert (answer.status, text in json.loads(answer.body)["error"]) == (status, True), answer.body


def test_errors_name_no_option_of_the_command(path: Path) -> None:
    bodies = [ask(path, query).body for query in ("a=a&b=b&margin=9", "a=a@steps+x&b=b", "a=a&b=wide", "a=a&b=nobody")]
    assert [body for body in bodies if b"--" in body] == []


def test_run_whose_name_has_a_space_is_compared(path: Path) -> None:
    keep_steps(path, "my run", vary(100.0, seed=4))
    assert json.loads(ask(path, "a=a&b=my%20run").body)["b"]["run_id"] == "my run"
    part = json.loads(ask(path, f"a=a&b={quote('my run@steps 10:150')}").body)["b"]
    assert (part["run_id"], part["last_step"]) == ("my run", 149)


def test_unequal_runs_are_compared_when_asked_for(path: Path) -> None:
    assert json.loads(ask(path, "a=a&b=wide&force=yes").body)["unequal"] == ["A has 2 ranks and B 4"]


def test_without_a_store_there_is_nothing_to_compare() -> None:
    assert ask(None, "a=a&b=b").status == HTTPStatus.NOT_FOUND


def test_other_paths_are_answered_by_the_next() -> None:
    route = CompareRoute(None, lambda target: OTHER if target == "/x?y" else None)
    assert (route.answer("/x?y"), route.answer(f"{PATH}/x")) == (OTHER, None)


def test_one_comparison_is_made_at_a_time(path: Path) -> None:
    inner: list[Response | None] = []

    def compare(*words: str, **options: float) -> RunComparison:
        inner.append(route.answer(f"{PATH}?a=a&b=b"))
        return compare_selections(*words, **options)  # type: ignore[arg-type]

    route = CompareRoute(path, lambda _target: None, compare)
    answer = route.answer(f"{PATH}?a=a&b=b")
    assert answer is not None
    assert answer.status == HTTPStatus.OK
    assert [one.status for one in inner if one is not None] == [HTTPStatus.SERVICE_UNAVAILABLE]
