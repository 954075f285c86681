"""The rule about copies from the host, on hand-written views. Shares are of steps of 100 ms."""

from collections.abc import Callable, Mapping

import msgspec
import pytest

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.run_rules.rules import CLOSE_RATIO, NO_COPIES, RULES
from rankscope.collector.detect.run_rules.signals import read_signals
from rankscope.collector.detect.view import RunView
from rankscope.measure.records import HostCopies, WindowBreakdown
from tests.unit.collector.detect.run_views import (
    BUSY,
    RULE,
    STEPS,
    finding_of,
    findings_in,
    job_of,
    kinds_in,
    with_samples,
)

KIND = "copy_bound"


def copying(share: float, pageable: float) -> Mapping[str, float]:
    return {"compute": 80 - share, "exposed": 3, "overlap": 20, "copied": share, "pageable": pageable}


def with_copies(view: RunView, change: Callable[[HostCopies], HostCopies | None]) -> RunView:
    windows: dict[int, list[WindowBreakdown]] = {}
    for rank, kept in view.samples.breakdowns.items():
        for one in kept:
            assert one.host_copies is not None
            windows.setdefault(rank, []).append(msgspec.structs.replace(one, host_copies=change(one.host_copies)))
    return with_samples(view, view.samples._replace(breakdowns=windows))


def test_copies_from_pageable_memory_have_bytes_and_share() -> None:
    (finding,) = findings_in(job_of(copying(12, 9), copying(12, 9)))
    assert (finding.kind, finding.cause, finding.severity, finding.ranks) == (KIND, KIND, "info", ())
    assert finding.headline == (
        "GPUs copying from their hosts 12 % of the time, computing nothing meanwhile, since step 40"
    )
    assert finding.why == "30.0 MiB per step, 75 % of that time from pageable memory"
    assert "pin_memory=True" in finding.suggestion
    assert "non_blocking=True" in finding.suggestion
    assert finding.evidence == pytest.approx(
        {"host_copy_ratio": 0.12, "host_copy_ratio_min": 0.05, "pageable_copy_ratio": 0.09}
    )


@pytest.mark.parametrize(("share", "kinds"), [(5.0, [KIND]), (4.9, [])])
def test_a_twentieth_of_the_time_opens_it(share: float, kinds: list[str]) -> None:
    assert kinds_in(job_of(copying(share, share), copying(share, share))) == kinds


def test_what_copies_pinned_memory_is_not_told_to_pin_it() -> None:
    (finding,) = findings_in(job_of(copying(12, 0), copying(12, 0)))
    assert finding.why == "30.0 MiB per step, all from pinned memory"
    assert "pin_memory" not in finding.suggestion


def test_copies_of_one_rank_are_no_finding_about_the_run() -> None:
    assert kinds_in(job_of(copying(40, 40), BUSY)) == []
    assert kinds_in(job_of(copying(40, 40), copying(12, 12), BUSY)) == [KIND]


def test_copies_of_which_neither_bytes_nor_memory_are_told() -> None:
    untold = with_copies(
        job_of(copying(12, 0), copying(12, 0)),
        lambda one: HostCopies(count=2, duration_ns=one.duration_ns, exposed_ns=one.exposed_ns, unsized=2, untold=2),
    )
    (finding,) = findings_in(untold)
    assert finding.why == "pinned or pageable not known"
    assert "pageable_copy_ratio" not in finding.evidence


def test_agents_that_do_not_tell_of_copies_are_not_judged() -> None:
    signals = read_signals(with_copies(job_of(BUSY, BUSY), lambda _: None), STEPS)
    assert not isinstance(signals, Abstain)
    assert RULES[KIND].judge(signals, 1.0) == Abstain(NO_COPIES)


@pytest.mark.parametrize("share", [5.0, 4.1, 3.9])
def test_open_finding_passes_only_well_below_what_opens_it(share: float) -> None:
    view = job_of(copying(share, share), copying(share, share))
    assert RULE.has_passed(view, finding_of(KIND), ()) is (share < 5.0 * CLOSE_RATIO)
