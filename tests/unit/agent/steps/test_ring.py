"""Ring: order, bound and count of losses, also while another thread drains it."""

import threading

from rankscope.agent.steps.ring import Ring

DEADLINE_S = 300.0


def test_entries_come_out_in_the_order_they_went_in() -> None:
    ring: Ring[int] = Ring(8)
    for entry in range(5):
        ring.append(entry)
    assert ring.drain() == [0, 1, 2, 3, 4]


def test_drained_ring_is_empty_and_usable() -> None:
    ring: Ring[int] = Ring(8)
    ring.append(1)
    ring.drain()
    ring.append(2)
    assert (len(ring), ring.drain(), ring.drain()) == (1, [2], [])


def test_full_ring_overwrites_and_counts_the_oldest() -> None:
    ring: Ring[int] = Ring(3)
    for entry in range(10):
        ring.append(entry)
    assert ring.drain() == [7, 8, 9]
    assert (ring.overwritten, ring.appended) == (7, 10)


def test_exactly_full_loses_nothing() -> None:
    ring: Ring[int] = Ring(3)
    for entry in range(3):
        ring.append(entry)
    assert (ring.drain(), ring.overwritten) == ([0, 1, 2], 0)


def test_nothing_is_lost_uncounted_while_a_second_thread_drains() -> None:
    ring: Ring[int] = Ring(16)
    appended = 20_000
    drained: list[int] = []
    finished = threading.Event()

    def drain_until_finished() -> None:
        while not finished.is_set():
            drained.extend(ring.drain())

    drainer = threading.Thread(target=drain_until_finished)
    drainer.start()
    for entry in range(appended):
        ring.append(entry)
    finished.set()
    drainer.join(DEADLINE_S)
    drained.extend(ring.drain())

    assert len(drained) + ring.overwritten == appended
    assert drained == sorted(set(drained)), "an entry came twice or out of order"
