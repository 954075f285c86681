"""The part of rankscope that rides inside a training process. Its calls are all optional, none ever raises:

    import rankscope.agent as rankscope

    rankscope.start()                      # not needed under `-m rankscope.agent` or RANKSCOPE=1
    rankscope.batch(samples=32)            # what a batch holds; without it what data loaders return is looked at
    with rankscope.phase("checkpoint"):    # time inside is charged to this phase of the step
        save(model)
    with rankscope.evaluation():           # time inside belongs to no step; without it evaluations are found
        evaluate(model)
    rankscope.step()                       # the step ends here; without it steps are found by themselves
    rankscope.throughput()                 # how fast this rank trains: steps, samples, tokens per second
    rankscope.stop()                       # not needed: the end of the process does the same

`rankscope.agent.integrations` has callbacks for PyTorch Lightning and Transformers that make these calls.
Nothing here imports torch until `start()` is called.
"""

TYPE_CHECKING = False
"""As in `typing`, which `python -m rankscope.agent` would import from the working directory if it found one there."""

if TYPE_CHECKING:
    from types import TracebackType

    from rankscope.agent.steps.throughput import Throughput

__all__ = ["batch", "evaluation", "phase", "start", "step", "stop", "throughput"]


def start() -> bool:
    """Begin to measure this process. Returns whether it is being measured; a second call changes nothing.

    Where no launcher has set RANK, call it after init_process_group, which then says what this process is. Before, it
    is taken for a job of one process; what the group says later is told, but too late.

    Whatever keeps it from working is said once on stderr, and training goes on as if the agent were not there. With
    RANKSCOPE_STRICT=1 a mistake in the settings ends the process instead (SystemExit).
    """
    from rankscope.agent import launch  # noqa: PLC0415 - `python -m rankscope.agent` must stay cheap until torch is there

    return launch.start()


def step(*, samples: int | None = None, tokens: int | None = None) -> None:
    """End the current step here. From the first call on, steps end at these calls only.

    `samples` and `tokens` are what the whole step held on this rank; None leaves it to `batch()`, or to what is seen.
    """
    from rankscope.agent import launch  # noqa: PLC0415

    if launch.session is not None:
        launch.session.end_step(samples, tokens)


def batch(*, samples: int | None = None, tokens: int | None = None) -> None:
    """Say what one batch of this rank holds. Several in one step (gradient accumulation) add up.

    From the first call with `samples` on, only what these calls say counts as samples, so for `tokens`. To be called
    once for each batch, between its fetch and its backward. With gradients off, in an evaluation, it counts nothing.
    """
    from rankscope.agent import launch  # noqa: PLC0415

    if launch.session is not None:
        launch.session.set_batch_size(samples, tokens)


def throughput(last_steps: int | None = None) -> "Throughput | None":
    """How fast this rank has trained, over all its steps but the first `warmup_steps`, or over so many last ones.

    None before there is such a step, and when this process is not measured. To be called by the training thread.
    """
    from rankscope.agent import launch  # noqa: PLC0415

    return None if launch.session is None else launch.session.find_throughput(last_steps)


def stop() -> None:
    """Deliver what is left and stop measuring."""
    from rankscope.agent import launch  # noqa: PLC0415

    if launch.session is not None:
        launch.session.stop("stopped")


class phase:  # noqa: N801 - a context manager used like a keyword, as contextlib.suppress is
    """`with phase("checkpoint"):` charges the time inside to that phase of the current step.

    The names of `rankscope.measure.records.PHASES` add to the phase found by itself; any other name makes a phase of
    its own, at most `phases_max` of them per process.
    """

    def __init__(self, name: str) -> None:
        self._name = str(name)

    def __enter__(self) -> "phase":  # noqa: PYI034 - typing.Self is Python 3.11
        """Begin the phase."""
        from rankscope.agent import launch  # noqa: PLC0415

        if launch.session is not None:
            launch.session.begin_phase(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        """End the phase; an exception inside passes through."""
        from rankscope.agent import launch  # noqa: PLC0415

        if launch.session is not None:
            launch.session.end_phase()


class evaluation:  # noqa: N801 - as phase
    """`with evaluation():` keeps the time inside out of the steps: nothing in it is a batch, a backward or a step.

    Where it begins amid a step, after a batch was fetched for it, it is the phase `evaluation` of that step instead.
    """

    def __enter__(self) -> "evaluation":  # noqa: PYI034 - as phase
        """Begin the evaluation."""
        from rankscope.agent import launch  # noqa: PLC0415

        if launch.session is not None:
            launch.session.begin_evaluation()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        """End the evaluation; an exception inside passes through."""
        from rankscope.agent import launch  # noqa: PLC0415

        if launch.session is not None:
            launch.session.end_evaluation()
