"""Captures that a collector orders from ranks of a real job: the same steps, fetched whole, and training unharmed."""

import contextlib
import gzip
import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

from rankscope.agent.temporary_folders import CAPTURE
from rankscope.measure.codec import encode
from rankscope.measure.messages import (
    CaptureOrder,
    CapturePart,
    CapturePartWanted,
    CaptureState,
    Message,
    Report,
)
from tests.integration.listening_collector import ListeningCollector
from tests.integration.torchrun import AGENT, OFTEN, Ended, forked_ranks, run

RANKS = 4
ASKED = (1, 3)
STEPS = 5
PART_BYTES = 20_000
"""So few that a file of a small model has several parts."""
AHEAD = 60
"""Steps between the last one that is known and the first one that is ordered."""
RUN = f"ordered-{uuid.uuid4().hex[:8]}"
"""A name of its own: the place for temporary files is one of the user."""
SCRIPT = ("small_ddp.py", "--epochs", "1", "--steps", "400")


class OrderingCollector(ListeningCollector):
    """Orders one capture of the asked ranks once each has reported steps, and fetches the files part by part. One that
    goes after its order does so when the first rank has accepted it; one that does not fetch asks for no part.
    """

    def __init__(self, *, goes_after_order: bool = False, fetches: bool = True) -> None:
        self._fetches = fetches
        self.states: dict[int, list[CaptureState]] = {rank: [] for rank in ASKED}
        self.files: dict[int, bytes] = dict.fromkeys(ASKED, b"")
        self.after_is_over: dict[int, CapturePart] = {}
        self.first_step: int | None = None
        self._goes_after_order = goes_after_order
        self._is_over: set[int] = set()
        super().__init__()

    def _run(self) -> None:
        super()._run()
        self._router.close(linger=0)  # as the kernel does for a process that is killed

    def _take(self, peer: bytes, message: Message) -> Message:
        answer = super()._take(peer, message)
        if isinstance(message, Report) and self.first_step is None:
            self._order_when_all_train()
        life = self._lives.get(peer)
        if life is not None and isinstance(message, CaptureState):
            self.states[life.rank].append(message)
            if message.state == "accepted" and self._goes_after_order:
                self._ending.set()
            if message.state == "written" and self._fetches:
                self._want(peer, offset=0)
        if life is not None and isinstance(message, CapturePart):
            self._keep_part(peer, life.rank, message)
        return answer

    def _order_when_all_train(self) -> None:
        asked = {peer: life for peer, life in self._lives.items() if life.rank in ASKED}
        if len(asked) == len(ASKED) and all(life.steps for life in asked.values()):
            self.first_step = AHEAD + max(life.steps[-1].step for life in asked.values())
            for peer in asked:
                self._order(peer)

    def _order(self, peer: bytes, *, is_over: bool = False) -> None:
        first_step = self.first_step or 0
        order = CaptureOrder(
            id="one", first_step=first_step, last_step=first_step + STEPS - 1, options=("shapes",), is_over=is_over
        )
        self._router.send_multipart([peer, encode(order)])

    def _want(self, peer: bytes, offset: int) -> None:
        wanted = CapturePartWanted(id="one", offset=offset, length=PART_BYTES)
        self._router.send_multipart([peer, encode(wanted)])

    def _keep_part(self, peer: bytes, rank: int, part: CapturePart) -> None:
        if rank in self._is_over:
            self.after_is_over[rank] = part
            return
        self.files[rank] += part.data
        if len(self.files[rank]) == self.states[rank][-1].size_bytes:
            self._is_over.add(rank)
            self._order(peer, is_over=True)
            self._want(peer, offset=0)
        else:
            self._want(peer, offset=len(self.files[rank]))


@contextlib.contextmanager
def ordering(*, goes_after_order: bool = False, fetches: bool = True) -> Iterator[OrderingCollector]:
    """Start one, and kill it at the end."""
    collector = OrderingCollector(goes_after_order=goes_after_order, fetches=fetches)
    try:
        yield collector
    finally:
        collector.kill()


def train(collector: OrderingCollector, folder: Path) -> Ended:
    environment = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_RUN": RUN, "TMPDIR": str(folder)}
    ended = run(forked_ranks(RANKS, *AGENT, *SCRIPT), environment)
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    return ended


def find_left(folder: Path) -> list[Path]:
    """Return the files of captures that are left in the places for temporary ones."""
    return [own for place in (folder, Path("/dev/shm")) for own in place.glob(f"{CAPTURE}{RUN}-*")]  # noqa: S108


def find_steps(packed: bytes) -> list[int]:
    """Return the steps whose begin and end are in a trace, as torch names them."""
    events = json.loads(gzip.decompress(packed))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#"))


def test_ordered_ranks_capture_the_same_steps_and_files_arrive(tmp_path: Path) -> None:
    with ordering() as collector:
        train(collector, tmp_path)
    assert collector.first_step is not None
    ordered = [*range(collector.first_step, collector.first_step + STEPS)]
    assert {rank: states[0].state for rank, states in collector.states.items()} == dict.fromkeys(ASKED, "accepted")
    for rank in ASKED:
        told, packed = collector.states[rank][-1], collector.files[rank]
        assert (told.state, told.first_step, told.last_step, told.reason) == ("written", ordered[0], ordered[-1], "")
        assert told.pause_ns is not None
        assert told.pause_ns > 0
        assert hashlib.sha256(packed).hexdigest() == told.sha256
        assert find_steps(packed) == ordered
    # Once it is over the rank has the file no more.
    assert {rank: (part.data, bool(part.problem)) for rank, part in collector.after_is_over.items()} == dict.fromkeys(
        ASKED, (b"", True)
    )
    assert not find_left(tmp_path)
    for life in collector.lives:
        # Prepared in the step before, and ended in the step after; ranks that are not asked capture nothing.
        captured = [one.step for one in life.steps if one.captured]
        assert captured == ([ordered[0] - 1, *ordered, ordered[-1] + 1] if life.rank in ASKED else [])
        assert life.losses.errors == {}


def test_collector_that_goes_after_its_order_harms_no_training(tmp_path: Path) -> None:
    plain = run(forked_ranks(RANKS, *SCRIPT))
    with ordering(goes_after_order=True) as collector:
        ended = train(collector, tmp_path)
    assert "accepted" in {state.state for states in collector.states.values() for state in states}
    assert find_losses(ended) == find_losses(plain)
    assert not find_left(tmp_path)


def find_losses(ended: Ended) -> str:
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("losses "))
    return line


def test_job_ends_with_unfetched_files_and_says_they_may_be_lost(tmp_path: Path) -> None:
    with ordering(fetches=False) as collector:
        ended = train(collector, tmp_path)
        endings = {life.rank: life.ending for life in collector.lives}
    assert {rank: states[-1].state for rank, states in collector.states.items()} == dict.fromkeys(ASKED, "written")
    assert endings == dict.fromkeys(range(RANKS), ("finished", "", None))
    first_step = collector.first_step or 0
    lost = f"the capture of steps {first_step} to {first_step + STEPS - 1} for the collector may be lost: "
    assert "until drain_s has passed; capture_folder keeps files" in ended.stderr.partition(lost)[2]
    assert find_left(tmp_path) == []
