"""What is said of copies from the host: of a rank in a step, of a run."""

import msgspec
import pytest

from rankscope.collector.publish.api.rank_views import show_rank
from rankscope.collector.reports.status_text import render_one_rank
from rankscope.collector.runs.host_copies import describe_copies_of_run, describe_host_copies
from rankscope.collector.runs.ratios import add_breakdowns, read_ratios
from rankscope.collector.runs.run_ratios import describe_run_ratios, find_run_ratios
from rankscope.collector.runs.sample_rings import BREAKDOWNS_KEPT, BreakdownRing
from rankscope.measure.records import HostCopies, Totals, WindowBreakdown
from tests.full_snapshot import full_snapshot

MS = 1_000_000
COPIES = HostCopies(
    count=4, duration_ns=8 * MS, exposed_ns=6 * MS, bytes=80_000_000, pageable_ns=4 * MS, pageable_exposed_ns=4 * MS,
    pageable_bytes=20_000_000,
)  # fmt: skip
"""Of two steps."""


def window_of(copies: HostCopies | None, *, first_step: int = 10) -> WindowBreakdown:
    return WindowBreakdown(
        first_step=first_step, step_count=2, window_ns=100 * MS, compute_ns=80 * MS, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=8 * MS, idle_ns=12 * MS, host_copies=copies,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ("38.1 MiB per step in 4.0 ms (10.0 GB/s), 3.0 ms of it exposed (6.0 % of the time); 25.0 % of the "
             "bytes from pageable memory")),
        ({"pageable_bytes": 80_000_000}, ("38.1 MiB per step in 4.0 ms (10.0 GB/s), 3.0 ms of it exposed (6.0 % of the "
                                         "time); all from pageable memory")),
        ({"unsized": 1}, ("4.0 ms per step, 3.0 ms of it exposed (6.0 % of the time); 50.0 % of the copying time "
                         "from pageable memory")),
        ({"untold": 1, "unsized": 4}, ("4.0 ms per step, 3.0 ms of it exposed (6.0 % of the time); pinned or pageable "
                                      "not known")),
        ({"count": 0}, "none"),
    ],
)  # fmt: skip
def test_copies_of_a_rank_are_told_by_step(changed: dict[str, int], said: str) -> None:
    assert describe_host_copies(window_of(msgspec.structs.replace(COPIES, **changed))) == said


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert (describe_host_copies(None), describe_host_copies(window_of(None))) == ("", "")
    assert describe_copies_of_run([Totals(), Totals(window_ns=5, host_copies=HostCopies())]) == ""


def test_copies_of_a_run_are_those_of_the_reporting_processes() -> None:
    # 6 of 100 ms, and 6 of 300 of the other: 12 of 400.
    told = [Totals(window_ns=100 * MS, host_copies=COPIES), Totals(window_ns=300 * MS, host_copies=COPIES)]
    said = "exposed 3.0 % of the time (10.0 GB/s); 25.0 % of the bytes from pageable memory"
    assert describe_copies_of_run([*told, Totals(window_ns=900 * MS)]) == said


def test_sum_of_windows_has_their_copies_where_all_tell_them() -> None:
    both = add_breakdowns((window_of(COPIES), window_of(COPIES)))
    assert both is not None
    assert both.host_copies is not None
    assert (both.host_copies.exposed_ns, both.host_copies.bytes) == (12 * MS, 160_000_000)
    assert read_ratios(both)["exposed_host_copy"] == 0.06
    some = add_breakdowns((window_of(COPIES), window_of(None)))
    assert some is not None
    assert (some.host_copies, "exposed_host_copy" in read_ratios(some)) == (None, False)


def test_ring_forgets_copies_of_windows_that_fell_out() -> None:
    ring = BreakdownRing(BREAKDOWNS_KEPT)
    ring.append(window_of(None))
    ring.append(window_of(msgspec.structs.replace(COPIES, exposed_ns=7 * MS)))
    assert ring.sum is not None
    assert ring.sum.host_copies is None, "one window does not tell of copies"
    for number in range(BREAKDOWNS_KEPT):
        ring.append(window_of(COPIES, first_step=20 + 2 * number))
    assert ring.sum is not None
    assert ring.sum.host_copies == HostCopies(
        **{name: BREAKDOWNS_KEPT * getattr(COPIES, name) for name in HostCopies.__struct_fields__}
    )


@pytest.mark.parametrize(
    ("changed", "is_possible"),
    [
        ({}, True),
        ({"exposed_ns": 9 * MS}, False),  # of 8 ms of copies
        ({"pageable_exposed_ns": 7 * MS}, False),  # of 6 ms exposed
        ({"pageable_bytes": 80_000_001}, False),
    ],
)
def test_window_whose_copies_cannot_be_is_not_possible(changed: dict[str, int], *, is_possible: bool) -> None:
    assert window_of(msgspec.structs.replace(COPIES, **changed)).is_possible is is_possible


def test_status_page_and_ratios_of_a_run_tell_its_copies() -> None:
    # Windows of 100 ms with 3 exposed; 6 ms and 60 MB in 4 steps.
    (run,) = full_snapshot().runs
    rank = run.ranks[0]
    said = "14.3 MiB per step in 1.5 ms (10.0 GB/s), 750.0 us of it exposed (3.0 % of the time); 33.3 % of the bytes"
    assert f"\n  copies from the host: {said} from pageable memory\n" in render_one_rank(run, rank, None)
    answer = show_rank(run, rank.identity.rank, None)
    assert answer is not None
    assert (answer.host_copies_said, answer.ratios["exposed_host_copy"]) == (f"{said} from pageable memory", 0.03)
    assert ", exposed copies from the host 3 %, " in describe_run_ratios(find_run_ratios(run.ranks))
