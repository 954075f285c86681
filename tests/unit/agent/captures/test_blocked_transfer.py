"""The send or receive that the main thread is blocked in, from frames like those of torch."""

import sys
import threading
import types
from collections.abc import Mapping

import pytest

from rankscope.agent.captures.blocked_transfer import find_blocked_transfer
from rankscope.agent.steps import host_transfers
from rankscope.agent.steps.host_transfers import Transfer
from rankscope.measure.records import GroupInfo
from rankscope.measure.stalls import PendingCollective

C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WORLD = GroupInfo(label="default_pg", description="default_pg", ranks=(0, 1, 2, 3), backend="gloo")
PIPE = GroupInfo(label="pp/1,3", description="pp", ranks=(1, 3), backend="gloo")
GROUPS = {"0": WORLD, "5": PIPE}


class Group:
    """A process group of torch."""

    group_name = "5"


def frame_in(call: str, arguments: Mapping[str, object], file: str = C10D) -> types.FrameType:
    """The frame of a function of that name in that file, blocked with these arguments and, if not given, the group."""
    arguments = {"group": Group(), **arguments}
    scope: dict[str, object] = {}
    exec(compile(f"def {call}({', '.join(arguments)}):\n    yield\n", file, "exec"), scope)  # noqa: S102
    generator = scope[call](**arguments)  # type: ignore[operator]
    next(generator)
    frame: types.FrameType = generator.gi_frame
    KEPT.append(generator)
    return frame


KEPT: list[object] = []
"""The frames of a generator end with it."""


def find(frame: types.FrameType | None, groups: Mapping[str, GroupInfo] = GROUPS) -> PendingCollective | None:
    frames = {} if frame is None else {threading.main_thread().ident or 0: frame}
    return find_blocked_transfer(groups, 3, 40, lambda: frames)


@pytest.mark.parametrize(
    ("call", "arguments", "op"),
    [
        ("recv", {"src": 1, "group_src": None}, "recv 1<-0"),  # rank 1 is at place 0, this one at 1
        ("recv", {"src": None, "group_src": 0}, "recv 1<-0"),
        ("recv", {"src": None, "group_src": None}, "recv anysource"),
        ("recv", {"src": 7, "group_src": None}, "recv anysource"),
        ("send", {"dst": 1, "group_dst": 0}, "send 1->0"),
        ("send", {"dst": 1}, "send 1->0"),  # an older torch
    ],
)
def test_transfer_is_named_by_places_in_its_group(call: str, arguments: dict[str, object], op: str) -> None:
    found = find(frame_in(call, arguments))
    assert found == PendingCollective(group="pp/1,3", op=op, sequence=0, age_ns=40, state="blocked")


def test_group_that_is_not_given_is_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    default = types.SimpleNamespace(default_pg=types.SimpleNamespace(group_name="0"))
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", types.SimpleNamespace(_world=default))
    found = find(frame_in("recv", {"group": None, "src": 1, "group_src": None}))
    assert found is not None
    assert (found.group, found.op) == ("default_pg", "recv 3<-1")


def test_function_of_that_name_elsewhere_is_no_transfer() -> None:
    assert find(frame_in("recv", {"src": 1}, "/home/me/train.py")) is None


@pytest.mark.parametrize("groups", [{}, {"5": GroupInfo(label="x", description="x", ranks=(0, 1), backend="gloo")}])
def test_transfer_of_an_unknown_group_is_not_named(groups: dict[str, GroupInfo]) -> None:
    assert find(frame_in("recv", {"src": 1}), groups) is None


def test_thread_in_another_call_is_in_no_transfer() -> None:
    assert find(frame_in("all_reduce", {})) is None
    assert find(None) is None


# -- begun by isend or irecv ------------------------------------------------------------------------------------------


def wait_for(transfer: tuple[object, ...] | None) -> types.FrameType:
    """The frame of our wrapper around a wait for it, called from a line of the script."""
    return frame_in("wait_for_transfer", {"transfer": transfer}, host_transfers.__file__)


@pytest.mark.parametrize(
    ("op", "peer", "said"),
    [("send", 0, "send 1->0"), ("recv", 0, "recv 1<-0"), ("recvAnySource", None, "recv anysource")],
)
def test_wait_for_a_noted_transfer_is_named_by_it(op: str, peer: int | None, said: str) -> None:
    found = find(wait_for(Transfer(op, "5", peer, 40, 0)))
    assert found == PendingCollective(group="pp/1,3", op=said, sequence=0, age_ns=40, state="blocked")


def test_wait_for_anything_else_is_no_transfer() -> None:
    assert find(wait_for(None)) is None
    assert find(wait_for(Transfer("send", "a group that is gone", 0, 40, 0))) is None
    assert find(frame_in("wait_for_transfer", {"transfer": Transfer("send", "5", 0, 40, 0)}, "/home/me/t.py")) is None
