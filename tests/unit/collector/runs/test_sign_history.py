"""By which step signs of a fault were seen."""

import pytest

from rankscope.collector.runs import sign_history
from rankscope.collector.runs.sign_history import SIGNS_MAX, SignHistory
from rankscope.measure.records import DeviceSample

HEALTHY = DeviceSample(host_ns=0, uuid="GPU")
BROKEN = DeviceSample(host_ns=0, uuid="GPU", xid_last=63)


def test_sign_is_dated_by_the_first_look_that_saw_it() -> None:
    history = SignHistory()
    history.look((0, 1), {0: (HEALTHY,), 1: (HEALTHY,)}, 5)
    history.look((0, 1), {0: (HEALTHY,), 1: (BROKEN,)}, 12)
    history.look((0, 1), {1: (BROKEN,)}, 20)
    assert history.by_step == {1: {"Xid 63": 12}}


def test_of_many_ranks_some_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_history, "RANKS_PER_PASS_MAX", 2)
    history = SignHistory()
    for step in (10, 20, 30):
        history.look((0, 1, 2), dict.fromkeys(range(3), (BROKEN,)), step)
    assert history.by_step == {0: {"Xid 63": 10}, 1: {"Xid 63": 10}, 2: {"Xid 63": 20}}
    history.look((), {}, 40)


def test_signs_of_a_rank_are_bounded() -> None:
    history = SignHistory()
    for width in range(1, SIGNS_MAX + 3):
        device = DeviceSample(host_ns=0, uuid="GPU", pcie_link_width=width, pcie_link_width_max=16)
        history.look((0,), {0: (device,)}, width)
    assert len(history.by_step[0]) == SIGNS_MAX
