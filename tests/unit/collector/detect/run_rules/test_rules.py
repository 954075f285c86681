"""The rules over a whole run, on hand-written views. Shares are of steps of 100 ms."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.detect.finding import STRAGGLER, Abstain
from rankscope.collector.detect.run_rules.rules import CLOSE_RATIO, OF_WINDOWS_ONLY, RULES
from rankscope.collector.detect.run_rules.signals import (
    read_signals,
)
from rankscope.collector.detect.view import RunView, Samples, TimeCount
from rankscope.collector.runs.events import AskClock, AskSamples, CloseFinding, FindingOpened
from tests.unit.collector.detect.run_views import (
    BUSY,
    GROUP,
    RULE,
    STEADY,
    STEPS,
    Shares,
    candidates_in,
    counts_of,
    exposed_of,
    finding_of,
    findings_in,
    job_of,
    kinds_in,
    window_of,
    with_samples,
)
from tests.unit.collector.runs.run_stories import Story
from tests.unit.collector.steps.step_series import MS, UNKNOWN, series_of, view_of


def pauses_of(ms_per_step: float) -> tuple[TimeCount, ...]:
    """The pauses of a garbage collector, counted every ten steps."""
    return tuple(TimeCount(step, round(step * ms_per_step * MS)) for step in range(0, 121, 10))


# -- each rule --------------------------------------------------------------------------------------------------------


def test_run_with_busy_gpus_has_no_findings() -> None:
    assert findings_in(job_of(BUSY, BUSY, BUSY)) == []


def test_data_bound_run_waits_for_loaders_with_idle_gpus() -> None:
    idle: Shares = {"compute": 70, "exposed": 5, "overlap": 10}
    (finding,) = findings_in(job_of(idle, idle, data_ms=20))
    assert "num_workers" in finding.suggestion


def test_loader_that_no_gpu_waits_for_is_not_data_bound() -> None:
    assert kinds_in(job_of(BUSY, BUSY, data_ms=20)) == []


def test_data_phase_alone_decides_without_a_gpu() -> None:
    assert kinds_in(job_of(BUSY, BUSY, data_ms=20, gpus=0)) == ["data_bound"]


def test_data_phase_of_one_rank_is_no_finding_about_the_run() -> None:
    assert kinds_in(job_of(BUSY, BUSY, data_ms=[60, 1], gpus=0)) == []
    assert kinds_in(job_of(BUSY, BUSY, BUSY, BUSY, data_ms=[60, 60, 1, 1], gpus=0)) == []
    assert kinds_in(job_of(BUSY, BUSY, BUSY, data_ms=[60, 60, 1], gpus=0)) == ["data_bound"]


def test_data_bound_began_where_waits_for_loaders_did() -> None:
    data_ms = np.full((120, 2), 1.0)
    data_ms[70:] = 40.0
    view = view_of(series_of((20.0 + data_ms).tolist(), phases_ms={"data": data_ms.tolist()}))
    (finding,) = findings_in(view)
    assert (finding.kind, finding.since_step, finding.since_range) == ("data_bound", 70, (70, 70))


def test_one_long_wait_for_data_is_not_data_bound() -> None:
    view = job_of(BUSY, BUSY, gpus=0)
    data_ns = view.series.phases_ns["data"]
    assert isinstance(data_ns, np.ndarray)
    data_ns[-5] = 95 * MS * STEPS  # an epoch begins: 95 % of the time of all steps looked at
    assert kinds_in(view) == []


def test_host_bound_run_has_idle_gpus_without_other_reason() -> None:
    idle: Shares = {"compute": 55, "exposed": 5, "overlap": 10}
    (finding,) = findings_in(job_of(idle, idle, data_ms=2))
    assert (finding.kind, finding.severity) == ("host_bound", "warning")
    assert finding.headline == "GPUs idle 40 % of the time, waiting for their hosts, since step 40"
    assert finding.why == "waiting for data 2 % of the time"
    assert finding.evidence == pytest.approx({"host_idle_ratio": 0.38, "host_idle_ratio_min": 0.3, "idle_ratio": 0.4})


def test_run_both_data_and_host_bound_has_both_findings() -> None:
    idle: Shares = {"compute": 40, "exposed": 5}
    assert kinds_in(job_of(idle, idle, data_ms=20, moved_ms=1)) == ["data_bound", "host_bound"]


def test_idle_gpus_without_another_rule_are_low_utilization() -> None:
    # 34 % idle, 8 % of it for data: 26 % is left for the host, which is too little to blame it.
    idle: Shares = {"compute": 61, "exposed": 5, "overlap": 10}
    (finding,) = findings_in(job_of(idle, idle, data_ms=8))
    assert finding.kind == "low_gpu_utilization"
    assert finding.what == "GPUs busy only 66 % of the time"
    assert finding.evidence == pytest.approx({"busy_ratio": 0.66, "busy_ratio_max": 0.7})


HALF_IDLE: Shares = {"compute": 45, "exposed": 5, "overlap": 10}
"""The device is idle 50 % of the time, of which 2 % are for data in these tests."""


@pytest.mark.parametrize(("process_ms", "kind"), [(24.0, "host_bound"), (23.9, "low_gpu_utilization")])
def test_idle_gpus_without_busy_hosts_wait_for_what_is_not_seen(process_ms: float, kind: str) -> None:
    # Half of 48 % is 24: with less CPU time no host is busy for half of the idle time.
    (finding,) = findings_in(job_of(HALF_IDLE, HALF_IDLE, data_ms=2, process_ms=(process_ms, process_ms)))
    assert finding.kind == kind
    if kind == "low_gpu_utilization":
        assert finding.what == "GPUs idle 50 % of the time"
        assert finding.why == (
            "training threads waiting for something not measured: on most ranks the CPU is used at most 24 % of the "
            "time"
        )


def test_host_that_most_ranks_have_busy_is_host_bound() -> None:
    busy = job_of(HALF_IDLE, HALF_IDLE, HALF_IDLE, data_ms=2, process_ms=(10.0, 60.0, 60.0))
    assert kinds_in(busy) == ["host_bound"]


@pytest.mark.parametrize(("wait_ms", "kinds"), [(10.0, ["cpu_pressure"]), (9.9, [])])
def test_training_threads_that_wait_for_cores_are_cpu_pressure(wait_ms: float, kinds: list[str]) -> None:
    assert kinds_in(job_of({"compute": 20}, {"compute": 20}, gpus=0, core_wait_ms=(wait_ms, 90.0))) == kinds


@pytest.mark.parametrize(("throttled", "told"), [((0.9, 0.4), "40 %"), ((0.9, 0.0), ""), ((0.9, None), "")])
def test_limit_that_stops_most_ranks_is_told(throttled: tuple[float | None, ...], told: str) -> None:
    view = job_of({}, {}, gpus=0, core_wait_ms=(20.0, 20.0), throttled=throttled)
    (finding,) = findings_in(view)
    assert (f", stopped by their CPU limit in {told} of its periods" in finding.headline) == bool(told), (
        finding.headline
    )


def test_busy_machine_is_named_and_no_rank_of_it() -> None:
    view = job_of({}, {}, gpus=0, core_wait_ms=(20.0, 20.0), nodes={0: "host7", 1: "host7"})
    (finding,) = findings_in(view)
    assert (finding.ranks, finding.nodes, finding.subject, finding.severity) == ((), ("host7",), "node host7", "info")
    assert finding.headline.startswith(
        "Node host7: training threads of most ranks waiting for a CPU core 20 % of the time or more, since step "
    )
    assert finding.why == "20.0 ms of each step"
    assert finding.evidence == pytest.approx({"core_wait_ratio": 0.2, "core_wait_ratio_min": 0.1})


def test_of_several_busy_machines_none_is_named() -> None:
    (finding,) = findings_in(job_of({}, {}, gpus=0, core_wait_ms=(40.0, 40.0)))
    assert (finding.nodes, finding.severity) == ((), "warning")
    assert finding.what.startswith("training threads of most ranks waiting for a CPU core 40 % of the time")


def test_wait_for_a_core_of_one_rank_is_no_finding_about_the_run() -> None:
    assert kinds_in(job_of({}, {}, gpus=0, core_wait_ms=(50.0, 0.0))) == []


def test_standing_run_waits_no_longer_than_the_elapsed_time() -> None:
    # Its 50 steps between two samples lasted 5 s, and then it stood for 45 s, in which other work had the cores half of
    # the time: 25 of 50 s, not 25 s over 50 steps of 0.1.
    view = job_of({}, {}, gpus=0)
    waits, clock = ([TimeCount(40, 0), TimeCount(90, seconds * 1_000 * MS)] for seconds in (25, 50))
    samples = dataclasses.replace(view, samples=view.samples._replace(
        core_waits={0: waits, 1: waits}, host_clock={0: clock, 1: clock},
    ))  # fmt: skip
    (finding,) = findings_in(samples)
    assert finding.evidence["core_wait_ratio"] == pytest.approx(0.5)
    assert finding.what == "training threads of most ranks waiting for a CPU core 50 % of the time or more,"
    assert finding.why == "50.0 ms of each step"


@pytest.mark.parametrize(
    ("kind", "cause", "is_told"),
    [("run_slowdown", "cpu_pressure", False), ("run_slowdown", "host_cpu", True), (STRAGGLER, "cpu_pressure", True)],
)
def test_wait_for_cores_is_told_once_of_the_run(kind: str, cause: str, *, is_told: bool) -> None:
    view = job_of({}, {}, gpus=0, core_wait_ms=(20.0, 20.0))
    assert kinds_in(view, finding_of(kind, cause)) == ["cpu_pressure"] * is_told


def test_gpu_busy_while_its_host_waits_for_a_core_loses_nothing() -> None:
    assert kinds_in(job_of(BUSY, BUSY, core_wait_ms=(30.0, 30.0))) == []  # idle 2 %
    idle = job_of(HALF_IDLE, HALF_IDLE, data_ms=2, core_wait_ms=(30.0, 30.0))
    assert kinds_in(idle) == ["cpu_pressure"]  # and not bound by busy hosts


def test_wait_for_cores_without_windows_of_gpus_is_not_judged() -> None:
    signals = read_signals(job_of(BUSY, BUSY, core_wait_ms=(30.0, 30.0), windows=2), STEPS)
    assert not isinstance(signals, Abstain)
    assert isinstance(RULES["cpu_pressure"].judge(signals, 1.0), Abstain)


@pytest.mark.parametrize("kind", ["data_bound", "host_bound"])
def test_low_utilization_is_silent_beside_an_explaining_finding(kind: str) -> None:
    idle: Shares = {"compute": 61, "exposed": 5, "overlap": 10}
    assert kinds_in(job_of(idle, idle, data_ms=8), finding_of(kind)) == []


def test_idle_gpus_are_not_judged_on_a_cpu() -> None:
    assert kinds_in(job_of({"compute": 20}, {"compute": 20}, gpus=0)) == []


def test_idle_gpu_of_one_rank_is_no_finding_about_the_run() -> None:
    assert kinds_in(job_of({"compute": 20}, BUSY)) == []


def test_profiler_s_own_time_is_not_the_host_s() -> None:
    # In the window a step takes 150 ms, 50 of them idle: outside it takes 100 ms.
    view = job_of(BUSY, BUSY)
    windows = [window_of(40 + 20 * n, {"compute": 85, "exposed": 5}, step_ms=150, idle_ms=60) for n in range(3)]
    samples = view.samples._replace(breakdowns={0: windows, 1: windows})
    signs = read_signals(with_samples(view, samples), STEPS)
    assert not isinstance(signs, Abstain)
    assert signs.idle == pytest.approx(0.1)


def test_communication_bound_run_has_exposed_transfer() -> None:
    talking: Shares = {"compute": 70, "exposed": 25, "overlap": 40}
    (finding,) = findings_in(job_of(talking, talking, moved_ms=65))
    assert (finding.kind, finding.severity) == ("communication_bound", "info")
    assert finding.what == "25 % of the time in communication"
    assert finding.why == "not overlapped with compute; waits for other ranks not counted"


def test_waiting_for_others_is_not_moving_data() -> None:
    # 25 % of the time in communication, 3 ms of it moving data.
    waiting: Shares = {"compute": 70, "exposed": 25, "overlap": 40}
    assert kinds_in(job_of(waiting, waiting, moved_ms=3)) == []


def test_communication_is_not_judged_without_the_transfer() -> None:
    talking: Shares = {"compute": 70, "exposed": 25, "overlap": 0}
    assert kinds_in(job_of(talking, talking, moved_ms=None)) == []


def test_communication_is_not_judged_on_a_cpu() -> None:
    # What moves the data and what computes share the cores: overlapped, both would take longer.
    turns: Shares = {"compute": 60, "exposed": 35, "overlap": 1}
    assert kinds_in(job_of(turns, turns, moved_ms=35, gpus=0)) == []


def test_transfer_of_groups_that_a_rank_is_not_in_is_not_its_own() -> None:
    talking: Shares = {"compute": 70, "exposed": 25, "overlap": 40}
    view = job_of(talking, talking)
    unknown = np.full(64, UNKNOWN)
    others = view_of(
        view.series,
        groups={"dp/8,9": (8, 9), GROUP: (0, 1), "tp/0-1": (0, 1)},
        transfers=exposed_of({"dp/8,9": np.full(64, 65.0 * MS), GROUP: np.full(64, 4.0 * MS), "tp/0-1": unknown}),
        samples=view.samples,
    )
    signs = read_signals(others, STEPS)
    assert not isinstance(signs, Abstain)
    assert signs.moving == pytest.approx(0.04)


def test_serialized_communication_could_run_beside_the_computing() -> None:
    # The case in which a gradient is reduced only when all of them are there.
    turns: Shares = {"compute": 85, "exposed": 12, "overlap": 1}
    (finding,) = findings_in(job_of(turns, turns, moved_ms=13))
    assert finding.kind == "serialized_communication"
    assert finding.what == "only 8 % of communication overlapped with compute"
    assert finding.why == "up to 12 % of the time to save by full overlap"
    assert "bucket_cap_mb" in finding.suggestion


@pytest.mark.parametrize(
    ("why", "shares", "moved_ms"),
    [
        ("a third is hidden already", {"compute": 85, "exposed": 12, "overlap": 6}, 18),
        ("it is less than a tenth", {"compute": 89, "exposed": 9, "overlap": 0}, 9),
        ("there is too little to compute", {"compute": 14, "exposed": 80, "overlap": 0}, 80),
        ("there is no communication", {"compute": 95}, 13),
    ],
)
def test_communication_without_compute_is_not_serialized(why: str, shares: Shares, moved_ms: float) -> None:
    assert "serialized_communication" not in kinds_in(job_of(shares, shares, moved_ms=moved_ms)), why


# -- what is explained already, and what lasts ------------------------------------------------------------------------


STRAGGLERS = {
    "data_bound": ({"compute": 70, "exposed": 5}, 20.0, 3.0, "data_loading"),
    "host_bound": ({"compute": 40, "exposed": 5}, 1.0, 3.0, "garbage_collection"),
    "low_gpu_utilization": ({"compute": 61, "exposed": 5}, 8.0, 3.0, "gpu_compute"),
    "communication_bound": ({"compute": 70, "exposed": 25, "overlap": 40}, 1.0, 65.0, "gpu_compute"),
    "serialized_communication": ({"compute": 85, "exposed": 12, "overlap": 1}, 1.0, 13.0, "gpu_compute"),
    "copy_bound": ({"compute": 80, "exposed": 3, "overlap": 20, "copied": 10}, 1.0, 3.0, "pcie_downgrade"),
}
"""By kind a run that has it (shares, data and transfer in ms), and the cause of a straggler that explains it."""


def run_with(kind: str) -> RunView:
    shares, data_ms, moved_ms, _ = STRAGGLERS[kind]
    return job_of(shares, shares, data_ms=data_ms, moved_ms=moved_ms)


@pytest.mark.parametrize("kind", STRAGGLERS)
def test_rule_explained_by_a_straggler_is_silent(kind: str) -> None:
    straggler = finding_of(STRAGGLER, str(STRAGGLERS[kind][3]))
    assert kinds_in(run_with(kind)) == [kind]
    assert kinds_in(run_with(kind), straggler) == []


@pytest.mark.parametrize("cause", ["host_cpu", "cpu_pressure", "garbage_collection", "host_device_sync"])
def test_host_bound_is_silent_beside_a_straggler_with_slow_host(cause: str) -> None:
    assert kinds_in(run_with("host_bound"), finding_of(STRAGGLER, cause)) == []


def test_host_bound_is_silent_beside_slower_data_loading() -> None:
    assert kinds_in(run_with("host_bound"), finding_of("run_slowdown", "data_loading")) == []


@pytest.mark.parametrize("kind", ["communication_bound", "serialized_communication"])
def test_rule_explained_by_a_slow_link_is_silent(kind: str) -> None:
    assert kinds_in(run_with(kind), finding_of("slow_link")) == []


def test_rule_explained_by_a_slower_run_is_silent() -> None:
    assert kinds_in(run_with("data_bound"), finding_of("run_slowdown", "data_loading")) == []
    assert kinds_in(run_with("data_bound"), finding_of("run_slowdown", "gpu_compute")) == ["data_bound"]


@pytest.mark.parametrize("kind", ["data_bound", "host_bound"])
def test_straggler_with_another_cause_explains_no_rule(kind: str) -> None:
    assert kinds_in(run_with(kind), finding_of(STRAGGLER, "gpu_thermal_throttle")) == [kind]


@pytest.mark.parametrize("kind", STRAGGLERS)
def test_open_finding_stays_beside_a_new_straggler(kind: str) -> None:
    (finding,) = findings_in(run_with(kind), finding_of(STRAGGLER, str(STRAGGLERS[kind][3])), finding_of(kind))
    assert finding.since_step == 7


@pytest.mark.parametrize("data_ms", [10.0, 9.0, 8.1, 7.9])
def test_open_finding_passes_only_well_below_what_opens_it(data_ms: float) -> None:
    view = job_of(BUSY, BUSY, data_ms=data_ms, gpus=0)
    assert (kinds_in(view) == ["data_bound"]) is (data_ms >= 10.0)
    assert RULE.has_passed(view, finding_of("data_bound"), ()) is (data_ms < 10.0 * CLOSE_RATIO)


def test_every_finding_passes_in_a_healthy_run() -> None:
    steady = {rank: counts_of(*STEADY) for rank in (0, 1)}
    well = job_of(BUSY, BUSY, allocators=steady, core_wait_ms=(0.0, 0.0))
    well = with_samples(well, well.samples._replace(gc_pauses={rank: pauses_of(0.0) for rank in (0, 1)}))
    assert {kind: RULE.has_passed(well, finding_of(kind), ()) for kind in RULE.kinds} == dict.fromkeys(RULE.kinds, True)


def test_unknown_signal_has_not_passed() -> None:
    unwatched = job_of(BUSY, BUSY, windows=0, moved_ms=None, phases=False)
    assert not any(RULE.has_passed(unwatched, finding_of(kind), ()) for kind in RULE.kinds)
    assert not any(RULE.has_passed(job_of(BUSY, BUSY, made=STEPS), finding_of(kind), ()) for kind in RULE.kinds)


def test_rules_of_a_gpu_abstain_and_pass_once_windows_have_ended() -> None:
    reason = "full windows ended after step 80: the agent dropped them"
    for kind in sorted(OF_WINDOWS_ONLY):
        view = run_with(kind)
        ended = with_samples(view, view.samples._replace(absent_ratios={0: reason, 1: reason}))
        signals = read_signals(ended, STEPS)
        assert not isinstance(signals, Abstain)
        assert RULES[kind].judge(signals, 1.0) == Abstain(reason)
        assert (kinds_in(ended), RULE.has_passed(ended, finding_of(kind), ())) == ([], Abstain(reason))


@pytest.mark.parametrize("kind", sorted(OF_WINDOWS_ONLY))
def test_windows_that_ended_on_one_rank_close_no_finding(kind: str) -> None:
    shares, data_ms, moved_ms, _ = STRAGGLERS[kind]
    view = job_of(shares, shares, shares, data_ms=data_ms, moved_ms=moved_ms)
    one = with_samples(view, view.samples._replace(absent_ratios={2: "ended"}))
    two = with_samples(view, view.samples._replace(absent_ratios={1: "ended", 2: "ended"}))
    assert (kinds_in(one), kinds_in(two)) == ([kind], [])
    assert RULE.has_passed(one, finding_of(kind), ()) is False
    assert RULE.has_passed(two, finding_of(kind), ()) == Abstain("ended")


def test_data_wait_beside_windows_that_have_ended_is_not_judged() -> None:
    view = job_of({"compute": 50}, {"compute": 50}, data_ms=50)
    ended = with_samples(view, view.samples._replace(absent_ratios={0: "old", 1: "old"}))
    assert (kinds_in(view), kinds_in(ended)) == (["data_bound"], [])
    assert not RULE.has_passed(ended, finding_of("data_bound"), ())
    quick = job_of({"compute": 50}, {"compute": 50}, data_ms=1)
    assert RULE.has_passed(
        with_samples(quick, quick.samples._replace(absent_ratios={0: "old", 1: "old"})), finding_of("data_bound"), ()
    )


def test_data_wait_of_a_cpu_is_judged_whatever_became_of_windows() -> None:
    view = job_of(BUSY, BUSY, data_ms=50, gpus=0)
    assert kinds_in(with_samples(view, view.samples._replace(absent_ratios={0: "old", 1: "old"}))) == ["data_bound"]


def test_every_kind_has_a_rule_whose_cause_is_its_name() -> None:
    assert RULE.kinds == set(RULES)
    for kind in STRAGGLERS:
        (finding,) = findings_in(run_with(kind))
        assert (finding.cause, finding.ranks, finding.suggestion != "") == (kind, (), True)


# -- over a run -------------------------------------------------------------------------------------------------------


def train(story: Story, data_ms: float) -> None:
    """Sixteen steps, then a window of each rank; the run has no GPU."""
    story.train(16, data=dict.fromkeys(range(story.ranks), data_ms))
    for rank in range(story.ranks):
        story.report(rank, [], [], breakdowns=(window_of(story.step - 1, BUSY),))
    story.tick()


def test_finding_about_the_run_opens_and_closes() -> None:
    story = Story(4).join()
    for _ in range(8):
        train(story, data_ms=20)
    (finding,) = story.snapshot().open_findings
    # 12 of 45 ms are in the loader. Without a GPU no window is needed: of the first 64 steps the last 32 are judged.
    assert (finding.kind, finding.since_step, finding.severity) == ("data_bound", 3, "info")
    assert finding.lost_rank_seconds is None
    for _ in range(4):
        train(story, data_ms=1)
    assert story.snapshot().open_findings == ()
    assert [type(effect) for effect in story.effects if not isinstance(effect, AskClock | AskSamples)] == [
        FindingOpened,
        CloseFinding,
    ]


# -- garbage collection -----------------------------------------------------------------------------------------------


def pausing(ms_per_step: tuple[float, ...], long_ms: float = 300.0, long_from: int = 0) -> RunView:
    """Return a run whose steps take 100 ms, and each tenth of them `long_ms`; its ranks pause so much per step."""
    are_long = [step % 10 == 0 and step >= long_from for step in range(120)]
    step_ms = [[long_ms if is_long else 100.0] * len(ms_per_step) for is_long in are_long]
    view = view_of(series_of(step_ms))
    return with_samples(view, Samples({}, {rank: pauses_of(ms) for rank, ms in enumerate(ms_per_step)}, {}))


def test_pauses_of_all_ranks_are_what_steps_are_longer_by() -> None:
    (finding,) = findings_in(pausing((6.0, 6.0, 6.0, 6.0)))
    # The mean step is 120 ms, of which 20 are beyond the median; 24 ms of pauses.
    assert (finding.kind, finding.ranks, finding.severity) == ("garbage_collection", (), "info")
    assert finding.evidence["pause_ratio"] == pytest.approx(0.2)
    assert finding.evidence["beyond_usual_ratio"] == pytest.approx(1 / 6)
    # What the steps are longer by is lost, and it began with the first long one, after at most the usual gap.
    assert finding.run_slowdown_ratio == pytest.approx(120 / 100)
    assert (finding.since_step, finding.since_range) == (0, (0, 0))


def test_begin_of_pauses_is_where_long_steps_become_frequent() -> None:
    view = pausing((6.0, 6.0, 6.0, 6.0), long_from=40)
    (finding,) = findings_in(view)
    assert (finding.since_step, finding.since_range) == (40, (30, 40))
    (candidate,) = candidates_in(view)
    lost_ns = candidate.lost_ns
    assert isinstance(lost_ns, np.ndarray)
    # 8 steps are 200 ms longer; all of it is lost, as the ranks pause for 4 x 6 ms in each step.
    assert lost_ns[[39, 40, 41, 110]].tolist() == pytest.approx([0.0, 200e6, 0.0, 200e6])


def test_pauses_of_the_start_do_not_count() -> None:
    """A rank pauses for 400 ms in its first ten steps, when it imports and compiles, and for 1 ms in each later one."""
    first = [TimeCount(step, round(min(step, 10) * 40 * MS + step * MS)) for step in range(0, 121, 10)]
    view = pausing((6.0, 6.0))
    assert kinds_in(with_samples(view, Samples({}, {0: first, 1: first}, {}))) == []


def late_pauses(*, is_reported: bool = True) -> RunView:
    """Return a run in which rank 0 pauses for 800 ms after each tenth optimizer step, so that the others wait in the
    next one; the last such step of rank 0 may not be reported yet.
    """
    step_ms = np.full((120, 2), 100.0)
    step_ms[8::10, 0] += 800.0
    step_ms[9::10, 1] += 800.0
    if not is_reported:
        step_ms[118, 0] = np.nan
    view = view_of(replace(series_of(step_ms.tolist()), step_ns=step_ms * 1e6))
    return with_samples(view, Samples({}, {rank: pauses_of(40.0) for rank in (0, 1)}, {}))


def test_pause_that_two_steps_show_is_lost_once() -> None:
    (candidate,) = candidates_in(late_pauses())
    lost_ns = candidate.lost_ns
    assert isinstance(lost_ns, np.ndarray)
    assert lost_ns.sum() == pytest.approx(12 * 800e6)
    assert candidate.finding.run_slowdown_ratio == pytest.approx(180 / 100)


def test_step_unreported_by_the_pausing_rank_is_charged_later() -> None:
    (candidate,) = candidates_in(late_pauses(is_reported=False))
    lost_ns = candidate.lost_ns
    assert isinstance(lost_ns, np.ndarray)
    assert np.flatnonzero(np.isnan(lost_ns)).tolist() == [118]


def test_few_pauses_have_a_wider_begin_at_once() -> None:
    (finding,) = findings_in(pausing((6.0, 6.0, 6.0, 6.0), 1000.0, long_from=90))
    # 3 pauses, 10 steps apart: a longer distance between two may not have been seen yet.
    assert (finding.since_step, finding.since_range) == (90, (70, 90))


@pytest.mark.parametrize(
    ("ms_per_step", "long_ms"),
    [((1.0, 1.0, 1.0, 1.0), 300.0), ((6.0, 6.0, 6.0, 6.0), 110.0), ((24.0, 0.0, 0.0, 0.0), 300.0)],
)
def test_short_pauses_hidden_ones_and_those_of_one_rank_are_none(
    ms_per_step: tuple[float, ...], long_ms: float
) -> None:
    assert kinds_in(pausing(ms_per_step, long_ms)) == []


def test_unknown_pauses_are_not_judged() -> None:
    signals = read_signals(job_of(BUSY, BUSY), 32)
    assert not isinstance(signals, Abstain)
    assert isinstance(RULES["garbage_collection"].judge(signals, 1.0), Abstain)
