"""Build what the live page shows at one moment: all runs, and one of them without its ranks. Pure."""

import msgspec

from rankscope.collector.captures.capture import Capture
from rankscope.collector.captures.incident_views import NO_LINKS, CaptureLinks, FindingView
from rankscope.collector.detect.finding import place_run
from rankscope.collector.publish.api.live_captures import LiveCapture, build_live_captures
from rankscope.collector.publish.routes import NO_SETTINGS, ListedRun, PageSettings, summarize_run
from rankscope.collector.runs.checkpoints import NO_CHECKPOINTS, Checkpoints
from rankscope.collector.runs.compilations import describe_compilations
from rankscope.collector.runs.heat_map import HeatMapSteps
from rankscope.collector.runs.live_settings import SettingChange, describe_changed
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.run_end_words import find_failure, write_end
from rankscope.collector.runs.run_energy import describe_run_energy
from rankscope.collector.runs.run_flops import describe_run_flops, find_run_flops
from rankscope.collector.runs.run_ratios import RunRatios, describe_run_ratios
from rankscope.collector.runs.run_status import describe_ranks_without_peers, find_energy
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.collector.runs.window_effect import RunWindows, read_windows
from rankscope.collector.steps.expert_loads import describe_experts
from rankscope.collector.steps.layer_times import describe_layers
from rankscope.collector.steps.pipeline_stages import describe_pipeline


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run at the time of the snapshot. `run` is its name, `run_id` is unique. `latest_step` is the last step that
    detection has read, `findings_past` the number of findings that have ended. For a run that is over `end_in_words`
    states how it ended and which rank failed first, `end_suggestion` what to do about that; empty where there is
    nothing to do. `window_effect` says what full windows of GPUs have done to the steps,
    `timing_effect` what torch's timing of collectives has; None: nothing was measured.
    `without_peers_said` says which ranks are judged by their own past only; None: none. `captures` are the newest ones
    of the run that the collector has ordered, at most LIVE_CAPTURES_MAX of the `captures_kept`. `mfu_ratio` and
    `hfu_ratio` are means over the live ranks, in the last minute of their steps; `flops_said` is the same as text, or
    why there is no MFU, empty where no rank has FLOPs. `hfu_is_upper_bound`: HFU is at most what it says.
    `injected_faults` says what ranks do to themselves on purpose; empty: nothing. `checkpoints` are those that they
    have marked. `compilation_said` is what torch.compile has cost, as text; empty: nothing, or not known.
    `settings_said` says which settings are changed while the run goes on, by whom and until when; empty: none.
    `setting_changes` are all changes of its settings that are kept, oldest first. The
    other fields are as in RunSnapshot and RunSummary; None: not known.
    """

    run: str
    run_id: str
    world_size: int
    restart_count: int
    ranks_known: int
    ranks_up: int
    latest_step: int | None
    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    abstained: str | None
    run_slowdown_ratio: float | None
    goodput_ratio: float | None
    open_findings: tuple[FindingView, ...]
    findings_past: int
    end: RunEnd | None = None
    end_in_words: str = ""
    end_suggestion: str = ""
    window_ratios: RunRatios = RunRatios()
    window_ratios_said: str = ""
    window_effect: str | None = None
    timing_effect: str | None = None
    without_peers_said: str | None = None
    captures: tuple[LiveCapture, ...] = ()
    captures_kept: int = 0
    mfu_ratio: float | None = None
    hfu_ratio: float | None = None
    flops_said: str = ""
    injected_faults: str = ""
    checkpoints: Checkpoints = NO_CHECKPOINTS
    compilation_said: str = ""
    hfu_is_upper_bound: bool = False
    energy_said: str = ""
    settings_said: str = ""
    pipeline_said: str = ""
    layers_said: str = ""
    experts_said: str = ""
    setting_changes: tuple[SettingChange, ...] = ()


class LiveSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All runs at one moment, and the one that was asked for. `takes_orders`: a capture can be ordered with the control
    token; False: this collector has none, and refuses every order. `settings` are those that the page shows.
    """

    wall_s: float
    version: str
    runs: tuple[ListedRun, ...]
    run: LiveRun | None
    takes_orders: bool = False
    settings: PageSettings = NO_SETTINGS


def build_live_snapshot(
    snapshot: Snapshot,
    run: str | None,
    captures: tuple[Capture, ...] = (),
    links: CaptureLinks = NO_LINKS,
    *,
    takes_orders: bool = False,
) -> LiveSnapshot:
    """Return all runs, those first that need somebody most, and one of them in full; None for an unknown one.
    `captures` are those of all runs.
    """
    runs = sorted(snapshot.runs, key=lambda one: place_run(one.open_findings, is_over=one.end is not None))
    summaries = tuple(map(summarize_run, runs))
    asked = None if run is None else snapshot.find_run(run)
    found = (
        _build_run(
            one,
            summary,
            snapshot.steps.get(one.run_id),
            snapshot.compute_once(one, read_windows),
            captures=captures,
            links=links,
        )
        for one, summary in zip(runs, summaries, strict=True)
        if one is asked
    )
    return LiveSnapshot(
        wall_s=snapshot.wall_s, version=snapshot.version, runs=summaries, run=next(found, None),
        takes_orders=takes_orders,
    )  # fmt: skip


def _build_run(
    run: RunSnapshot,
    summary: ListedRun,
    steps: HeatMapSteps | None,
    windows: RunWindows,
    *,
    captures: tuple[Capture, ...],
    links: CaptureLinks,
) -> LiveRun:
    flops = find_run_flops([rank for rank in run.ranks if rank.ended is None and not rank.awaited])
    failure = find_failure(run.end)
    newest, captures_kept = build_live_captures(captures, run.run_id)
    return LiveRun(
        run=run.run,
        run_id=run.run_id,
        world_size=run.world_size,
        restart_count=run.restart_count,
        ranks_known=len(run.ranks),
        ranks_up=summary.ranks_up,
        latest_step=None if steps is None else steps.latest_step,
        steps_per_s=summary.steps_per_s,
        samples_per_s=summary.samples_per_s,
        tokens_per_s=summary.tokens_per_s,
        abstained=run.abstained,
        run_slowdown_ratio=run.run_slowdown_ratio,
        goodput_ratio=run.goodput.goodput_ratio,
        open_findings=links.of_findings(run, run.open_findings),
        findings_past=len(run.findings) - len(run.open_findings),
        end=run.end,
        end_in_words="" if run.end is None else write_end(run.end),
        end_suggestion="" if failure is None else failure.suggestion,
        window_ratios=windows.ratios,
        window_ratios_said=describe_run_ratios(windows.ratios),
        window_effect=windows.effect,
        timing_effect=windows.timing,
        without_peers_said=describe_ranks_without_peers(run),
        captures=newest,
        captures_kept=captures_kept,
        mfu_ratio=flops.mfu,
        hfu_ratio=flops.hfu,
        hfu_is_upper_bound=flops.hfu_is_upper_bound,
        flops_said=describe_run_flops(flops),
        injected_faults=run.injected_faults,
        checkpoints=run.checkpoints,
        compilation_said="; ".join(describe_compilations(run.compilations)),
        energy_said=describe_run_energy(find_energy(run)),
        settings_said="; ".join(describe_changed(run.settings, run.settings_taken)),
        pipeline_said="; ".join(describe_pipeline(run.pipeline)),
        layers_said="; ".join(describe_layers(run.layers)),
        experts_said="; ".join(describe_experts(run.experts)),
        setting_changes=run.settings.past,
    )
