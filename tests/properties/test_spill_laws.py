"""Laws of a buffer with a spill: whatever the disk does, every frame is held, acknowledged or counted as dropped."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.agent.reporting.spill_format import REPORT, decode_records, encode_record
from rankscope.uplink.delivery import Delivery, DeliverySettings, SendFrame
from rankscope.uplink.resend_buffer import HeldFrame, ResendBuffer

STEPS = 3
"""Step records in each frame."""


class Disk:
    """Log of `files` files of `file_frames` frames each that can be made to refuse, or to lose what it has."""

    def __init__(self, files: int, file_frames: int) -> None:
        self._frames_max = files * file_frames
        self._file_frames = file_frames
        self._held: list[HeldFrame] = []
        self._last = 0
        self.refuses = False
        self.unreadable: set[int] = set()

    @property
    def first_sequence(self) -> int:
        return self._last - len(self._held) + 1

    @property
    def last_sequence(self) -> int:
        return self._last

    def append(self, held: HeldFrame) -> bool:
        assert not self._held or held.sequence == self._last + 1
        if self.refuses:
            return False
        if len(self._held) >= self._frames_max:
            self.drop_oldest()
        self._held.append(held)
        self._last = held.sequence
        return True

    def read(self, sequence: int, count_max: int) -> tuple[HeldFrame, ...]:
        found = []
        for held in self._held[max(0, sequence - self.first_sequence) :][:count_max]:
            if held.sequence in self.unreadable:
                break
            found.append(held)
        return tuple(found)

    def release(self, through: int) -> None:
        self._held = [held for held in self._held if held.sequence > through]

    def drop_oldest(self) -> None:
        del self._held[: self._file_frames]

    def drop_unreadable(self, sequence: int) -> None:
        self.release(sequence)
        while self._held and self._held[0].sequence in self.unreadable:
            del self._held[0]


class World:
    """A buffer with a disk, and the account of every frame."""

    def __init__(self, frames_max: int, disk: Disk) -> None:
        self.disk = disk
        self.buffer = ResendBuffer(frames_max, 10_000, disk)
        self.acknowledged = 0

    def push(self, count: int) -> None:
        for _ in range(count):
            sequence = self.buffer.last_sequence + 1
            self.buffer.push(sequence, b"%d" % sequence, STEPS)

    def acknowledge(self, count: int) -> None:
        self.acknowledged += self.buffer.acknowledge(self.buffer.first_sequence + count - 1)

    def read(self, offset: int) -> None:
        """Check that the frames read are right, contiguous from the asked one, and complete unless some were lost."""
        first = self.buffer.first_sequence + offset
        found = self.buffer.frames_from(first, 5)
        numbers = [held.sequence for held in found]
        assert numbers == list(range(first, first + len(found)))
        assert all(held.frame == b"%d" % held.sequence for held in found)
        if not self.disk.unreadable:
            assert len(found) == max(0, min(5, self.buffer.last_sequence - first + 1))

    def turn(self, refuses: int) -> None:
        """Make the disk refuse from now on, or accept again."""
        self.disk.refuses = bool(refuses % 2)

    def spoil(self, offset: int) -> None:
        """A frame on the disk cannot be read any more."""
        self.disk.unreadable.add(self.disk.first_sequence + offset)

    def check(self) -> None:
        buffer = self.buffer
        assert self.acknowledged + buffer.reports_dropped + len(buffer) == buffer.last_sequence
        assert buffer.steps_dropped == STEPS * buffer.reports_dropped
        assert buffer.held_bytes <= 10_000


happenings = st.lists(
    st.tuples(st.sampled_from(["push", "push", "acknowledge", "read", "turn", "spoil"]), st.integers(0, 12)),
    max_size=60,
)
shapes = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))


@settings(deadline=None, max_examples=400)
@given(shapes, happenings)
def test_every_frame_is_held_acknowledged_or_counted(shape: tuple[int, int, int], story: list[tuple[str, int]]) -> None:
    frames_max, files, file_frames = shape
    world = World(frames_max, Disk(files, file_frames))
    for name, number in story:
        getattr(world, name)(number)
        world.check()


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from(["push", "acknowledge", "read"]), st.integers(0, 12))))
def test_large_healthy_disk_never_drops(frames_max: int, story: list[tuple[str, int]]) -> None:
    world = World(frames_max, Disk(files=100, file_frames=100))
    for name, number in story:
        getattr(world, name)(number)
        world.check()
    assert world.buffer.reports_dropped == 0


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 6), st.integers(0, 20), st.integers(0, 40))
def test_failing_disk_drops_only_what_memory_cannot_hold(frames_max: int, before: int, after: int) -> None:
    world = World(frames_max, Disk(files=100, file_frames=1))
    world.push(before)
    world.turn(1)
    world.push(after)
    world.check()
    # Memory may hold some earlier ones, which are on the disk; only what neither can hold is dropped.
    assert world.buffer.reports_dropped == max(0, before + after - frames_max if after > frames_max else 0)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 6), st.integers(1, 60), st.integers(1, 8), st.sets(st.integers(1, 60), max_size=4))
def test_backlog_is_delivered_in_order_and_losses_are_counted(
    frames_max: int, count: int, in_flight_max: int, lost: set[int]
) -> None:
    world = World(frames_max, Disk(files=20, file_frames=5))
    delivery = Delivery(world.buffer, random.Random(7), DeliverySettings(in_flight_max=in_flight_max))
    world.push(count)
    world.disk.unreadable = lost
    admitted_through, arrived, now_ns = 0, [], 0
    for _ in range(20 * count):
        sends = delivery.on_tick(now_ns)
        while sends:
            send = sends.pop(0)
            if isinstance(send, SendFrame):
                assert send.sequence == admitted_through + 1
                admitted_through = send.sequence
                arrived.append(send.sequence)
                sends += delivery.on_ack(admitted_through, now_ns)
            else:
                admitted_through = max(admitted_through, send.first_sequence - 1)
                sends += delivery.on_welcome(admitted_through, now_ns)
        now_ns += 100_000_000
    assert delivery.everything_acknowledged
    # One that was in flight when the disk gave way counts as dropped though it arrived, once for each loss.
    assert count <= len(arrived) + world.buffer.reports_dropped <= count + in_flight_max * len(lost)
    assert lost or arrived == list(range(1, count + 1))


# -- what is on the disk is damaged -----------------------------------------------------------------------------------

bodies = st.lists(st.binary(max_size=40) | st.just(bytes(30)), min_size=1, max_size=12)
damages = st.lists(
    st.tuples(st.sampled_from(["flip", "zero", "cut out", "cut off"]), st.integers(0, 600), st.integers(1, 60)),
    min_size=1,
    max_size=4,
)


def damage(block: bytearray, owners: bytearray, kind: str, at: int, size: int) -> None:
    """Damage the block; `owners` has the number of its record for each byte, 0 for one that was written over."""
    until = len(block) if kind == "cut off" else min(at + size, len(block))
    if kind.startswith("cut"):
        del block[at:until], owners[at:until]
    elif kind == "zero":
        block[at:until] = owners[at:until] = bytes(max(0, until - at))
    elif at < len(block):
        block[at] ^= size
        owners[at] = 0


@settings(deadline=None, max_examples=400)
@given(bodies, damages)
def test_damage_costs_the_records_it_touches_and_makes_up_none(
    contents: list[bytes], story: list[tuple[str, int, int]]
) -> None:
    records = {number: encode_record(REPORT, number, body, STEPS) for number, body in enumerate(contents, start=1)}
    block = bytearray(b"".join(records.values()))
    owners = bytearray(b"".join(bytes([number]) * len(record) for number, record in records.items()))
    for kind, at, size in story:
        damage(block, owners, kind, at, size)
    found = [(record.sequence, record.body) for record in decode_records(bytes(block))]
    untouched = [number for number, record in records.items() if owners.count(number) == len(record)]
    # In order, each once, and as written.
    assert found == [(number, body) for number, body in enumerate(contents, start=1) if (number, body) in found]
    assert set(untouched) <= {number for number, _ in found}
