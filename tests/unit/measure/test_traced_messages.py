"""Messages between two ranks in a trace: to whom, with which tag, and from when on a rank only waited."""

from collections.abc import Sequence
from typing import Any

import pytest

from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import find_collectives
from rankscope.measure.traced_messages import TracedMessage, find_messages, forget_numbers
from tests.unit.measure.written_traces import Event, event, kernel, launch, read, read_events, to_json

BASE_NS = 5_000_000_000


def messages(*events: Event, rank: int | None = 0, groups: Sequence[Sequence[int]] = ()) -> list[TracedMessage]:
    view = RankView(read_events(*events))
    return list(find_messages(view, find_collectives(view, BASE_NS), BASE_NS, rank, groups).values())


def call(name: str, start_us: float, inputs: Any) -> Event:
    return event("cpu_op", name, start_us, 5, **{"Concrete Inputs": inputs})


def gloo(op: str, start_us: float, duration_us: float) -> Event:
    shape = {"Input type": ["float"], "Input Dims": [[2]]}
    return event("user_annotation", f"gloo:{op}", start_us, duration_us, **shape)


# -- gloo -------------------------------------------------------------------------------------------------------------


def test_peer_and_tag_are_those_of_the_call_around_the_range() -> None:
    (one,) = messages(call("c10d::send", 10, ["", "", "3", "7"]), gloo("send", 11, 40))
    assert (one.op, one.peer, one.tag, one.bytes) == ("send", 3, 7, 8)
    assert (one.start_ns, one.end_ns) == (BASE_NS + 11_000, BASE_NS + 51_000)


def test_rank_only_waits_after_its_last_operator() -> None:
    # The call ends at 15 us, a product inside the receive at 30.
    product = event("cpu_op", "aten::mm", 20, 10)
    (one,) = messages(call("c10d::recv_", 10, ["", "", "3", "7"]), gloo("recv", 11, 40), product)
    assert one.blocked_from_ns == BASE_NS + 30_000


def test_receive_without_an_operator_inside_waits_from_its_start() -> None:
    (one,) = messages(gloo("recv", 11, 40))
    assert (one.blocked_from_ns, one.peer, one.tag) == (BASE_NS + 11_000, None, None)


@pytest.mark.parametrize("inputs", [[], ["", "", "x", "7"], ["", "", None, 0], {"a": 1}, "text"])
def test_unreadable_inputs_leave_the_peer_unknown(inputs: Any) -> None:
    (one,) = messages(call("c10d::send", 10, inputs), gloo("send", 11, 40))
    assert (one.peer, one.tag) == (None, None)


def test_peer_is_counted_within_the_only_group() -> None:
    (one,) = messages(call("c10d::send", 10, ["", "", "1", "0"]), gloo("send", 11, 4), groups=[[0, 4], [1, 5]])
    assert one.peer == 4


def test_step_is_that_of_the_call() -> None:
    step = event("user_annotation", "ProfilerStep#6", 0, 100)
    found = messages(step, gloo("send", 11, 4), gloo("send", 200, 4))
    assert [one.step for one in found] == [6, None]


def test_peer_is_read_in_a_damaged_block_beside_untimed_events() -> None:
    calls = (event("cpu_op", "early", None, 1), call("c10d::send", 10, ["", "", "3", "7"]), gloo("send", 11, 40))
    text = to_json(*calls, event("cpu_op", "PATH", 90, 1), 5).replace(b"PATH", b"a\\qb")
    view = RankView(read(text))
    assert view.trace.event_count == 5
    found = find_messages(view, find_collectives(view), 0, 0, [])
    assert [(one.peer, one.tag) for one in found.values()] == [(3, 7)]


def test_collectives_are_no_messages() -> None:
    assert messages(gloo("all_reduce", 11, 40)) == []


# -- NCCL -------------------------------------------------------------------------------------------------------------


def nccl(op: str, start_us: float, **args: Any) -> Event:
    known = {"Collective name": op, "Group size": 2, "Process Group Name": "1", "correlation": 1, **args}
    return kernel("ncclDevKernel_SendRecv", start_us, 30, **known)


@pytest.mark.parametrize(
    ("op", "args", "peer"),
    [
        ("send", {"Dst Rank": 1}, 1),
        ("recv", {"Src Rank": 1}, 1),
        ("send", {"Dst Rank": 4, "Process Group Ranks": "[0, 4]"}, 4),
        ("send", {}, None),
    ],
)
def test_peer_of_a_kernel_is_in_its_arguments(op: str, args: dict[str, Any], peer: int | None) -> None:
    (one,) = messages(nccl(op, 20, **args))
    assert (one.op, one.peer, one.tag, one.blocked_from_ns) == (op, peer, None, BASE_NS + 20_000)


@pytest.mark.parametrize(
    ("members", "peer"),
    [("[0, 4]", 4), ("[0, 4, ...]", None), ("{}", None), ('["a"]', None), ("[0]", None), ("[0, 0]", None)],
)
def test_peer_in_a_ranges_name_is_counted_within_the_group(members: str, peer: int | None) -> None:
    inside = event("user_annotation", "nccl:send 0->1", 5, 10)
    (one,) = messages(inside, launch(7, 1), nccl("send", 20, **{"Process Group Ranks": members}))
    assert one.peer == peer


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("nccl:recv 0<-2", 2),
        ("nccl:send 0->2", 2),
        ("nccl:send", None),
        ("nccl:send 1->0", None),
        ("nccl:send 0->0", None),
    ],
)
def test_peer_of_a_bare_kernel_is_in_the_launching_range(name: str, peer: int | None) -> None:
    inside = event("user_annotation", name, 5, 10)
    step = event("user_annotation", "ProfilerStep#6", 0, 10)
    (one,) = messages(inside, step, launch(7, 1), kernel("ncclDevKernel_SendRecv", 20, 30, correlation=1))
    # Launched in step 6, though it ran after it.
    assert (one.peer, one.step) == (peer, 6)


def test_kernel_that_sends_and_receives_has_no_one_peer() -> None:
    (one,) = messages(nccl("send_recv", 20, **{"Dst Rank": 1}))
    assert (one.op, one.peer) == ("send_recv", None)


def test_unlisted_group_numbers_are_no_ranks_if_a_rank_denies_it() -> None:
    # Ranks 0 and 2 are one group, 1 and 3 another: each rank has the number of its place in the group.
    found = {}
    for rank, name in enumerate(("nccl:send 0->1", "nccl:send 0->1", "nccl:recv 1<-0", "nccl:recv 1<-0")):
        inside = event("user_annotation", name, 5, 10)
        (one,) = messages(inside, launch(7, 1), kernel("ncclDevKernel_SendRecv", 20, 30, correlation=1), rank=rank)
        found[rank] = {0: one}
    assert [one[0].peer for one in found.values()] == [1, None, None, None]
    assert [one[0].peer for one in forget_numbers(found).values()] == [None] * 4


def test_numbers_that_no_rank_denies_are_kept() -> None:
    inside = event("user_annotation", "nccl:send 0->1", 5, 10)
    (one,) = messages(inside, launch(7, 1), kernel("ncclDevKernel_SendRecv", 20, 30, correlation=1))
    assert forget_numbers({0: {5: one}})[0][5].peer == 1


@pytest.mark.parametrize("arguments", [{"Dst Rank": 0}, {"Dst Rank": 0, "Process Group Ranks": "[0, 4]"}])
def test_message_to_oneself_is_not_believed(arguments: dict[str, Any]) -> None:
    (one,) = messages(nccl("send", 20, **arguments))
    assert one.peer is None
