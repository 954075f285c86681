"""The communication of one trace, where the tables of a trace (tests/unit/collector) do not show it."""

from dataclasses import replace

import pytest

from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import Collective, complete_groups, find_collectives, share_by_split
from tests.unit.measure.written_traces import Event, event, kernel, launch, read_events


@pytest.mark.parametrize("shapes", [(b"[", b"[]"), (b'["\xff"]', b"[[2]]"), (b'["float"]', b"")])
def test_shapes_that_cannot_be_read_tell_no_bytes(shapes: tuple[bytes, bytes]) -> None:
    trace = read_events(event("user_annotation", "gloo:all_reduce", 0, 5))
    (found,) = find_collectives(RankView(replace(trace, shapes={0: shapes})))
    assert (found.op, found.bytes) == ("all_reduce", None)


def test_kernel_without_group_has_the_size_of_the_only_one() -> None:
    trace = read_events(
        kernel("ncclDevKernel_AllReduce", 5, 5), kernel("ncclDevKernel_Generic", 15, 5, **{"Group size": 2})
    )
    assert [one.group_size for one in find_collectives(RankView(trace), only_group_size=8)] == [8, 8]


def test_described_kernel_has_torchs_own_name_of_its_group() -> None:
    told = {"Collective name": "allreduce", "Process Group Name": "17", "Process Group Description": "mesh_tp"}
    trace = read_events(launch(0, 1), kernel("ncclDevKernel_Generic", 5, 5, correlation=1, **told))
    (found,) = find_collectives(RankView(trace))
    assert (found.group, found.group_name) == ("mesh_tp", "17")


def test_a_kernel_that_was_not_told_of_says_no_group() -> None:
    (found,) = find_collectives(RankView(read_events(launch(0, 1), kernel("ncclDevKernel_Generic", 5, 5))))
    assert (found.group, found.group_name) == ("unknown", None)


def test_kernel_without_arguments_is_in_the_only_group() -> None:
    told = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "default_pg"}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    first = kernel(name, 0, 1, **told, **{"Group size": 2})
    found = complete_groups(find_collectives(RankView(read_events(first, kernel(name, 2, 1)))))
    assert [(one.group, one.group_name, one.group_size, one.op) for one in found] == [
        ("default_pg", "0", 2, "all_reduce")
    ] * 2


@pytest.mark.parametrize("others", [[], ["1"]])
def test_bare_kernel_stays_unknown_beside_none_or_two_groups(others: list[str]) -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    groups = [*others, "0"] if others else []
    known = [
        kernel(name, place, 1, **{"Collective name": "allreduce", "Process Group Name": group})
        for place, group in enumerate(groups)
    ]
    assert complete_groups(find_collectives(RankView(read_events(*known, kernel(name, 9, 1)))))[-1].group == "unknown"


def described(start_us: int, group: str, description: str = "mesh_tp", ranks: str = "[0, 1]") -> Event:
    arguments = {
        "Collective name": "allreduce", "Process Group Name": group, "Process Group Description": description,
        "Process Group Ranks": ranks,
    }  # fmt: skip
    return kernel("ncclDevKernel_AllReduce", start_us, 1, **arguments)


def test_groups_of_the_same_members_are_kept_apart_by_name() -> None:
    events = [described(0, "3"), described(2, "5"), described(4, "3"), described(6, "7", ranks="[2, 3]")]
    found = complete_groups(find_collectives(RankView(read_events(*events))))
    assert [one.group for one in found] == ["mesh_tp (3)", "mesh_tp (5)", "mesh_tp (3)", "mesh_tp"]


def test_group_keeps_its_description_where_no_other_has_it() -> None:
    found = complete_groups(
        find_collectives(RankView(read_events(described(0, "3"), described(2, "3"), described(4, "5", "mesh_dp"))))
    )
    assert [one.group for one in found] == ["mesh_tp", "mesh_tp", "mesh_dp"]


# -- all-to-all -------------------------------------------------------------------------------------------------------


def all_to_all(**changes: object) -> Collective:
    told = {"Collective name": "all_to_allv", "dtype": "Half", "In msg nelems": 6, "Out msg nelems": 9, **changes}
    (found,) = find_collectives(RankView(read_events(kernel("ncclDevKernel_SendRecv", 5, 5, **told))))
    return found


def test_all_to_all_says_what_was_sent_and_received() -> None:
    found = all_to_all()
    assert (found.op, found.sent_bytes, found.received_bytes, found.sent_to_bytes) == ("all_to_all", 12, 18, None)


@pytest.mark.parametrize(
    "changes", [{"dtype": "Quarter"}, {"dtype": None}, {"In msg nelems": None, "Out msg nelems": 9}]
)
def test_all_to_all_of_unknown_size_says_nothing_sent(changes: dict[str, object]) -> None:
    assert all_to_all(**changes).sent_bytes is None


def test_other_collectives_send_to_nobody_in_particular() -> None:
    assert all_to_all(**{"Collective name": "allreduce"}).sent_bytes is None


@pytest.mark.parametrize(
    ("total", "split"),
    [(None, "[1, 2]"), (12, "[0, 0]"), (12, "[-1, 2]"), (13, "[1, 2]"), (12, "[1, ...]"), (12, None)],
)
def test_split_that_does_not_fit_the_whole_is_not_used(total: int | None, split: str | None) -> None:
    assert share_by_split(total, split) is None
