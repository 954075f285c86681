"""The reader of PromQL that dashboards and rules are checked with: what it finds, and what it refuses."""

import pytest

from tests.contract.promql_names import find_catalog_labels, find_labels, find_uses
from tests.contract.promql_syntax import PromqlError, parse

KNOWN = {
    "steps_total": frozenset({"run", "rank", "job"}),
    "seconds_total": frozenset({"run", "rank", "job"}),
    "phase_seconds_total": frozenset({"run", "rank", "phase", "job"}),
    "rank_info": frozenset({"run", "rank", "node", "job"}),
    "goodput": frozenset({"run", "job"}),
    "run:steps:rate5m": frozenset({"run"}),
}


@pytest.mark.parametrize(
    ("expression", "uses"),
    [
        ("steps_total", {"steps_total": set()}),
        ('steps_total{run="a", rank!~"1|2",}', {"steps_total": {"run", "rank"}}),
        ('{__name__="steps_total", run="a"}', {"steps_total": {"run"}}),
        ("sum by (run) (rate(steps_total[5m]))", {"steps_total": {"run"}}),
        ("sum(rate(steps_total[$__rate_interval])) without (rank)", {"steps_total": {"rank"}}),
        ("topk(3, steps_total) > 1e3 and on (run) goodput < .5", {"steps_total": {"run"}, "goodput": {"run"}}),
        (
            "steps_total * on (run, rank) group_left (node) rank_info",
            {"steps_total": {"run", "rank"}, "rank_info": {"run", "rank", "node"}},
        ),
        ("max_over_time(run:steps:rate5m[1h:5m] offset 1d) == bool 0", {"run:steps:rate5m": set()}),
        ("time() - timestamp(steps_total @ start()) # steps_lost", {"steps_total": set()}),
    ],
)
def test_each_metric_is_found_with_the_labels_asked_of_it(expression: str, uses: dict[str, set[str]]) -> None:
    assert find_uses(expression) == uses


@pytest.mark.parametrize(
    ("expression", "labels"),
    [
        ("1 + 1", set()),
        ("steps_total > 3", {"run", "rank", "job"}),
        ("sum(steps_total)", set()),
        ("sum by (run) (steps_total) / on (run) goodput", {"run"}),
        ("sum without (phase) (phase_seconds_total) / seconds_total", {"run", "rank", "job"}),
        ("phase_seconds_total / ignoring (phase) group_left () seconds_total", {"run", "rank", "phase", "job"}),
        ("goodput * on (run, job) group_right () rank_info", {"run", "rank", "node", "job"}),
        ("steps_total * on (run, rank) group_left (node) rank_info", {"run", "rank", "job", "node"}),
        ("topk by (run) (3, steps_total)", {"run", "rank", "job"}),
        ("rank_info unless on (run) goodput", {"run", "rank", "node", "job"}),
        ("goodput or run:steps:rate5m", {"run", "job"}),
        ('absent(goodput{run="a"})', {"run"}),
        ('count_values by (run) ("node", rank_info)', {"run", "node"}),
        ('label_replace(goodput, "what", "$1", "run", "(.*)")', {"run", "job", "what"}),
        ('label_join(rank_info, "where", "/", "node", "rank")', {"run", "rank", "node", "job", "where"}),
        ("vector(1)", set()),
        ("goodput * scalar(run:steps:rate5m)", {"run", "job"}),
    ],
)
def test_the_result_has_the_labels_prometheus_would_give_it(expression: str, labels: set[str]) -> None:
    assert find_labels(expression, KNOWN) == labels


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("step_total", "there is no metric 'step_total'"),
        ('steps_total{node="a"}', "no label node there, matched in steps_total"),
        ("sum by (node) (steps_total)", "no label node there, grouped on by sum"),
        ("sum by (rank) (sum by (run) (steps_total))", "no label rank there, grouped on by sum: {run}"),
        ("steps_total / phase_seconds_total", "the sides of / can never meet"),
        ("sum by (run) (steps_total) / on (rank) goodput", "no label rank there, on the left of /"),
        ("steps_total * on (run, rank) group_left (gpu) rank_info", "no label gpu there, taken over by group_left"),
        ("steps_total / ignoring (phase) seconds_total", "no label phase there, ignored by /"),
        ('label_replace(goodput, "what", "$1", "rank", "(.*)")', "no label rank there, read by label_replace"),
        ("sum(1)", "sum of a number"),
    ],
)
def test_what_is_not_there_is_refused_with_its_place(expression: str, complaint: str) -> None:
    with pytest.raises(PromqlError) as refused:
        find_labels(expression, KNOWN)
    assert complaint in str(refused.value)
    assert expression in str(refused.value)


@pytest.mark.parametrize("expression", ["", "sum(", "steps_total{run}", "a b", "rate(x[5m)", "x{run='a'", "é"])
def test_what_is_no_promql_is_refused(expression: str) -> None:
    with pytest.raises(PromqlError):
        parse(expression)


def test_operators_bind_as_in_prometheus() -> None:
    # https://prometheus.io/docs/prometheus/latest/querying/operators/#binary-operator-precedence
    assert parse("1 or 2 and 3 > 4 + 5 * 2 ^ 3 ^ 2") == parse("1 or (2 and (3 > (4 + (5 * (2 ^ (3 ^ 2))))))")
    assert parse("1 - 2 - 3 unless 4 and 5") == parse("((1 - 2) - 3 unless 4) and 5")
    assert parse("-2 ^ 2 * 3") == parse("(2 ^ 2) * 3")


def test_the_catalogue_is_known_with_the_labels_of_the_scrape() -> None:
    known = find_catalog_labels()
    assert known["rankscope_goodput_ratio"] == {"run", "cluster", "job", "instance"}
    assert known["up"] == {"cluster", "job", "instance"}
