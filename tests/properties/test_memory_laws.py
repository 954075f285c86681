"""Laws of memory over time: lifetimes and held bytes are those of a replay, one event after the other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.measure.memory_timeline import (
    MemoryCategory,
    ModelMark,
    categorize,
    hold_by_events,
    hold_by_totals,
    pair_events,
    raise_to_known,
    split_held,
)

EVENTS = st.lists(st.tuples(st.integers(1, 6), st.integers(-50, 50).filter(bool)), max_size=60)


def replay(events: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Return (allocating event, freeing event) of all lifetimes, the bytes of those that are there after each event,
    and the older bytes that have been freed up to it.
    """
    alive: dict[int, tuple[int, int]] = {}
    lives, live, older, gone = [], [], [], 0
    for number, (address, size) in enumerate(events):
        before = alive.pop(address, None)
        if before is not None:
            lives.append((before[0], number))
        elif size < 0:
            gone -= size
        if size > 0:
            alive[address] = number, size
        live.append(sum(one for _, one in alive.values()))
        older.append(gone)
    lives += [(first, len(events)) for first, _ in alive.values()]
    return sorted(lives), live, older


@given(EVENTS)
def test_lifetimes_are_those_of_a_replay(events: list[tuple[int, int]]) -> None:
    address, size = np.array(events, dtype=np.int64).reshape(-1, 2).T
    paired = pair_events(address, size)
    lives, live, older = replay(events)
    found = list(zip(paired.lifetimes.allocated.tolist(), paired.lifetimes.freed.tolist(), strict=True))
    assert found == lives
    for event in range(len(events)):
        assert int(paired.lifetimes.bytes[paired.lifetimes.alive_at(event)].sum()) == live[event]
    assert int(paired.older_bytes.sum()) == (older[-1] if older else 0)


@given(EVENTS, st.integers(0, 1_000))
def test_held_bytes_are_live_and_older_ones(events: list[tuple[int, int]], left: int) -> None:
    address, size = np.array(events, dtype=np.int64).reshape(-1, 2).T
    paired = pair_events(address, size)
    _, live, gone = replay(events)
    all_older = left + (gone[-1] if gone else 0)
    totals = [now + all_older - freed for now, freed in zip(live, gone, strict=True)]
    for found in (hold_by_events(paired, left), hold_by_totals(paired, np.array(totals, dtype=np.int64))):
        assert found.held.tolist() == totals
        assert found.older.tolist() == [all_older - freed for freed in gone]


STORAGES = st.dictionaries(
    st.sampled_from([*MemoryCategory][:3]), st.lists(st.tuples(st.integers(1, 8), st.integers(1, 90)))
)
MARKS = st.lists(st.builds(ModelMark, st.integers(-5, 70), STORAGES), max_size=3)


@given(
    EVENTS.filter(bool), st.lists(st.integers(0, 60), max_size=8, unique=True).map(sorted), MARKS, st.integers(0, 500)
)
def test_categories_sum_to_the_held_bytes_after_every_event(
    events: list[tuple[int, int]], bounds: list[int], marks: list[ModelMark], left: int
) -> None:
    address, size = np.array(events, dtype=np.int64).T
    paired = pair_events(address, size)
    backward = np.array(bounds[: len(bounds) // 2 * 2], dtype=np.int64).reshape(-1, 2)
    found = categorize(paired, np.arange(len(events)), backward, marks)
    held = raise_to_known(hold_by_events(paired, left), found)
    split = split_held(paired, held, found)
    assert split.sum(axis=0).tolist() == held.held.tolist()
    assert (split >= 0).all()
    _, live, gone = replay(events)
    assert all(now >= one + left for now, one in zip(held.held.tolist(), live, strict=True)), gone
