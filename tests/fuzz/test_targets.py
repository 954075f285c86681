"""The targets of fuzzing without a fuzzer: what they start from, and a seeded handful of its mutations."""

import random

import pytest

from rankscope.collector.ingest import admission
from rankscope.measure.messages import Hello, Report
from tests.fuzz.targets import (
    TARGETS,
    build_conversations,
    fuzz_admission,
    fuzz_codec,
    read_corpus,
)

MUTATIONS = 2_000
CHANGES_MAX = 4


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return a few bytes changed, a piece cut out, or a piece doubled."""
    mutated = bytearray(data)
    for _ in range(chance.randint(1, CHANGES_MAX)):
        start, end = sorted(chance.randrange(len(mutated) + 1) for _ in range(2))
        match chance.randrange(3):
            case 0 if start < len(mutated):
                mutated[start] = chance.randrange(256)
            case 1:
                del mutated[start:end]
            case _:
                mutated[start:start] = mutated[start:end]
    return bytes(mutated)


@pytest.mark.parametrize("name", list(TARGETS))
def test_target_accepts_its_seeds_and_their_mutations(name: str) -> None:
    run, read_first = TARGETS[name]
    chance = random.Random(name)
    first = read_first()
    for data in first:
        run(data)
    for _ in range(MUTATIONS):
        run(mutate(chance.choice(first), chance))


def test_every_golden_frame_is_a_message_to_the_codec_s_target() -> None:
    assert all(fuzz_codec(frame) is not None for frame in read_corpus())


def test_a_body_without_a_header_is_tried_behind_one() -> None:
    assert isinstance(fuzz_codec(b"\x02\x92\x01\x02"), Report)  # the third kind; sequence 1, host_ns 2


def test_the_conversations_have_ranks_that_are_taken_in() -> None:
    taken = [fuzz_admission(data).counts("boot-one") for data in build_conversations()[:4]]
    assert [counts.admitted for counts in taken if counts is not None] == [0, 3, 1, 1]


def test_a_target_says_so_when_counts_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply_wrongly(process: admission._RankProcess, hello: Hello) -> None:
        process.last_sequence = hello.first_sequence + 7

    monkeypatch.setattr(admission._RankProcess, "apply_hello", apply_wrongly)
    with pytest.raises(AssertionError):
        fuzz_admission(build_conversations()[0])
