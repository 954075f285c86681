"""Judge how work is spread: nn.DataParallel over devices of one process, collectives over gloo beside devices."""

from rankscope.collector.detect.run_rules.thresholds import EXPOSED_RATIO_MIN, percent
from rankscope.collector.traces.advice_rules import no_device, on_rank, ranks_of, severity_of, window_of
from rankscope.collector.traces.report import Abstention, Advice, RankReport
from rankscope.measure.units import format_bytes

DEVICES_MIN = 2
"""Devices to which one forward launches work. nn.DataParallel over one device calls the module as it is."""
GLOO_STEP_BYTES_MIN = 1 << 20
"""Bytes of a step: the first bucket of DDP's gradients has 1 MiB by default, messages of control and gathered objects
have some kB."""


def judge_data_parallel(report: RankReport) -> Advice | Abstention | None:
    """Judge whether one process drives several devices by nn.DataParallel, known by the range that torch opens around
    its forward. Pipelines and split models in one process have no such range.
    """
    key, signs = "data_parallel", report.signs
    if signs.data_parallel_devices is None:
        return no_device(key)
    if signs.data_parallel_devices < DEVICES_MIN:
        return None
    return Advice(
        key=key,
        severity="hint",
        ranks=ranks_of(report),
        sentence=f"{on_rank(report)}one process drives {signs.data_parallel_devices} devices by nn.DataParallel.",
        action=(
            "Use DistributedDataParallel with a process for each device. DataParallel copies the model to all devices "
            "in every forward and gathers the outputs on one of them; its threads share Python's lock (GIL)."
        ),
        evidence={
            "device_count": signs.data_parallel_devices,
            "device_count_min": DEVICES_MIN,
            "forward_count": signs.data_parallel_count,
        },
    )


def judge_gloo(report: RankReport) -> Advice | Abstention | None:
    """Judge whether collectives over gloo keep the devices waiting. Small ones are control, however long they last."""
    key, signs = "gloo_beside_devices", report.signs
    if signs.gloo_count is None:
        return no_device(key)
    window_ns = window_of(report)
    if not signs.gloo_count or not window_ns:
        return None
    ratio = (signs.gloo_exposed_ns or 0) / window_ns
    if ratio < EXPOSED_RATIO_MIN:
        return None
    if signs.gloo_bytes is None and not signs.has_ddp_over_gloo:
        return Abstention(key=key, reason="the sizes of collectives over gloo are not recorded (record_shapes=True)")
    step_bytes = signs.gloo_bytes // max(1, signs.step_count) if signs.gloo_bytes is not None else None
    if (step_bytes or 0) < GLOO_STEP_BYTES_MIN and not signs.has_ddp_over_gloo:
        return None
    per_step = "" if step_bytes is None or not signs.step_count else f", {format_bytes(step_bytes)} per step"
    what = "DistributedDataParallel's collectives" if signs.has_ddp_over_gloo else "collectives"
    return Advice(
        key=key,
        severity=severity_of(ratio),
        ranks=ranks_of(report),
        sentence=(
            f"{on_rank(report)}no device works while {what} run over gloo{per_step}: {percent(ratio)} of the time, "
            "waits for other ranks included."
        ),
        action=(
            "Exchange tensors on devices by the devices' own backend, not through the memory of the host: "
            'init_process_group("nccl") on NVIDIA and AMD, or "cpu:gloo,cuda:nccl" where tensors of the host are '
            "exchanged, too."
        ),
        evidence={
            "gloo_exposed_ratio": ratio,
            "gloo_exposed_ratio_min": EXPOSED_RATIO_MIN,
            "gloo_step_bytes": step_bytes,
            "gloo_step_bytes_min": GLOO_STEP_BYTES_MIN,
            "gloo_count": signs.gloo_count,
            "ddp_over_gloo": int(signs.has_ddp_over_gloo or 0),
        },
    )
