"""Check the names and labels in a PromQL expression against those that exist.

`find_uses` returns each metric with the labels that the expression matches or groups on. `find_labels` follows the
labels through the expression, as Prometheus does, from the families to the result: a label that is grouped on, matched
on or joined over must exist at that point, and the two sides of an operator must be able to meet. It is stricter than
Prometheus, which treats a misspelt label as an empty one and returns an empty answer for ever.

    known = find_catalog_labels()
    find_labels("sum by (run) (rate(rankscope_steps_total[5m]))", known)    # frozenset({"run"})
    find_labels("sum by (node) (rate(rankscope_steps_total[5m]))", known)   # PromqlError: no label node there

The result of a recording rule becomes known to later ones: `known[record] = find_labels(expr, known)`.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.collector.publish.metrics.measures import Measure, split_histogram
from tests.contract.promql_syntax import (
    Aggregation,
    Binary,
    Call,
    Expression,
    Literal,
    PromqlError,
    Selector,
    parse,
)

Labels = frozenset[str]

CLUSTER: Final = "cluster"
"""Label that a Prometheus for several clusters gives every series; others have none, which counts as an empty one."""
TARGET_LABELS: Final = frozenset({"job", "instance", CLUSTER})
"""Labels that Prometheus adds to every target."""
SCRAPE_FAMILIES: Final = ("up", "scrape_duration_seconds", "scrape_samples_scraped")
"""Families that Prometheus writes for each target, with these labels only."""
SELECTING: Final = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
"""Aggregations that pick series out and leave their labels as they are."""
WITHOUT_LABELS: Final = frozenset({"vector", "scalar", "time", "pi"})
"""Functions whose result has no labels, whatever they are given."""


def find_catalog_labels() -> dict[str, Labels]:
    """Return the labels of every family of the catalogue and of Prometheus' own families of targets, by name."""
    series = [part for measure in CATALOG for part in find_series_of(measure)]
    known = {measure.name: TARGET_LABELS.union(measure.labels) for measure in series}
    return known | dict.fromkeys(SCRAPE_FAMILIES, TARGET_LABELS)


def find_series_of(measure: Measure) -> list[Measure]:
    """Return the measure, or of a histogram its three series."""
    return [part for part, _ in split_histogram(measure, ())] if measure.kind == "histogram" else [measure]


def find_uses(expression: str) -> dict[str, Labels]:
    """Return each metric that is named, with the labels that are matched on it, or grouped or joined on above it."""
    uses: defaultdict[str, Labels] = defaultdict(frozenset)
    _collect_uses(parse(expression), frozenset(), uses)
    return dict(uses)


def find_labels(expression: str, known: Mapping[str, Labels]) -> Labels:
    """Return the labels that the series of the result can have; none for a number. Raises PromqlError for what is not
    known: `known` has the labels of every metric there is.
    """
    tree = parse(expression)
    try:
        return _infer(tree, known) or frozenset()
    except PromqlError as error:
        raise PromqlError(f"{error}, in: {expression}") from None


def _collect_uses(tree: Expression, above: Labels, uses: defaultdict[str, Labels]) -> None:
    match tree:
        case Selector(name, matchers):
            uses[name] |= above.union(each.label for each in matchers)
        case Call(_, arguments):
            for each in arguments:
                _collect_uses(each, above, uses)
        case Aggregation(_, labels, _, arguments):
            for each in arguments:
                _collect_uses(each, above.union(labels), uses)
        case Binary(_, left, right, matching):
            asked, one = above.union(matching.labels or ()), matching.included
            _collect_uses(left, asked.union(one if matching.many == "right" else ()), uses)
            _collect_uses(right, asked.union(one if matching.many == "left" else ()), uses)


def _infer(tree: Expression, known: Mapping[str, Labels]) -> Labels | None:
    """Return the labels of the result; None if it is a number or a string, which combines with any labels."""
    match tree:
        case Literal():
            return None
        case Selector(name, matchers):
            if name not in known:
                raise PromqlError(f"there is no metric {name!r}")
            _demand({each.label for each in matchers}, known[name], f"matched in {name}")
            return known[name]
        case Call():
            return _infer_call(tree, known)
        case Aggregation():
            return _infer_aggregation(tree, known)
        case Binary():
            return _infer_binary(tree, known)


def _infer_call(call: Call, known: Mapping[str, Labels]) -> Labels | None:
    found = [labels for each in call.arguments if (labels := _infer(each, known)) is not None]
    if call.function in WITHOUT_LABELS:
        return None if call.function != "vector" else frozenset()
    if call.function in {"absent", "absent_over_time"}:
        matchers = call.arguments[0].matchers if isinstance(call.arguments[0], Selector) else ()
        return frozenset(each.label for each in matchers if each.operator == "=")
    labels = found[0] if found else frozenset[str]()
    texts = [each.text[1:-1] for each in call.arguments if isinstance(each, Literal)]
    if call.function == "label_replace":
        _demand({texts[2]} - {""}, labels, "read by label_replace")
        return labels | {texts[0]}
    if call.function == "label_join":
        _demand(set(texts[2:]), labels, "read by label_join")
        return labels | {texts[0]}
    return labels - {"le"} if call.function == "histogram_quantile" else labels


def _infer_aggregation(aggregation: Aggregation, known: Mapping[str, Labels]) -> Labels:
    inner = _infer(aggregation.arguments[-1], known)
    if inner is None:
        raise PromqlError(f"{aggregation.operator} of a number")
    _demand(set(aggregation.labels), inner, f"grouped on by {aggregation.operator}")
    if aggregation.operator in SELECTING:
        return inner
    kept = frozenset(aggregation.labels) if aggregation.keeps else inner.difference(aggregation.labels)
    first = aggregation.arguments[0]
    if aggregation.operator == "count_values" and isinstance(first, Literal):
        return kept | {first.text[1:-1]}
    return kept


def _infer_binary(binary: Binary, known: Mapping[str, Labels]) -> Labels | None:
    left, right = _infer(binary.left, known), _infer(binary.right, known)
    if left is None or right is None:
        return left if right is None else right
    matching = binary.matching
    named = set(matching.labels or ())
    if matching.labels is not None and matching.is_on:
        _demand(named, left, f"on the left of {binary.operator}")
        _demand(named, right, f"on the right of {binary.operator}")
        met = frozenset(named)
    else:
        _demand(named, left | right, f"ignored by {binary.operator}")
        met = left - named
        if binary.operator != "or" and met != right - named:
            raise PromqlError(f"the sides of {binary.operator} can never meet: {_say(met)} and {_say(right - named)}")
    if binary.operator == "or":
        return left | right
    if binary.operator in {"and", "unless"}:
        return left
    if not matching.many:
        return met
    many, one = (left, right) if matching.many == "left" else (right, left)
    _demand(set(matching.included), one, f"taken over by group_{matching.many}")
    return many.union(matching.included)


def _demand(labels: set[str], there: Labels, use: str) -> None:
    missing = sorted(labels - there)
    if missing:
        raise PromqlError(f"no label {', '.join(missing)} there, {use}: {_say(there)}")


def _say(labels: Labels) -> str:
    return "{" + ", ".join(sorted(labels)) + "}"
