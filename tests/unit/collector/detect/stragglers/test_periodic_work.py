"""Work of one rank by itself: rank 0 of eight logs, saves or evaluates between its steps of 100 ms."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rankscope.collector.detect.finding import PERIODIC_WORK, STRAGGLER, Abstain, Finding
from rankscope.collector.detect.finding_memory import FindingMemory, remember
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.periodic_work import find_periods
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView, Samples
from rankscope.measure.records import (
    CHECKPOINT,
    DeviceSample,
    SavedLine,
    Synchronization,
    WindowBreakdown,
    WindowSynchronizations,
)
from tests.unit.collector.steps.step_series import MS, series_of, view_of

DETECTOR = Stragglers(Thresholds())
RANKS = 8
STEPS = 120
EVERY_TENTH = range(10, STEPS, 10)


def view(
    longer_ms: dict[int, float], *, phase: str = "other", steps: int = STEPS, samples: Samples | None = None
) -> RunView:
    """Rank 0 takes so many ms longer in some steps, all of it in one phase."""
    added = np.zeros((steps, RANKS))
    for step, more_ms in longer_ms.items():
        added[step, 0] = more_ms
    phases = {
        name: np.full((steps, RANKS), ms) + added * (name == phase)
        for name, ms in (("forward", 95.0), ("other", 5.0), (CHECKPOINT, 0.0))
    }
    return view_of(
        series_of((100.0 + added).tolist(), phases_ms={name: rows.tolist() for name, rows in phases.items()}),
        samples=samples,
    )


def findings(look: RunView, *known: Finding) -> list[Finding]:
    found = DETECTOR.find(look, known)
    assert not isinstance(found, Abstain)
    return [candidate.finding for candidate in found]


def every(*periods_ms: tuple[int, float], steps: int = STEPS) -> dict[int, float]:
    longer: dict[int, float] = {}
    for period, more_ms in periods_ms:
        for step in range(period, steps, period):
            longer[step] = longer.get(step, 0.0) + more_ms
    return longer


def test_work_every_tenth_step_is_told_with_period_and_cost() -> None:
    # 11 steps of 120 (10, 20, ..., 110) are 50 ms longer. From step 10 on these are 11 of 110: the mean step is 105 ms
    # where it would be 100; 5 of 105 parts of eight ranks are lost.
    (found,) = findings(view(every((10, 50.0))))
    assert (found.kind, found.ranks, found.severity, found.cause) == ("periodic_work", (0,), "info", "periodic_work")
    assert (found.since_step, found.evidence["period_steps"]) == (10, 10.0)
    assert found.headline == "Rank 0 (node0): work of its own every 10 steps since about step 10 (0-10)"
    assert found.why == "between optimizer and next batch, 50.0 ms longer than on its 7 peers"
    assert found.cost == "run 1.05x slower"


def test_two_kinds_of_work_have_a_period_each() -> None:
    (found,) = findings(view(every((10, 50.0), (25, 200.0))))
    assert found.what == "work of its own every 10 steps and every 25 steps"


def test_only_peer_is_named_so() -> None:
    look = view(every((10, 50.0)))
    pairs = view_of(look.series, signatures={rank: rank // 2 for rank in range(RANKS)})
    assert findings(pairs)[0].why.endswith("longer than on its 1 peer")


@pytest.mark.parametrize(
    ("longer_ms", "phase"),
    [
        (every((10, 50.0)), "forward"),  # while it trains
        (dict.fromkeys((11, 17, 24, 38, 47, 51, 66, 78, 93, 104, 117), 50.0), "other"),  # not every so many steps
    ],
)
def test_other_slowness_in_some_steps_is_a_straggler(longer_ms: dict[int, float], phase: str) -> None:
    (found,) = findings(view(longer_ms, phase=phase))
    assert (found.kind, found.pattern) == ("straggler", "intermittent")


def test_checkpoint_every_tenth_step_is_own_work_with_its_line() -> None:
    line = SavedLine(
        call="torch.save", line="train.py:24 (main)", count=9, duration_ns=450 * MS, last_ns=50 * MS, last_bytes=2**20
    )
    for saves, why in (({}, "saving a checkpoint, 50.0 ms longer"), ({0: (line,)}, "train.py:24 (main), 1.0 MiB")):
        look = view(every((10, 50.0)), phase="checkpoint", samples=Samples({}, {}, {}, saves=saves))
        (found,) = findings(look)
        assert (found.kind, found.cause) == (PERIODIC_WORK, PERIODIC_WORK)
        assert why in found.why


def test_checkpoint_slower_than_its_peers_is_slow_storage() -> None:
    line = SavedLine(call="torch.save", line="t.py:24 (main)", count=9, last_ns=50 * MS, last_bytes=2**20)
    saves = dict.fromkeys(range(1, RANKS), (line,))
    saves[0] = (msgspec.structs.replace(line, last_ns=150 * MS),)
    look = view(every((10, 50.0)), phase="checkpoint", samples=Samples({}, {}, {}, saves=saves))
    (found,) = findings(look)
    assert (found.kind, found.cause) == (STRAGGLER, "storage")
    assert "1.0 MiB in 150.0 ms (6.7 MiB/s), its peers as much at 20.0 MiB/s" in found.why


def test_without_phases_it_is_a_straggler() -> None:
    (found,) = findings(view_of(series_of((view(every((10, 50.0))).series.own_ns / MS).tolist())))
    assert found.kind == "straggler"


def test_slow_loader_every_tenth_step_is_a_straggler() -> None:
    look = view(every((10, 50.0)))
    own_ms = look.series.own_ns / MS
    longer = (own_ms - 95.0).tolist()
    (found,) = findings(view_of(series_of(own_ms.tolist(), phases_ms={"data": longer, "other": longer})))
    assert (found.kind, found.cause) == ("straggler", "data_loading")


def test_line_that_waits_for_the_gpu_is_named() -> None:
    steps = range(0, STEPS, 10)

    def waits(rank: int) -> list[WindowSynchronizations]:
        kind = Synchronization(
            call="cudaStreamSynchronize", operator="aten::item", line="train.py:24 (log)", count=1,
            waits_ns=round(50 * MS), idle_ns=round(50 * MS),
        )  # fmt: skip
        return [
            WindowSynchronizations(
                first_step=step, step_count=1, call_ns={"cudaStreamSynchronize": (1 - rank) * 50 * MS},
                idle_ns=(1 - rank) * 50 * MS, kinds=(kind,) * (1 - rank),
            )
            for step in steps
        ]  # fmt: skip

    def windows(rank: int) -> list[WindowBreakdown]:
        return [
            WindowBreakdown(
                first_step=step, step_count=1, window_ns=150 * MS, compute_ns=90 * MS, communication_ns=0, overlap_ns=0,
                exposed_communication_ns=0, copy_ns=0, idle_ns=(60 - 50 * rank) * MS,
            )
            for step in steps
        ]  # fmt: skip

    samples = Samples(
        breakdowns={rank: windows(min(rank, 1)) for rank in range(RANKS)},
        gc_pauses={},
        devices={rank: [DeviceSample(host_ns=0, uuid="GPU")] for rank in range(RANKS)},
        synchronizations={rank: waits(min(rank, 1)) for rank in range(RANKS)},
    )
    (found,) = findings(view(every((10, 50.0)), samples=samples))
    where = "train.py:24 (log) (aten::item, cudaStreamSynchronize)"
    assert f"longer than on its 7 peers; its host waiting for the GPU at {where}" in found.why


def test_open_finding_keeps_its_first_step_with_irregular_steps() -> None:
    (found,) = findings(view(every((10, 50.0))))
    uneven = {**every((10, 50.0)), **dict.fromkeys((13, 36, 57, 72, 98), 50.0)}
    (fresh,) = findings(view(uneven))
    assert fresh.kind == "straggler", "11 of 16 steps are every tenth, less than 0.7"
    (kept,) = findings(view(uneven), found)
    assert (kept.kind, kept.since_step) == ("periodic_work", 10)


def test_straggler_and_work_of_its_own_replace_each_other() -> None:
    look = view(every((10, 50.0)))
    (work,) = findings(look)
    straggler = remember(
        Finding(kind="straggler", ranks=(0,), pattern="intermittent", cause="unattributed"),
        FindingMemory(gap_known_steps=10.0),
    )
    assert DETECTOR.has_passed(look, straggler, [straggler, work])
    assert DETECTOR.has_passed(look, work, [straggler, work])
    assert not DETECTOR.has_passed(look, work, [work])


def test_it_has_passed_after_four_periods_without() -> None:
    (work,) = findings(view(every((10, 50.0))))
    later = view(dict.fromkeys(EVERY_TENTH, 50.0), steps=160)
    assert DETECTOR.has_passed(later, work, [work])


@pytest.mark.parametrize(
    ("steps", "last_step", "periods"),
    [
        ([10, 20, 30], 35, {10: 10}),
        ([10, 20], 25, {}),  # two steps prove no period
        ([10, 20, 30], 95, {}),  # three of nine: it has stopped
        ([], 95, {}),
        ([8, 16, 20, 24, 32, 40, 48, 56, 60, 64, 72, 80], 83, {8: 8, 20: 20}),
        # Of four periods three are stated, which explain all but the six of the fourth of 57 steps.
        (
            sorted({step for every in (16, 23, 37, 59) for step in range(every, 401, every)}),
            405,
            {16: 16, 23: 23, 37: 37},
        ),
    ],
)
def test_periods(steps: list[int], last_step: int, periods: dict[int, int]) -> None:
    assert find_periods(np.array(steps, dtype=np.int64), np.arange(last_step + 1)) == periods


def test_periods_hold_of_the_steps_that_are_kept() -> None:
    """Of older steps some are left out."""
    kept = np.array([*range(60, 101), *range(204, 456)])
    steps = np.array([step for step in kept.tolist() if step % 4 == 0], dtype=np.int64)
    assert find_periods(steps, kept) == {4: 60}


def test_work_that_takes_much_of_the_time_is_a_warning() -> None:
    severities = [findings(view(every((10, more_ms))))[0].severity for more_ms in (40.0, 400.0)]
    assert severities == ["info", "warning"]  # 4 and 40 of 104 and 140 ms


def test_noise_elsewhere_does_not_make_an_open_one_a_straggler() -> None:
    longer = every((10, 400.0))
    look = view(longer)
    (found,) = findings(look)
    own_ns = look.series.own_ns.copy()
    own_ns[[3, 15, 27, 33, 57, 81], 0] += 15e6
    noisy = replace(look, series=replace(look.series, own_ns=own_ns))
    assert [one.kind for one in findings(noisy, found)] == [PERIODIC_WORK]
