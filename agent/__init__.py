"""The agent, and the calls for a training script, which finds them by `import rankscope`.

Nothing here imports torch until `start()` is called.
"""

TYPE_CHECKING = False
"""As in `typing`, which is not imported: `python -m rankscope.agent` could find a `typing.py` in the working directory.
"""

if TYPE_CHECKING:
    from types import TracebackType

    from rankscope.agent.part_profile import profile
    from rankscope.agent.profiled_model import profile_model
    from rankscope.agent.run_report import RunReport
    from rankscope.agent.scopes import scope
    from rankscope.agent.steps.throughput import Throughput

__all__ = [
    "batch", "capture", "evaluation", "model_flops", "phase", "profile", "profile_model", "scope", "start", "status",
    "step", "stop", "throughput",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return all names, also those that are imported when they are first used."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Return `profile`, `profile_model` and `scope` when they are first used: only who uses one pays for its import."""
    if name == "scope":
        from rankscope.agent.scopes import scope as marked  # noqa: PLC0415

        globals().update(scope=marked)
        return marked
    if name not in {"profile", "profile_model"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rankscope.agent.part_profile import profile as part  # noqa: PLC0415
    from rankscope.agent.profiled_model import profile_model as model  # noqa: PLC0415

    globals().update(profile=part, profile_model=model)
    found: object = globals()[name]
    return found


class Started:
    """What `start()` returns: true where the process is measured. As a context manager it ends that."""

    def __init__(self, *, is_measured: bool) -> None:
        self._is_measured = is_measured

    def __bool__(self) -> bool:
        """Return whether the process is measured."""
        return self._is_measured

    def __enter__(self) -> "Started":  # noqa: PYI034 - typing.Self is Python 3.11
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        """Stop measuring; an exception inside passes through."""
        stop()


def start() -> Started:
    """Start to measure this process. What it returns is true where the process is measured; a second call changes
    nothing. `with rankscope.start():` also stops at the end of the block.

    Where no launcher has set RANK, call it after init_process_group, which determines the rank. Called before, it
    measures the process as rank 0 of 1, and only warns when the group turns out to be larger.

    A problem is logged once on stderr, and training continues without the agent. With RANKSCOPE_STRICT=1 a mistake in
    the settings ends the process (SystemExit).
    """
    from rankscope.agent import launch  # noqa: PLC0415 - `python -m rankscope.agent` must stay cheap until torch is there

    return Started(is_measured=launch.start())


def step(*, samples: int | None = None, tokens: int | None = None) -> None:
    """End the current step here. From the first call on, steps end at these calls only.

    `samples` and `tokens` are the amounts of the whole step on this rank; None: as set by `batch()`, or as detected.
    """
    from rankscope.agent import launch  # noqa: PLC0415

    if launch.session is not None:
        launch.session.calls.end_step(samples, tokens)


def batch(*, samples: int | None = None, tokens: int | None = None) -> None:
    """Set the size of one batch of this rank. Several in one step (gradient accumulation) add up.

    From the first call with `samples` on, only these calls count samples; the same holds for `tokens`. Call it once for
    each batch, between its fetch and its backward. With gradients off, in an evaluation, it counts nothing.
    """
    from rankscope.agent import launch  # noqa: PLC0415

    if launch.session is not None:
        launch.session.calls.set_batch_size(samples, tokens)


def model_flops(*, per_step: float | None = None, per_token: float | None = None, dtype: object = None) -> None:
    """Declare the model FLOPs of this rank for each step, or for each token, from the open step on: its MFU follows.

    `per_step` is what this rank's share of the model needs for one whole step (of the optimizer, all its micro-batches
    together), forward and backward, in FLOPs: 2 for a multiply-accumulate, without recomputation. With data parallel
    training that is the model's FLOPs for the batch of this rank; of a model that is split over ranks, the part that
    this one computes. `per_token` is multiplied by the tokens of the step (`batch()`); a step without a known number
    of them has no FLOPs. Both are above 0 and at most 1e24. Without either, nothing is declared any more.

    `dtype` is the type of the products' numbers, `torch.bfloat16` or `"bf16"`: the device's peak for it counts. None:
    the type of most FLOPs that were measured, before that bf16 (fp16 for a GPU without bf16); `"tf32"` is float32 on
    tensor cores.

    A declaration takes precedence over measured FLOPs, and may come before the agent knows its rank. It never raises:
    a value that cannot be used changes nothing and is logged once.
    """
    from rankscope.agent import launch  # noqa: PLC0415

    launch.declare_flops(per_step, per_token, dtype)


def throughput(last_steps: int | None = None) -> "Throughput | None":
    """Return the throughput of this rank over its steps after its first four, or over its `last_steps`.

    None before there is such a step, and when this process is not measured. Call it on the training thread.
    """
    from rankscope.agent import launch  # noqa: PLC0415

    return None if launch.session is None else launch.session.calls.find_throughput(last_steps)


def status() -> "RunReport":
    """Return on rank 0 what the collector has found about the run so far, as a dict, from its last summary.

    The collector sends one about every 10 s. This reads the last one, in 10 us, with eight findings in 150 us, on any
    thread, and waits for nothing; `age_s` says how old it is. Ratios are `slowdown_ratio` (from 1), `goodput_ratio`,
    `mfu`, `exposed_communication_ratio` and `data_wait_ratio` (0 to 1); `findings` is a list. What is not known is
    None, and `absent` says why under its name: so is everything on other ranks, without a collector, and after 60 s
    without a summary.
    """
    from rankscope.agent import launch  # noqa: PLC0415

    if launch.session is not None:
        return launch.session.calls.read_report()
    from rankscope.agent.run_report import NOT_MEASURED, build_report  # noqa: PLC0415

    return build_report("", None, NOT_MEASURED, 0)


def capture(steps: int = 3) -> bool:
    """Record a trace of the next 1 to 100 steps of this rank into `capture_folder`. Return whether that was accepted.

    False without a folder, while another capture is on or pending, and where this process is not measured. Whether it
    is taken is decided at the begin of the next step; a line on stderr says why it was not (docs/captures.md). Ranks
    that are to be compared must call it in the same step. Call it on the training thread.
    """
    from rankscope.agent import launch  # noqa: PLC0415

    return False if launch.session is None else launch.session.calls.capture(steps)


def stop() -> None:
    """Deliver the remaining reports and stop measuring."""
    from rankscope.agent import launch  # noqa: PLC0415

    if launch.session is not None:
        launch.session.stop("stopped")


def _to_name(name: object) -> str:
    """Return the name of a phase, whatever the script gives: no call raises."""
    try:
        return str(name)
    except Exception:  # noqa: BLE001 - objects of the user may fail in any way
        return type(name).__name__


class phase:  # noqa: N801 - a context manager used like a keyword, as contextlib.suppress is
    """Context manager that charges the time inside to a phase of the current step: `with phase("checkpoint"):`.

    The names of `rankscope.measure.records.PHASES` add to the detected phase; any other name makes a phase of its own,
    at most 16 of them per process.
    """

    def __init__(self, name: str) -> None:
        self._name = _to_name(name)

    def __enter__(self) -> "phase":  # noqa: PYI034 - typing.Self is Python 3.11
        """Begin the phase."""
        from rankscope.agent import launch  # noqa: PLC0415

        if launch.session is not None:
            launch.session.calls.begin_phase(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        """End the phase; an exception inside passes through."""
        from rankscope.agent import launch  # noqa: PLC0415

        if launch.session is not None:
            launch.session.calls.end_phase()


class evaluation:  # noqa: N801 - as phase
    """Context manager that keeps the time inside out of the steps: nothing in it is a batch, a backward or a step.

    If it begins within a step, after a batch was fetched for it, it is the phase `evaluation` of that step instead.
    """

    def __enter__(self) -> "evaluation":  # noqa: PYI034 - as phase
        """Begin the evaluation."""
        from rankscope.agent import launch  # noqa: PLC0415

        if launch.session is not None:
            launch.session.calls.begin_evaluation()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        """End the evaluation; an exception inside passes through."""
        from rankscope.agent import launch  # noqa: PLC0415

        if launch.session is not None:
            launch.session.calls.end_evaluation()
