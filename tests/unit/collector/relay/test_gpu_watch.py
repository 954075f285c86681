"""For how long a GPU is held and idle, and which rank's it is."""

import msgspec

from rankscope.collector.relay.gpu_watch import RANK_SILENT_NS, HoldTimes, WatchedGpus
from rankscope.measure.held_gpus import GpuHolder, HeldGpu, NodeGpus
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Message, Report
from rankscope.measure.records import DeviceSample, Totals
from rankscope.measure.units import NS_PER_S

ANA, BEN = GpuHolder(1, "ana", "7"), GpuHolder(2, "ben", "8")


def gpu_of(*holders: GpuHolder, utilization: float | None = 0.0, absent: dict[str, str] | None = None) -> HeldGpu:
    return HeldGpu("GPU-0", 0, utilization_ratio=utilization, holders=holders, absent=absent or {})


def times_of(readings: list[HeldGpu]) -> list[tuple[int | None, int | None]]:
    """Held and idle, in s, of readings that are 10 s apart."""
    times = HoldTimes()
    told = [times.add(gpu, 10 * NS_PER_S * place) for place, gpu in enumerate(readings)]
    return [
        tuple(None if ns is None else ns // NS_PER_S for ns in (one.held_ns, one.idle_ns))  # type: ignore[misc]
        for one in told
    ]


def test_idle_time_begins_with_the_first_reading_without_kernel() -> None:
    work = gpu_of(ANA, utilization=0.01)
    assert times_of([work, gpu_of(ANA), gpu_of(ANA), work, gpu_of(ANA)]) == [
        (0, 0),
        (10, 0),
        (20, 10),
        (30, 0),
        (40, 0),
    ]


def test_other_users_or_jobs_begin_anew_but_not_other_processes() -> None:
    restarted = msgspec.structs.replace(ANA, pid=9)
    assert times_of([gpu_of(ANA), gpu_of(restarted), gpu_of(BEN), gpu_of(BEN)]) == [(0, 0), (10, 10), (0, 0), (10, 10)]


def test_free_gpu_has_no_times_and_a_new_hold_begins_at_zero() -> None:
    assert times_of([gpu_of(ANA), gpu_of(), gpu_of(ANA)]) == [(0, 0), (None, None), (0, 0)]


def test_without_utilization_it_is_not_known_whether_it_is_idle() -> None:
    unknown = gpu_of(ANA, utilization=None)
    assert times_of([gpu_of(ANA), unknown, gpu_of(ANA)]) == [(0, 0), (10, None), (20, 0)]


def test_memory_without_a_visible_process_is_held() -> None:
    unseen = gpu_of(absent={"holders": "no_process_visible"})
    assert times_of([unseen, unseen]) == [(0, 0), (10, 10)]


# -- ranks ------------------------------------------------------------------------------------------------------------


def hello_of(rank: int) -> Hello:
    identity = RankIdentity(
        run="r", rank=rank, local_rank=rank, world_size=2, node="n", restart_count=0, boot_id=f"boot-of-{rank}", pid=1
    )  # fmt: skip
    return Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=0)


def report_of(steps: int, uuid: str = "") -> Report:
    devices = (DeviceSample(host_ns=0, uuid=uuid, model=""),) if uuid else ()
    return Report(sequence=1, host_ns=0, devices=devices, totals=Totals(steps=steps))


def name(watched: WatchedGpus, at_s: int) -> tuple[str, int | None, int | None]:
    """Run, rank, and for how many seconds no step has ended, of GPU-0."""
    (gpu,) = watched.name(NodeGpus("n", (gpu_of(ANA),)), at_s * NS_PER_S).gpus
    return gpu.run, gpu.rank, None if gpu.step_age_ns is None else gpu.step_age_ns // NS_PER_S


def watched_of(*messages: tuple[int, bytes, Message]) -> WatchedGpus:
    """The ranks after these messages, each at its second, of its peer."""
    watched = WatchedGpus()
    for at_s, peer, message in messages:
        watched.note(peer, message, at_s * NS_PER_S)
    return watched


def test_gpu_is_of_the_rank_whose_reports_name_it() -> None:
    watched = watched_of(
        (0, b"a", hello_of(0)),
        (0, b"b", hello_of(1)),
        (1, b"a", report_of(1, "GPU-1")),
        (1, b"b", report_of(1, "GPU-0")),
    )
    assert name(watched, 3) == ("r", 1, 2)


def test_step_age_counts_from_the_last_report_with_another_step() -> None:
    watched = watched_of(
        (0, b"a", hello_of(0)), (1, b"a", report_of(1, "GPU-0")), (2, b"a", report_of(2)), (3, b"a", report_of(2)),
    )  # fmt: skip
    assert name(watched, 10) == ("r", 0, 8)


def test_rank_that_said_goodbye_or_fell_silent_has_no_gpu() -> None:
    joined: list[tuple[int, bytes, Message]] = [(0, b"a", hello_of(0)), (1, b"a", report_of(1, "GPU-0"))]
    left = watched_of(*joined, (2, b"a", Goodbye(sequence=2, reason="finished")))
    assert name(left, 3) == ("", None, None)
    silent = watched_of(*joined)
    silent_s = 1 + RANK_SILENT_NS // NS_PER_S
    assert [name(silent, silent_s)[0], name(silent, silent_s + 1)[0]] == ["r", ""]


def test_report_of_a_rank_without_a_hello_names_nobody() -> None:
    assert name(watched_of((1, b"a", report_of(1, "GPU-0"))), 2) == ("", None, None)


def test_second_hello_of_a_process_keeps_its_gpu() -> None:
    watched = watched_of((0, b"a", hello_of(0)), (1, b"a", report_of(4, "GPU-0")), (5, b"a", hello_of(0)))
    assert name(watched, 6) == ("r", 0, 5)
