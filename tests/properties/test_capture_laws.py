"""Laws of captures that are ordered: whatever ranks say in whatever order, it ends, and all have the same steps."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.captures.orders import (
    AskedRank,
    DiscardFile,
    Effect,
    FinishFile,
    Orders,
    Pace,
    Send,
    Terms,
    WriteBytes,
)
from rankscope.measure.messages import CAPTURE_STATES, CaptureOrder, CapturePart, CaptureState

RANKS = 3
BYTES_MAX = 600_000
ENDS_S = 100_000.0
BOOT_IDS = st.sampled_from([f"boot-{rank}" for rank in range(RANKS)])
IDS = st.sampled_from(["c", "c-2", "other"])

STATES = st.builds(
    CaptureState,
    id=IDS,
    state=st.sampled_from([*CAPTURE_STATES, "unheard_of"]),
    next_step=st.integers(0, 300),
    size_bytes=st.one_of(st.none(), st.integers(0, BYTES_MAX + 10)),
    sha256=st.sampled_from(["", "0" * 64]),
)
PARTS = st.builds(
    CapturePart,
    id=IDS,
    offset=st.sampled_from([0, 262_144, 524_288, 7]),
    data=st.integers(0, 262_144).map(bytes),
    problem=st.sampled_from(["", "", "gone"]),
)
EVENTS = st.lists(st.tuples(BOOT_IDS, st.one_of(STATES, PARTS, st.none()), st.floats(0.0, 20.0)), max_size=40)


class Checked:
    """Orders whose every effect is checked."""

    def __init__(self) -> None:
        asked = tuple(AskedRank(rank, "node", f"boot-{rank}") for rank in range(RANKS))
        terms = Terms(id="c", steps=4, bytes_max=BYTES_MAX)
        self.orders = Orders.begin(terms, asked, Pace(50, 100_000_000.0, 1_000_000_000), 0.0)
        self.steps: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.bytes: dict[int, int] = defaultdict(int)

    def check(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(_, CaptureOrder() as order):
                    self.steps[order.id].add((order.first_step, order.last_step))
                case WriteBytes(rank, offset, data):
                    self.bytes[rank] += len(data)
                    assert offset + len(data) <= BYTES_MAX
                case DiscardFile(rank):
                    self.bytes[rank] = 0
                case FinishFile(rank, size_bytes, _):
                    assert self.bytes[rank] == size_bytes
                    self.check(self.orders.note_file(rank, f"rank-{rank}"))


@given(EVENTS)
def test_every_capture_ends_with_the_same_steps(events: list[tuple[str, object, float]]) -> None:
    checked, now_s = Checked(), 0.0
    for boot_id, message, later_s in events:
        now_s += later_s
        if isinstance(message, CaptureState):
            checked.check(checked.orders.take_state(boot_id, message, now_s))
        elif isinstance(message, CapturePart):
            checked.check(checked.orders.take_part(boot_id, message, now_s))
        else:
            checked.check(checked.orders.tick(now_s, {}))
    for seconds in range(4):
        checked.check(checked.orders.tick(now_s + seconds * ENDS_S, {}))
    assert checked.orders.is_over
    assert all(len(steps) == 1 for steps in checked.steps.values())
    assert len(checked.steps) <= 2
    assert all(bool(one.file) == (one.state == "fetched") for one in checked.orders.ranks)
