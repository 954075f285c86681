"""The part of rankscope that rides inside a training process. Four calls, all optional, none ever raises:

    import rankscope.agent as rankscope

    rankscope.start()                      # not needed under `-m rankscope.agent` or RANKSCOPE=1
    with rankscope.phase("checkpoint"):    # time inside is charged to this phase of the step
        save(model)
    rankscope.step()                       # the step ends here; without it steps are found by themselves
    rankscope.stop()                       # not needed: the end of the process does the same

Nothing here imports torch until `start()` is called.
"""

from types import TracebackType

__all__ = ["phase", "start", "step", "stop"]


def start() -> bool:
    """Begin to measure this process. Returns whether it is being measured; a second call changes nothing.

    Whatever keeps it from working is said once on stderr, and training goes on as if the agent were not there.
    """
    from rankscope.agent import launch  # noqa: PLC0415 - `python -m rankscope.agent` must stay cheap until torch is there

    return launch.start_session()


def step() -> None:
    """End the current step here. From the first call on, steps end at these calls only."""
    from rankscope.agent import launch  # noqa: PLC0415

    if launch.session is not None:
        launch.session.end_step()


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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the phase; an exception inside passes through."""
        from rankscope.agent import launch  # noqa: PLC0415

        if launch.session is not None:
            launch.session.end_phase()
