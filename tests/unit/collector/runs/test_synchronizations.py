"""Blocking calls of a rank on their way from its reports to its snapshot and to detection; how much is kept."""

from rankscope.collector.runs.events import ReportAdmitted
from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.run_view import read_samples
from rankscope.collector.runs.sample_rings import SYNCHRONIZATIONS_KEPT
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.messages import Report
from rankscope.measure.records import Synchronization, WindowBreakdown, WindowSynchronizations
from tests.unit.collector.runs.run_stories import Story, boot_of
from tests.unit.collector.runs.test_saved_runs import kill, wall_of

CALL = "cudaStreamSynchronize"


def window(first_step: int, waits_ns: int) -> WindowSynchronizations:
    kind = Synchronization(call=CALL, line="a.py:1 (f)", count=1, waits_ns=waits_ns, longest_ns=waits_ns)
    return WindowSynchronizations(first_step=first_step, step_count=1, call_ns={CALL: waits_ns}, kinds=(kind,))


def report(story: Story, *windows: WindowSynchronizations) -> None:
    """The next report of rank 0."""
    story.sequence[0] += 1
    breakdowns = tuple(
        WindowBreakdown(
            first_step=window.first_step, step_count=1, window_ns=1, compute_ns=1, communication_ns=0, overlap_ns=0,
            exposed_communication_ns=0, copy_ns=0, idle_ns=0,
        )
        for window in windows
    )  # fmt: skip
    message = Report(sequence=story.sequence[0], host_ns=story.now_ns, breakdowns=breakdowns, synchronizations=windows)
    story.run.apply(ReportAdmitted(boot_of(0), ReportFields.of(message), story.now_ns, 0.0))


def snapshot_of(story: Story, rank: int) -> RankSnapshot:
    return story.run.snapshot(story.now_ns).ranks[rank]


def saved_of(story: Story) -> SavedRank:
    """What is saved of rank 0."""
    assert story.run.attempt is not None
    return story.run.attempt.ranks[0].save(wall_of(story))


def test_windows_of_a_rank_are_added_up_in_its_snapshot() -> None:
    story = Story(2).join()
    report(story, window(4, 10), window(36, 30))
    report(story, window(68, 2))
    report(story)
    found = snapshot_of(story, 0).synchronizations
    assert found is not None
    assert (found.first_step, found.step_count, found.call_ns) == (4, 3, {CALL: 42})
    assert [(kind.count, kind.waits_ns, kind.longest_ns) for kind in found.kinds] == [(3, 42, 30)]


def test_rank_without_a_window_of_a_gpu_has_none() -> None:
    assert snapshot_of(Story(2).join(), 1).synchronizations is None


def test_only_the_last_windows_are_kept() -> None:
    story = Story(2).join()
    for number in range(SYNCHRONIZATIONS_KEPT + 3):
        report(story, window(number, 1))
    found = snapshot_of(story, 0).synchronizations
    assert found is not None
    assert (found.first_step, found.step_count) == (3, SYNCHRONIZATIONS_KEPT)


def test_detection_reads_them_oldest_first() -> None:
    story = Story(2).join()
    report(story, window(4, 10), window(36, 30))
    assert story.run.attempt is not None
    samples = read_samples(story.run.attempt)
    assert list(samples.synchronizations[0]) == [window(4, 10), window(36, 30)]
    assert list(samples.synchronizations[1]) == []


def test_they_are_saved_over_a_restart_until_a_window_comes() -> None:
    """Two restarts without a window; then one comes, which is saved alone."""
    story = Story(2).join()
    report(story, window(4, 10), window(36, 30))
    saved = saved_of(story)
    assert saved.synchronizations is not None
    assert saved.synchronizations.call_ns == {CALL: 40}
    for _ in range(2):
        kill(story)
        report(story)
        assert saved_of(story).synchronizations == saved.synchronizations
        assert snapshot_of(story, 0).synchronizations is None  # what is live is of the present
    report(story, window(68, 2))
    after = saved_of(story).synchronizations
    assert after is not None
    assert after.call_ns == {CALL: 2}
