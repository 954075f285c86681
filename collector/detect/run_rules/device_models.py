"""Find ranks on a slower model of GPU: it is nobody's fault, and all others wait for them.

Ranks are compared with peers on the same model (`steps/peer_groups.py`), so that none is blamed for its GPU. Among
ranks that do the same work, each model is compared with the fastest one:

    ratio = median own time of the model's ranks / the same of the fastest model

judged as that of a straggler (`stragglers/persistent.py`). Models of which fewer than two ranks do that work are not
judged: one slow rank and a slow model look the same then.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import SLOW_MODEL, Abstain, Finding, format_ranks
from rankscope.collector.detect.finding_memory import FindingMemory, recall, remember
from rankscope.collector.detect.stragglers.cost import price
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds, find_stragglers, has_recovered
from rankscope.collector.detect.stragglers.sentence import describe_own
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView, as_rank_series
from rankscope.collector.steps.peer_groups import PeerComparison
from rankscope.collector.steps.step_series import Floats

MODEL: Final = "model"
RANKS_MIN: Final = 2


class _Models(NamedTuple):
    """The models of one group of ranks with equal work: each model's ranks, the index of the fastest, and a view with a
    column a model, the median own time of its ranks, compared with the last column, which is that of the fastest.
    """

    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    fastest: int
    view: RunView


NOT_COMPARED: Final = (
    f"no two models of GPU have {RANKS_MIN} ranks each that do the same work, with own times known in enough steps"
)


class DeviceModels:
    """The detector of models of GPU that are slower than another one in the same run."""

    kinds = frozenset({SLOW_MODEL})

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return at most one finding, about the model that is slowest beside the fastest, and about no rank."""
        if not view.peer_groups.models:
            return Abstain("no two models of GPU are known in this run")
        found: list[tuple[SlowRank, _Models]] = []
        verdicts = [(models, find_stragglers(models.view, self._thresholds)) for models in _find_models(view)]
        if all(isinstance(verdict, Abstain) for _, verdict in verdicts):
            return Abstain(NOT_COMPARED)
        for models, verdict in verdicts:
            found += [] if isinstance(verdict, Abstain) else [(slow, models) for slow in verdict]
        if not found:
            return []
        slow, models = max(found, key=lambda one: one[0].slowdown_ratio)
        known = next((finding for finding in explained if finding.kind == SLOW_MODEL), None)
        return [_describe(view, models, slow, known)]

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool:
        """Return whether the model is as fast as the fastest wherever they are compared."""
        name = recall(finding).model
        return all(
            has_recovered(models.view.excess_of(models.names.index(name)), self._thresholds)
            for models in _find_models(view)
            if name in models.names
        )


def _find_models(view: RunView) -> list[_Models]:
    groups = [_view_models(view, work) for work in view.peer_groups.works]
    return [models for models in groups if models is not None]


def _view_models(view: RunView, work: tuple[int, ...]) -> _Models | None:
    """Return the models of a group of ranks; None where it has fewer than two with RANKS_MIN ranks."""
    by_model: dict[str, list[int]] = {}
    for rank in work:
        model = view.peer_groups.models.get(rank)
        if model is not None:
            by_model.setdefault(model, []).append(rank)
    ranks = {model: tuple(found) for model, found in sorted(by_model.items()) if len(found) >= RANKS_MIN}
    columns = [_median(view.series.own_ns[:, view.series.columns_of(found)]) for found in ranks.values()]
    known = ~np.isnan(columns).any(axis=0)
    if len(ranks) < 2 or not known.any():  # noqa: PLR2004 - a comparison takes two
        return None
    fastest = int(np.argmin([np.median(column[known]) for column in columns]))
    comparisons = [
        PeerComparison((column,), (column, len(columns)), do_same_work=True) for column in range(len(columns))
    ]
    return _Models(
        tuple(ranks), tuple(ranks.values()), fastest, as_rank_series(view, [*columns, columns[fastest]], comparisons)
    )


def _median(own_ns: Floats) -> Floats:
    """Return the median of each step, shape (n, ranks) to (n,), NaN where a rank is not known."""
    found = np.full(len(own_ns), np.nan)
    known = ~np.isnan(own_ns).any(axis=1)
    found[known] = np.median(own_ns[known], axis=1)
    return found


def _describe(view: RunView, models: _Models, slow: SlowRank, known: Finding | None) -> Candidate:
    since_step = slow.since_step
    if known is not None and known.since_step is not None:
        since_step = min(since_step, known.since_step)
    excess_ns = models.view.excess_ns[:, slow.rank]
    peers_ns = models.view.series.own_ns[:, -1]
    at_most_ns = np.maximum(view.longest_ns - peers_ns, 0.0)
    lost_ns = np.where(view.series.steps >= since_step, np.minimum(np.maximum(excess_ns, 0.0), at_most_ns), 0.0)
    lost_ns = np.where(np.isnan(excess_ns), np.nan, lost_ns)
    cost = price(lost_ns, view, since_step)
    finding = Finding(
        kind=SLOW_MODEL,
        since_step=since_step,
        cause=SLOW_MODEL,
        who=f"{len(models.ranks[slow.rank])} ranks on {models.names[slow.rank]}",
        what=f"than {len(models.ranks[models.fastest])} ranks with the same work on {models.names[models.fastest]}",
        why="another model of GPU, so no rank to blame",
        suggestion=suggest(SLOW_MODEL, SLOW_MODEL),
        severity="info",
        slowdown_ratio=slow.slowdown_ratio,
        run_slowdown_ratio=cost,
        evidence={"own_ns": slow.own_ns, "fastest_own_ns": slow.peers_own_ns, **slow.tests},
        details={
            MODEL: models.names[slow.rank],
            "ranks": format_ranks(models.ranks[slow.rank]),
            "fastest model": models.names[models.fastest],
            **describe_own(view.series),
        },
    )
    return Candidate(remember(finding, FindingMemory(model=models.names[slow.rank])), lost_ns)
