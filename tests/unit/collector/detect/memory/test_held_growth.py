"""What is said of a process that grows: the container that holds half of it or more, else the kind of memory."""

import msgspec

from rankscope.collector.detect.memory.held_growth import ELSEWHERE, describe_growth
from rankscope.measure.line_samples import GrownContainer, HeldGrowth
from rankscope.measure.messages import SamplesTaken

MIB = 2**20
KEPT = GrownContainer(kind="list", length=60, added=40, added_bytes=40 * MIB, element="torch.Tensor")
GROWN = HeldGrowth(steps=20, objects=9_000, added_objects=40, resident_bytes={"RssAnon": 40 * MIB}, containers=(KEPT,))


def say(held: HeldGrowth | None) -> tuple[bool, str]:
    found = describe_growth(1, SamplesTaken(id="s1", state="taken", held=held))
    assert found is not None
    assert (found.rank, found.steps) == (1, 20)
    return found.is_named, found.sentence


def test_container_without_a_name_has_its_line_with_a_doubt() -> None:
    kept = msgspec.structs.replace(KEPT, line="kept, train.py:33 (main)")
    is_named, sentence = say(msgspec.structs.replace(GROWN, containers=(kept,)))
    assert is_named
    assert sentence == (
        "About 2.0 MiB per step in a list of no known owner (likely a local variable): 60 "
        "elements (torch.Tensor), 2 more per step, perhaps kept, train.py:33 (main)."
    )


def test_container_that_holds_a_part_is_compared_with_the_whole() -> None:
    held = msgspec.structs.replace(GROWN, resident_bytes={"RssAnon": 60 * MIB})
    assert say(held)[1].startswith("About 2.0 MiB of 3.0 MiB per step in a list")


def test_container_that_holds_less_than_half_is_not_named() -> None:
    held = msgspec.structs.replace(GROWN, resident_bytes={"RssAnon": 81 * MIB, "RssShmem": 0})
    is_named, sentence = say(held)
    assert not is_named
    assert sentence == (
        f"Mostly private memory (heap). No list, dict, set or deque holds half of the growth. {ELSEWHERE}. 9,000 "
        "Python objects, 2 more per step."
    )


def test_shared_memory_is_told_apart_and_frozen_objects_counted() -> None:
    held = msgspec.structs.replace(GROWN, resident_bytes={"RssAnon": MIB, "RssShmem": 99 * MIB}, frozen=7)
    assert say(held)[1].startswith(
        "Mostly shared memory. No list, dict, set or deque of those not frozen (7 are) holds half of the growth"
    )


def test_too_many_objects_are_told() -> None:
    held = msgspec.structs.replace(GROWN, is_searched=False, containers=(), resident_bytes={}, added_objects=900)
    assert say(held) == (False, "9,000 Python objects, 45 more per step: too many to be searched.")


def test_answer_without_a_step_says_nothing() -> None:
    assert describe_growth(1, SamplesTaken(id="s1", state="taken", held=HeldGrowth())) is None
    assert describe_growth(1, SamplesTaken(id="s1", state="refused")) is None
