"""What the ranks report is what the agent would: the same tables, the same steps."""

import numpy as np

from rankscope.measure.messages import Report
from rankscope.measure.records import PHASES, StepRecord, collectives_to_table, steps_to_table
from rankscope.measure.units import NS_PER_S
from tests.second_table.layout import make_layout
from tests.second_table.physics import Machine, Model, Step
from tests.second_table.reporting import PRODUCTION, Agents, Sampling


def report_all(model: Model, seconds: int, sampling: Sampling = PRODUCTION) -> tuple[list[list[Report]], list[Step]]:
    layout = make_layout(dp=2)
    machine, agents = Machine(layout, model, (), seed=1), Agents(layout, model, sampling, (), seed=1)
    every, ready = list[Step](), list[Step]()
    reports: list[list[Report]] = []
    for second in range(1, seconds + 1):
        while not ready or ready[-1].end.max() <= second * NS_PER_S:
            ready.append(machine.play())
            every.append(ready[-1])
        reports.append(agents.report(ready[:-1], second * NS_PER_S))
        ready = ready[-1:]
    return reports, every[:-1]


def covered(reports: list[list[Report]]) -> list[int]:
    return [step for of_all in reports for first, last in of_all[0].covered_steps for step in range(first, last + 1)]


def test_table_of_steps_is_the_agents() -> None:
    reports, steps = report_all(Model(kind="ddp", step_ms=90, on_gpu=False), 1)
    found = reports[0][1].steps
    columns = found.columns()
    records = [
        StepRecord(
            step=number, start_host_ns=int(columns["start_host_ns"][number]), batches=1, backwards=1, samples=8,
            duration_ns=round(float(step.end[1])) - round(float(step.start[1])),
            phases_ns={name: int(columns[f"phase:{name}"][number]) for name in PHASES},
            backward_cpu_ns=round(float(step.backward_cpu[1])),
        )
        for number, step in enumerate(steps)
    ]  # fmt: skip
    expected = steps_to_table(records)
    assert (found.names, found.row_count) == (expected.names, expected.row_count)
    for name in set(found.names) - {"cpu_ns"}:
        assert np.array_equal(found.column(name), expected.column(name)), name
    assert all(sum(record.phases_ns.values()) == record.duration_ns for record in records)


def test_cpu_windows_cover_what_the_budget_pays_for() -> None:
    reports, steps = report_all(Model(kind="ddp", step_ms=200, on_gpu=False), 40)
    assert 0.7 * len(steps) < len(covered(reports)) < len(steps)
    short, many = report_all(Model(kind="ddp", step_ms=8, on_gpu=False), 40)
    assert 0.05 * len(many) < len(covered(short)) < 0.7 * len(many)


def test_gpu_windows_are_two_steps_now_and_then() -> None:
    reports, steps = report_all(Model(kind="ddp", step_ms=100), 60)
    seen = covered(reports)
    assert 4 <= len(seen) <= 12 < len(steps) / 20
    rows = sum(one[0].collectives.table.row_count for one in reports)
    assert rows == 4 * len(steps)  # torch's recorder times those of all other steps
    untimed, _ = report_all(Model(kind="ddp", step_ms=100), 60, Sampling(times_collectives=False))
    assert sum(one[0].collectives.table.row_count for one in untimed) == 4 * len(seen)


def test_table_of_collectives_is_the_agents() -> None:
    reports, _ = report_all(Model(kind="ddp", step_ms=100), 2)
    assert reports[0][0].collectives.table.names == collectives_to_table([]).table.names


def test_parts_of_a_window_add_up() -> None:
    reports, _ = report_all(Model(kind="ddp", step_ms=100), 60)
    breakdowns = [one for of_all in reports for report in of_all for one in report.breakdowns]
    assert breakdowns
    for one in breakdowns:
        alone = one.compute_ns - one.overlap_ns
        assert one.window_ns == alone + one.overlap_ns + one.exposed_communication_ns + one.copy_ns + one.idle_ns


def test_totals_are_the_sums_of_what_was_reported() -> None:
    reports, steps = report_all(Model(kind="ddp", step_ms=100), 10)
    last = reports[-1][0].totals
    durations = sum(int(one[0].steps.column("duration_ns").sum()) for one in reports if one[0].steps.row_count)
    assert (last.steps, last.step_ns) == (len(steps), durations)
    assert sum(last.phases_ns.values()) == durations
