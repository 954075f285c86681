"""Run dashboard: the time of one run by what it was spent on, its changes, and the ranks that cause them."""

from typing import Final

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.generator import run_ranks, thresholds
from deploy.grafana.generator.expressions import (
    STEP_OF_RUN,
    phases_of_run,
    rate,
    recorded,
    series,
    shares_of_run,
    use_of_peak,
)
from deploy.grafana.generator.frame import (
    LIVE_RUN,
    OF_RUN,
    RUN,
    Placed,
    annotation,
    dashboard,
    lay_out,
    run_variable,
)
from deploy.grafana.generator.panels import (
    BYTES,
    BYTES_PER_S,
    CELSIUS,
    GPU_HOURS,
    GPUS,
    HERTZ,
    JOULES,
    NUMBER,
    PER_S,
    RATIO,
    RED,
    SECONDS,
    SIXTH,
    THIRD,
    TIMES,
    WATTS,
    YELLOW,
    Query,
    areas,
    lines,
    number,
    too_high,
    too_low,
)

DATA_PHASE: Final = f'{OF_RUN},phase="data"'
MISSING: Final = f'{OF_RUN},state=~"failed|silent|never_reported"'
UNCORRECTED: Final = f'{OF_RUN},kind="uncorrected"'
SLOWDOWN_COLORS: Final = too_high(yellow=thresholds.SLOWDOWN, red=thresholds.SLOWDOWN_LARGE)


HELP: Final = """\
**Where does the time of this run go, and which rank or node costs it?** *Goodput* and *Run slowdown* say how
much is lost, *Findings* who is the cause; then open the row that the finding is about. Yellow and red are the
limits of detection and alerts. A line says more under its (i); the live page has every rank and step, and the
captures of a finding."""


def build() -> Dashboard:
    """Return the dashboard."""
    page = dashboard(
        RUN, "rankscope / Run", "One run: where its time goes, and which ranks slow it down.", run_variable(),
        live=LIVE_RUN,
    )  # fmt: skip
    page.annotation(
        annotation(
            "Findings",
            series("finding_open", OF_RUN),
            title="{{kind}}: {{subject}}",
            text="cause: {{cause}}",
            color=YELLOW,
        )
    )
    page.annotation(
        annotation(
            "Stalled ranks",
            f"count by (cluster, run) ({series('rank_stalled', OF_RUN)} == 1)",
            title="Ranks stalled",
            text="run {{run}}",
            color=RED,
        )
    )
    page.annotation(
        annotation(
            "Ended ranks",
            f"count by (reason) ({series('rank_end_info', OF_RUN)})",
            title="Ranks ended",
            text="{{reason}}",
            color="purple",
        )
    )
    rows = (
        ("Now", _now()),
        ("Findings", run_ranks.verdicts()),
        ("Time of a step", _steps()),
        ("Throughput and what limits it", _throughput()),
        ("Slow ranks", run_ranks.slowness()),
        ("Communication", _communication()),
        ("GPUs", [*_gpu_signs(), *_gpus()]),
    )
    return lay_out(page, HELP, rows, is_open=3)


def _now() -> list[Placed]:
    return [
        number(
            "Goodput of the last hour",
            "Share of the run's time in steps, less the time lost to slow ranks.",
            RATIO,
            recorded("run:goodput:ratio_rate1h", OF_RUN),
            colors=too_low(red=thresholds.GOODPUT_LOW, yellow=thresholds.GOODPUT_GOOD),
            decimals=1,
        ),
        number(
            "Run slowdown",
            "Step duration of the run over the duration without its straggler.",
            TIMES,
            series("run_slowdown_ratio", OF_RUN),
            colors=SLOWDOWN_COLORS,
            decimals=2,
        ),
        number("Step", "Mean duration of a step.", SECONDS, STEP_OF_RUN),
        number(
            "Ranks missing",
            "Ranks of the run that failed, are silent or have never reported.",
            NUMBER,
            f"sum({series('ranks', MISSING)})",
            colors=too_high(red=1),
        ),
        number(
            "Findings",
            "Open findings of the run.",
            NUMBER,
            f"count({series('finding_open', OF_RUN)}) or vector(0)",
            colors=too_high(red=1),
        ),
        number(
            "Lost so far",
            "GPU time the run has lost to slow ranks.",
            GPU_HOURS,
            f"(sum({series('lost_gpu_seconds_total', OF_RUN)}) or vector(0)) / 3600",
            decimals=2,
        ),
    ]


def _steps() -> list[Placed]:
    return [
        lines(
            "Duration of a step",
            "The mean over all ranks; and the medians of the last steps of the ranks whose steps are longest and "
            "shortest, which in synchronous training are the same.",
            SECONDS,
            Query(STEP_OF_RUN, "mean"),
            Query(f"max({series('step_median_seconds', OF_RUN)})", "longest"),
            Query(f"min({series('step_median_seconds', OF_RUN)})", "shortest"),
        ),
        lines(
            "Distribution of steps",
            "Quantiles of the duration of the run's steps: median, nine of ten, 99 of 100.",
            SECONDS,
            *(
                Query(
                    f"histogram_quantile({quantile}, sum by (le) ({rate('run_step_duration_seconds_bucket', OF_RUN)}))",
                    name,
                )
                for quantile, name in ((0.99, "p99"), (0.9, "p90"), (0.5, "median"))
            ),
        ),
        areas(
            "Phases of a step",
            "Mean of all ranks, by the host's clock; the phases sum to the step.",
            SECONDS,
            phases_of_run(),
        ),
        areas(
            "Where the device's time goes",
            "Share of the profiler windows of all ranks, over ten minutes. Overlap is communication hidden behind "
            "compute, exposed is communication during which nothing is computed. The shares sum to 1, within 1 % while "
            "these ten minutes hold the begin of the run.",
            RATIO,
            *shares_of_run(),
            parts_of_whole=True,
        ),
        areas(
            "Where the run's time goes",
            "Share of the wall time in steps, startup, between steps (evaluation, checkpoints), stalled, restart.",
            RATIO,
            Query(
                f"sum by (kind) ({rate('run_seconds_total', OF_RUN)})"
                f" / on () group_left () sum({rate('run_seconds_total', OF_RUN)})",
                "{{kind}}",
            ),
            parts_of_whole=True,
        ),
        lines(
            "Checkpoints",
            "Time since the step of the last checkpoint that the script has marked: the work that a failure now would "
            "lose. And how long training waited for a checkpoint, mean of the last hour. No data: none is marked "
            "(docs/loops.md).",
            SECONDS,
            Query(f"time() - max({series('last_checkpoint_timestamp_seconds', OF_RUN)})", "since the last"),
            Query(
                f"sum(increase({series('checkpoint_seconds_total', OF_RUN)}[1h]))"
                f" / sum(increase({series('checkpoints_total', OF_RUN)}[1h]))",
                "duration",
            ),
        ),
    ]


def _throughput() -> list[Placed]:
    return [
        lines(
            "Steps a second",
            "Steps of the run; all ranks make the same steps.",
            PER_S,
            Query(f"1 / {STEP_OF_RUN}", "steps"),
            width=THIRD,
        ),
        lines(
            "Samples a second",
            "Samples of all ranks together, where the batch size is known.",
            PER_S,
            Query(recorded("run:samples:rate5m", OF_RUN), "samples"),
            width=THIRD,
        ),
        lines(
            "Tokens a second",
            "Tokens of all ranks together, padding included, where the batch size is known.",
            PER_S,
            Query(recorded("run:tokens:rate5m", OF_RUN), "tokens"),
            width=THIRD,
        ),
        use_of_peak(
            "Use of the devices' peak",
            series("run_mfu_ratio", OF_RUN),
            series("run_hfu_ratio", OF_RUN),
            "of the last minute of steps, mean of all ranks",
        ),
        lines(
            "Model FLOPs a step",
            "FLOPs that the model needs for a step of all ranks together, as declared or measured.",
            NUMBER,
            Query(series("run_model_flops_per_step", OF_RUN), "FLOPs"),
            width=THIRD,
        ),
        lines(
            "Waiting for data",
            "Share of the steps of all ranks in the data phase; above the dashed line the run is data-bound.",
            RATIO,
            Query(recorded("run:step_phase:ratio_rate5m", DATA_PHASE), "data"),
            colors=too_high(yellow=thresholds.DATA),
            width=THIRD,
        ),
        lines(
            "Idle devices",
            "Share of the profiler windows in which devices were idle: all ranks together, and the median rank.",
            RATIO,
            Query(f"1 - {recorded('run:device_busy:ratio_rate10m', OF_RUN)}", "of all"),
            Query(f"quantile(0.5, {series('idle_ratio', OF_RUN)})", "in the middle"),
            colors=too_high(yellow=thresholds.IDLE),
            width=THIRD,
        ),
        areas(
            "GPUs lost, by cause",
            "GPU-seconds a second that the run loses to slow ranks.",
            GPUS,
            Query(f"sum by (cause) ({rate('lost_gpu_seconds_total', OF_RUN)})", "{{cause}}"),
            width=THIRD,
        ),
    ]


def _communication() -> list[Placed]:
    step_seconds = f"sum({rate('step_seconds_total', OF_RUN)})"
    bandwidth = series("collective_bus_bandwidth_bytes_per_second", OF_RUN)
    return [
        lines(
            "Waiting in collectives",
            "Share of the steps of all ranks spent waiting for later members of the group.",
            RATIO,
            Query(
                f"sum by (op) ({rate('collective_wait_seconds_total', OF_RUN)}) / on () group_left () {step_seconds}",
                "{{op}}",
            ),
            width=THIRD,
        ),
        lines(
            "Transfer in collectives",
            "Share of the steps of all ranks in which data was transferred.",
            RATIO,
            Query(
                f"sum by (op) ({rate('collective_transfer_seconds_total', OF_RUN)})"
                f" / on () group_left () {step_seconds}",
                "{{op}}",
            ),
            width=THIRD,
        ),
        lines(
            "Bus bandwidth",
            "As defined by nccl-tests, of the last matched collectives: the median rank and the slowest one.",
            BYTES_PER_S,
            Query(f"quantile by (op) (0.5, {bandwidth})", "{{op}}"),
            Query(f"min by (op) ({bandwidth})", "{{op}}, slowest"),
            width=THIRD,
        ),
        lines(
            "Overlap",
            "Share of the communication that was hidden behind compute: all ranks together, and the median rank. "
            "Below the dashed line communication counts as serialized.",
            RATIO,
            Query(recorded("run:device_overlap:ratio_rate10m", OF_RUN), "of all"),
            Query(f"quantile(0.5, {series('overlap_ratio', OF_RUN)})", "in the middle"),
            colors=too_low(red=thresholds.OVERLAP, yellow=thresholds.OVERLAP),
            most=1,
        ),
        lines(
            "Exposed communication",
            "Share of the profiler windows in which only communication ran, waiting included: all ranks together, "
            "and the median rank.",
            RATIO,
            Query(recorded("run:device_exposed_communication:ratio_rate10m", OF_RUN), "of all"),
            Query(f"quantile(0.5, {series('exposed_communication_ratio', OF_RUN)})", "in the middle"),
            colors=too_high(yellow=thresholds.EXPOSED),
        ),
        lines(
            "Bubble of the pipeline",
            "Share of the pipeline's time in which the ranks of a stage wait for sends and receives; and that of the "
            "schedule itself, with equal stages. No data: no pipeline is announced (docs/pipelines.md).",
            RATIO,
            Query(series("pipeline_bubble_ratio", OF_RUN), "stage {{stage}}"),
            Query(series("pipeline_ideal_bubble_ratio", OF_RUN), "{{schedule}}, with equal stages"),
            most=1,
        ),
        lines(
            "Own time of the stages",
            "Own time per step of the ranks of a stage: the longest sets the pace. Beside it the step at best with an "
            "even split; without data where no stage sets the pace.",
            SECONDS,
            Query(series("pipeline_stage_own_seconds", OF_RUN), "stage {{stage}}"),
            Query(series("pipeline_even_step_seconds", OF_RUN), "step with an even split"),
        ),
        lines(
            "Slowest layers",
            "Forward and backward of the repeated blocks of the model, per call: the eight that take longest, on the "
            "slowest rank and on the median rank. No data: no blocks are known (docs/layers.md).",
            SECONDS,
            Query(f"topk(8, {series('layer_slowest_seconds', OF_RUN)})", "layer {{layer}}, slowest rank"),
            Query(f"topk(8, sum by (layer) ({series('layer_seconds', OF_RUN)}))", "layer {{layer}}, median"),
        ),
        lines(
            "Layers that stand out",
            "Time of a block on one rank over that of its peers. No data: none stands out.",
            TIMES,
            Query(series("slow_layer_ratio", OF_RUN), "rank {{rank}}, layer {{layer}}"),
        ),
        lines(
            "Memory that layers keep",
            "GPU memory that a forward of a block keeps for the backward, per call: the eight with most.",
            BYTES,
            Query(f"topk(8, {series('layer_activation_bytes', OF_RUN)})", "layer {{layer}}"),
        ),
        lines(
            "Load of the experts",
            "Largest load of a rank over the mean of its group: summed over the last 64 known steps, and of each step. "
            "Dead ranks: no token came to them. No data: no all-to-all differs between ranks (docs/experts.md).",
            TIMES,
            Query(series("expert_load_ratio", OF_RUN), "{{group}}"),
            Query(series("expert_load_step_ratio", OF_RUN), "{{group}}, of each step"),
            Query(series("expert_dead_ranks", OF_RUN), "dead ranks"),
        ),
    ]


def _gpus() -> list[Placed]:
    return [
        lines(
            "Utilization",
            "Share of the last sample period in which a kernel ran, waiting kernels of NCCL included.",
            RATIO,
            Query(recorded("run:gpu_utilization_ratio:avg", OF_RUN), "mean"),
            Query(f"min({recorded('node:gpu_utilization_ratio:avg', OF_RUN)})", "lowest node"),
            colors=too_low(red=thresholds.UTILIZATION_LOW, yellow=thresholds.UTILIZATION_LOW),
            most=1,
            width=THIRD,
        ),
        lines(
            "Memory in use",
            "Memory of the five fullest GPUs at each time.",
            RATIO,
            Query(recorded("run:gpu_memory:ratio_top5", OF_RUN), "rank {{rank}}"),
            colors=too_high(red=thresholds.MEMORY_NEARLY_FULL),
            most=1,
            width=THIRD,
        ),
        lines(
            "SM clock",
            "SM clock of the median GPU and of the slowest one.",
            HERTZ,
            Query(recorded("run:gpu_sm_clock_hertz:median", OF_RUN), "in the middle"),
            Query(f"min({recorded('node:gpu_sm_clock_hertz:min', OF_RUN)})", "slowest"),
            width=THIRD,
        ),
    ]


def _gpu_signs() -> list[Placed]:
    return [
        number(
            "Throttled GPUs",
            "GPUs whose clocks are limited by heat, power or a fault.",
            NUMBER,
            f"sum({recorded('node:gpu_throttled:sum', OF_RUN)})",
            colors=too_high(yellow=1),
        ),
        number(
            "Hottest GPU",
            "Temperature of the hottest GPU.",
            CELSIUS,
            f"max({recorded('node:gpu_temperature_celsius:max', OF_RUN)})",
            decimals=0,
        ),
        number(
            "Power", "Power draw of all GPUs together.", WATTS, f"sum({recorded('node:gpu_power_watts:sum', OF_RUN)})"
        ),
        number(
            "Energy",
            "Of the boards of all GPUs since the ranks began; docs/energy.md.",
            JOULES,
            f"sum({series('run_energy_joules_total', OF_RUN)})",
        ),
        number(
            "Xid errors",
            "Xid errors since the agents started to watch their GPUs.",
            NUMBER,
            f"sum({series('gpu_xid_errors_total', OF_RUN)})",
            colors=too_high(red=1),
        ),
        number(
            "Uncorrected ECC errors",
            "Uncorrected errors since the drivers of the GPUs were loaded.",
            NUMBER,
            f"sum({series('gpu_ecc_errors_total', UNCORRECTED)})",
            colors=too_high(red=1),
        ),
        number(
            "Allocator retries",
            "Times torch emptied its cache because an allocation failed, in 15 minutes, on the worst rank.",
            NUMBER,
            f"max(increase({series('torch_memory_retries_total', OF_RUN)}[15m]))",
            colors=too_high(yellow=thresholds.RETRIES),
            decimals=0,
            width=SIXTH,
        ),
    ]
