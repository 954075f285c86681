"""Objects of the garbage collector, listed while another thread makes some."""

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from rankscope.agent.live_objects import find_instances, find_referrers, list_types
from rankscope.agent.steps.executed_code import keep_executed_code


class Kept:
    """An object of the script."""


class Derived(Kept):
    """An object of another type."""


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_objects_of_exactly_these_types_are_found() -> None:
    kept, derived = [Kept() for _ in range(3)], Derived()
    assert sorted(map(id, find_instances([Kept]))) == sorted(map(id, kept))
    assert find_instances([Derived]) == [derived]
    assert find_instances([]) == []


def test_types_are_those_of_all_objects() -> None:
    kept = [Kept() for _ in range(3)]
    assert list_types().count(Kept) == len(kept)


def test_nothing_is_referred_to_afterwards() -> None:
    kept = [Kept()]
    count = sys.getrefcount(kept)
    for search in (lambda: find_instances([Derived, list]), list_types, lambda: find_referrers(None)):
        search()
        assert sys.getrefcount(kept) == count


def test_referrers_are_found_except_tuples() -> None:
    target = Kept()
    holders = [[target], {"key": target}, (target,)]
    assert find_referrers(target) == holders[:2]


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("is_enabled", [True, False], ids=["collector on", "collector off"])
def test_tuples_that_grow_meanwhile_are_finished(is_enabled: bool) -> None:
    # With a list of all objects in another thread: SystemError, bad argument to internal function, within 1,000 turns.
    # And with a call of `id` while there is one, as audit hooks are Python's code, which the agent has one of.
    keep_executed_code()
    begun, over = threading.Event(), threading.Event()
    element = Kept()

    def search() -> None:
        begun.wait()
        for _ in range(10):
            find_instances([Kept])
            list_types()
            find_referrers(element)
        over.set()

    if not is_enabled:
        gc.disable()
    searcher = threading.Thread(target=search)
    searcher.start()
    try:
        while not over.is_set():
            assert len(tuple(element for _ in range(40))) == 40
            begun.set()
    finally:
        begun.set()
        searcher.join()
        gc.enable()
