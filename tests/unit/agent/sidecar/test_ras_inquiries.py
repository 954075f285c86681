"""When the RAS service is asked, and by whom; what of its answer becomes a notice."""

from collections.abc import Callable

import pytest

from rankscope.agent.sidecar.beacon import Descriptor, WatchedStall
from rankscope.agent.sidecar.ras_address import DEFAULT_ADDRESS
from rankscope.agent.sidecar.ras_answer import RasAnswer
from rankscope.agent.sidecar.ras_client import NothingListensError
from rankscope.agent.sidecar.ras_inquiries import AGAIN_NS, RasInquiries
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import UnavailableError
from rankscope.measure.node_messages import RasAnswered
from tests.no_threads import allow_no_threads
from tests.ras_stand_in import HEALTHY_TEXT, HOST, communicator, missing, present, to_json
from tests.unit.agent.sidecar.ranks_of_a_node import S, identity_of
from tests.unit.agent.sidecar.watched_node import Clock

ADDRESS = "10.0.0.1:9"
MANY_ROWS = f"    1  {10**17}         4         2         8         8   RUNNING      OK\n" * 50
"""Their sum is above 2**62, the largest number of a message."""
EQUAL = to_json(communicator([present(0, {}, pid=100), present(1, {}, pid=101)]))


def rank_of(rank: int, since_ns: int | None = None, address: str = ADDRESS, pid: int | None = None) -> WatchedStall:
    identity = identity_of(rank, 100 + rank if pid is None else pid)
    return WatchedStall(Descriptor(identity=identity, start_ticks=1, frozen_after_ns=1, ras_address=address), since_ns)


class Sidecar:
    """The questions of a sidecar; `works` are the threads that it has started, run by `answer`."""

    def __init__(self, read: Callable[[str], RasAnswer]) -> None:
        self.clock = Clock()
        self.asked: list[str] = []
        self.works: list[Callable[[], None]] = []

        def note_and_read(address: str) -> RasAnswer:
            self.asked.append(address)
            self.clock.now_ns += 2 * S
            return read(address)

        self.inquiries = RasInquiries(self.clock, read=note_and_read, start=self.works.append)

    def run_pass(self, *watched: WatchedStall, after_ns: int = 0) -> RasAnswered | None:
        self.clock.now_ns += after_ns
        found = self.inquiries.run_pass(watched)
        return None if found is None else found[1]

    def answer(self, *watched: WatchedStall) -> RasAnswered:
        """Return the notice of a whole question."""
        assert self.run_pass(*watched) is None
        self.works.pop()()
        notice = self.run_pass(*watched)
        assert notice is not None
        return notice


def sidecar_of(text: str, *, is_json: bool = True) -> Sidecar:
    return Sidecar(lambda _address: RasAnswer(text, is_json))


def sidecar_without(error: Exception) -> Sidecar:
    def fail(_address: str) -> RasAnswer:
        raise error

    return Sidecar(fail)


# -- when -------------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_without_a_stall() -> None:
    sidecar = sidecar_of(EQUAL)
    for _ in range(10):
        sidecar.run_pass(rank_of(0), rank_of(1), after_ns=AGAIN_NS)
    assert sidecar.works == []


def test_of_two_sidecars_of_a_run_one_asks() -> None:
    first, second = sidecar_of(EQUAL), sidecar_of(EQUAL)
    first.run_pass(rank_of(0, 7), rank_of(1, 7))
    second.run_pass(rank_of(2, 7), rank_of(3, 7))
    assert (len(first.works), len(second.works)) == (1, 0)


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_service_that_is_switched_off_is_not_asked(address: str) -> None:
    sidecar = sidecar_of(EQUAL)
    sidecar.run_pass(rank_of(0, 7, address))
    assert len(sidecar.works) == bool(address)


def test_stall_of_any_rank_on_the_machine_of_rank_0_counts() -> None:
    sidecar = sidecar_of(EQUAL)
    sidecar.run_pass(rank_of(0), rank_of(1, 7))
    assert len(sidecar.works) == 1


def test_it_is_asked_again_each_minute_while_the_stall_lasts() -> None:
    sidecar = sidecar_of(EQUAL)
    sidecar.answer(rank_of(0, 7))
    # The first question began 2 s before its answer.
    sidecar.run_pass(rank_of(0, 7), after_ns=AGAIN_NS - 2 * S - 1)
    assert sidecar.works == []
    sidecar.run_pass(rank_of(0, 7), after_ns=1)
    assert len(sidecar.works) == 1


def test_second_stall_within_the_minute_waits_for_its_end() -> None:
    sidecar = sidecar_of(EQUAL)
    sidecar.answer(rank_of(0, 7))
    sidecar.run_pass(rank_of(0))
    sidecar.run_pass(rank_of(0, 8))
    assert sidecar.works == []


def test_nothing_is_asked_while_a_question_is_open() -> None:
    sidecar = sidecar_of(EQUAL)
    for _ in range(5):
        sidecar.run_pass(rank_of(0, 7), after_ns=AGAIN_NS)
    assert len(sidecar.works) == 1


def test_it_is_asked_after_the_end_of_rank_0_too() -> None:
    sidecar = sidecar_of(EQUAL)
    sidecar.run_pass(rank_of(0), rank_of(1))
    assert sidecar.answer(rank_of(1, 7)).identity == identity_of(0, 100)


# -- what -------------------------------------------------------------------------------------------------------------


def test_notice_has_times_and_ranks_of_the_run() -> None:
    behind = [present(1, {"AllReduce": 3}, pid=100), present(0, {"AllReduce": 2}, pid=101)]
    sidecar = sidecar_of(to_json(communicator(behind), timeouts=1))
    begin_ns = sidecar.clock.now_ns
    notice = sidecar.answer(rank_of(0, 8), rank_of(1, 7))
    assert sidecar.asked == [ADDRESS]
    assert (notice.stalled_since_host_ns, notice.host_ns, notice.took_ns) == (7, begin_ns + 2 * S, 2 * S)
    assert (notice.address, notice.nccl_version, notice.timeouts, notice.is_own) == (ADDRESS, "2.29.2", 1, True)
    (one,) = notice.communicators
    assert [(rank.communicator_rank, rank.rank, rank.launched) for rank in one.ranks] == [(0, 1, 2)]
    assert decode(encode(notice)) == notice


def test_process_on_another_machine_keeps_only_its_address() -> None:
    lacking = [missing(2, 101, "192.0.2.7"), missing(3, 999)]
    notice = sidecar_of(to_json(communicator([present(0, {}, pid=100)], lacking))).answer(rank_of(0, 7), rank_of(1, 7))
    (one,) = notice.communicators
    assert [(rank.pid, rank.host, rank.rank) for rank in one.ranks] == [(101, "192.0.2.7", None), (999, HOST, None)]


def test_rank_that_has_ended_is_still_named() -> None:
    sidecar = sidecar_of(to_json(communicator([present(0, {}, pid=100)], [missing(1, 101, dead=True)])))
    sidecar.run_pass(rank_of(0), rank_of(1))
    (one,) = sidecar.answer(rank_of(0, 7)).communicators
    assert [(rank.state, rank.rank) for rank in one.ranks] == [("dead", 1)]


def test_answer_of_another_job_is_only_a_reason() -> None:
    notice = sidecar_of(to_json(communicator([present(0, {}, pid=555)], [missing(1, 556)]))).answer(rank_of(0, 7))
    assert (notice.is_own, notice.communicators, notice.communicators_total) == (False, (), None)
    assert "another job on this machine answered" in notice.absent["communicators"]


def test_text_that_names_no_process_leaves_open_whose_it_is() -> None:
    notice = sidecar_of(HEALTHY_TEXT, is_json=False).answer(rank_of(0, 7))
    assert (notice.is_own, notice.communicators_total, notice.absent) == (None, 3, {})


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnavailableError("it did not answer"), "it did not answer"),
        (NothingListensError("nothing listens"), "nothing listens"),
        (KeyError("a bug"), "NCCL RAS could not be asked: KeyError"),
    ],
)
def test_failed_question_is_a_reason_and_asked_again(error: Exception, reason: str) -> None:
    sidecar = sidecar_without(error)
    notice = sidecar.answer(rank_of(0, 7))
    assert notice.absent["communicators"].startswith(reason)
    assert (notice.communicators_total, notice.is_own) == (None, None)
    sidecar.run_pass(rank_of(0, 7), after_ns=AGAIN_NS)
    assert len(sidecar.works) == 1


@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        (to_json(communicator([present(0, {}, pid=100)], [missing(1, 7, "\ud800")])), True),
        (to_json(communicator([present(0, {}, pid=100)], [missing(1, 10**30)])), True),
        (HEALTHY_TEXT.replace(" 3         4", f" {10**17}         4").replace("OK\n", "OK\n" + MANY_ROWS, 1), False),
    ],
    ids=["half a character", "huge process id", "huge sum"],
)
def test_answer_that_cannot_be_passed_on_is_a_reason(text: str, is_json: bool) -> None:
    notice = sidecar_of(text, is_json=is_json).answer(rank_of(0, 7))
    assert notice.absent == {"communicators": "the answer has numbers or characters that cannot be passed on"}
    assert decode(encode(notice)) == notice


def test_run_without_nccl_sends_no_notice() -> None:
    sidecar = sidecar_without(NothingListensError("nothing listens"))
    sidecar.run_pass(rank_of(0, 7, DEFAULT_ADDRESS))
    sidecar.works.pop()()
    assert sidecar.run_pass(rank_of(0, 7, DEFAULT_ADDRESS)) is None


def test_without_a_thread_the_question_is_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, answered = Clock(), list[str]()

    def read(address: str) -> RasAnswer:
        answered.append(address)
        return RasAnswer(EQUAL, is_json=True)

    inquiries = RasInquiries(clock, read=read)
    allow_no_threads(monkeypatch)
    assert inquiries.run_pass([rank_of(0, since_ns=clock.now_ns)]) is None
    monkeypatch.undo()
    clock.now_ns += AGAIN_NS
    inquiries._start = lambda work: work()
    assert inquiries.run_pass([rank_of(0, since_ns=clock.now_ns)]) is not None
    assert answered == [ADDRESS]
