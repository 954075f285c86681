"""Assembles the agent of one rank, starts it, and stops it.

    training thread: hooks -> ring of step records; at boundaries profiler windows    training_thread.py
    agent thread:    rings + samplers -> reports, once every report_interval_s        agent_thread.py
    connect thread:  finds or starts the collector, then ends                         connect_thread.py

Nothing here raises into the script or waits for the network. The exit of the process waits at most `drain_s` for
acknowledgements; if no collector was ever reached it waits only for a connection begun less than a second ago.
"""

import atexit
import os
from collections.abc import Callable, Mapping
from typing import Final

from rankscope.agent.agent_thread import AgentThread
from rankscope.agent.config import AgentConfig
from rankscope.agent.connect_thread import ConnectThread
from rankscope.agent.guard import Guard, is_of_script
from rankscope.agent.identity import read_identity, read_script, reads_machine
from rankscope.agent.reporting.builder import ScriptEnd, build_hello
from rankscope.agent.sample.rank_samples import RankSamplers
from rankscope.agent.sample.torch_device import TrainingDevice
from rankscope.agent.shutdown.script_exit import ScriptExit
from rankscope.agent.shutdown.torch_threads import drain_gloo_threads
from rankscope.agent.steps.torch_hooks import torch_version
from rankscope.agent.training_thread import TrainingThread
from rankscope.agent.user_calls import UserCalls
from rankscope.measure.clock import SystemClock
from rankscope.measure.messages import Hello
from rankscope.measure.units import s_to_ns

STOP_TRIES: Final = 3
"""Attempts at each part of the end, where signal handlers of the script interrupt it."""


class Session:
    """The agent in one process, from start to stop. Create it with `Session.start`."""

    def __init__(self, config: AgentConfig, environment: Mapping[str, str]) -> None:
        self._config = config
        self._pid = os.getpid()
        self._clock = SystemClock()
        self.identity = read_identity(environment, config.run, config.node, with_user=config.report_user)
        self._guard = Guard(config.error_budget)
        device = TrainingDevice()
        is_reader = reads_machine(environment, self.identity.world_size)
        samples = RankSamplers(config, self._clock, self._guard, device, reads_machine=is_reader)
        fault = None
        if config.fault:
            from rankscope.agent.faults.injected_fault import make_fault  # noqa: PLC0415 - hardly any training has one

            fault = make_fault(config, self.identity.rank, self._guard, environment)
        self._fault = fault
        self._training = TrainingThread(
            config,
            self.identity,
            environment,
            self._guard,
            device,
            find_resident_bytes=samples.find_resident_bytes,
            on_step=samples.flops.add,
            fault=fault,
        )
        self._reporter = AgentThread(
            config,
            self.identity,
            self._guard,
            self._training,
            samples,
            clock=self._clock,
            make_hello=self._make_hello,
        )
        self._connecting = ConnectThread(config, self.identity, environment, self._guard, self._reporter.connect)
        self.script_exit = ScriptExit()
        self.calls = UserCalls(self._training, self._guard, samples.flops, self._reporter.outbox.read_report)

    @classmethod
    def start(cls, config: AgentConfig, environment: Mapping[str, str]) -> "Session | None":
        """Start to measure this process; return None when it is disabled. Raise if a part cannot be started."""
        if not config.enabled:
            return None
        session = cls(config, environment)
        try:
            session._begin()
        except BaseException:  # also what a signal handler of the script raises
            session._undo_begin()
            raise
        return session

    @property
    def is_running(self) -> bool:
        """Whether this process is measured."""
        return self._training.is_measured

    def stop(self, reason: str | None = None) -> None:
        """Deliver the remaining reports and stop. Do nothing in a forked child and the second time.

        A signal handler of the script may raise anywhere in here. Each part is tried once more then, so that no session
        is left on, which would crash the process; but Ctrl-C and SystemExit end a wait. What was raised goes to the
        script that has called this, with a `reason`; at the end of the process there is no script any more.
        """
        if not self.is_running or os.getpid() != self._pid:
            return
        finish(self._guard, self._training.stop)
        finish(self._guard, self.script_exit.note_uncaught)
        finish(self._guard, self._connecting.stop, is_wait=True)
        end = self.script_exit.end if reason is None else ScriptEnd(reason)
        finish(self._guard, lambda: self._reporter.stop(end))
        finish(self._guard, self._reporter.wait, is_wait=True)
        finish(self._guard, self._connecting.leave_torch, is_wait=True)
        finish(self._guard, drain_gloo_threads, is_wait=True)
        finish(self._guard, self._connecting.wait_for_embedded, is_wait=True)
        finish(self._guard, lambda: atexit.unregister(self.stop))
        finish(self._guard, self.script_exit.keep_status)
        if reason is not None:
            self._guard.raise_held()

    def _begin(self) -> None:
        self._training.start()
        atexit.register(self.stop)
        os.register_at_fork(before=self._training.sessions.close, after_in_child=self._training.stop_in_child)
        self._reporter.start()
        self._connecting.start()

    def _undo_begin(self) -> None:
        """Leave nothing of a begin that has failed: hooks would fill rings that nothing empties."""
        atexit.unregister(self.stop)
        self._training.stop()

    def _make_hello(self, first_sequence: int) -> Hello:
        return build_hello(
            self.identity,
            first_sequence,
            self._clock,
            report_interval_ns=s_to_ns(self._config.report_interval_s),
            torch_version=torch_version(),
            fault="" if self._fault is None else self._fault.spec.describe(),
            script=read_script(),
        )


def finish(guard: Guard, part: Callable[[], object], *, is_wait: bool = False) -> None:
    """Carry out a part of the end. Never raise."""
    for _ in range(STOP_TRIES):
        try:
            part()
        except BaseException as error:  # noqa: BLE001 - the process is ending; the rest is still done
            guard.record("stop", error)
            if not is_of_script(error) or (is_wait and not isinstance(error, Exception)):
                return
        else:
            return
