"""Define faults that can be injected, with their truth: which ranks, since which step, and the expected cause."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tests.simulation.engine import Conditions, Floats
from tests.simulation.program import HOST, KERNEL, READ
from tests.simulation.topology import Ints


class Effect(NamedTuple):
    """Effect of a cause: the kind of work (or the transfer) that it slows, and the signs that it shows. `found_as` is
    the cause that a finding is to name, where that has another name.
    """

    kind: str
    pauses_collector: bool = False
    more_operators: bool = False
    throttle_reason: str | None = None
    slows_clock: bool = False
    xid: int | None = None
    retries: bool = False
    narrows_pcie: bool = False
    queues_for_cpu: bool = False
    port_errors: bool = False
    burns_cpu: bool = True
    waits_for_device: bool = False
    waits_for_core: bool = False
    other_threads: bool = False
    copies_slowly: bool = False
    found_as: str | None = None


TRANSFER = "transfer"

EFFECTS: dict[str, Effect] = {
    "data_loading": Effect(READ, burns_cpu=False),
    "host_cpu": Effect(HOST),
    "garbage_collection": Effect(HOST, pauses_collector=True),
    "gpu_thermal_throttle": Effect(KERNEL, throttle_reason="sw_thermal_slowdown", slows_clock=True),
    "gpu_power_cap": Effect(KERNEL, throttle_reason="sw_power_cap", slows_clock=True),
    "gpu_slow_clock": Effect(KERNEL, slows_clock=True),
    "gpu_compute": Effect(KERNEL),
    "gpu_fault": Effect(KERNEL, xid=63),
    "more_work": Effect(KERNEL, more_operators=True),
    "memory_pressure": Effect(HOST, retries=True),
    "slow_link": Effect(TRANSFER, port_errors=True),
    "pcie_downgrade": Effect(HOST, narrows_pcie=True),
    "slow_copies": Effect(HOST, copies_slowly=True, burns_cpu=False),
    "cpu_pressure": Effect(HOST, queues_for_cpu=True, burns_cpu=False),
    "host_device_sync": Effect(HOST, waits_for_device=True),
    "unseen_wait": Effect(HOST, burns_cpu=False),
    "core_wait": Effect(HOST, burns_cpu=False, waits_for_core=True, found_as="cpu_pressure"),
    "other_threads": Effect(HOST, burns_cpu=False, other_threads=True, found_as="host_cpu"),
}
"""By cause of docs/definitions.md section 5. Short CPUs show on the machine of a rank with local rank 0. After a
call in which the host waits for its device, the device is idle until the host has launched more: work of the host. A
training thread may wait for a core, or for other threads of its process, which hold Python's interpreter lock."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Fault that makes some ranks `ratio` times as slow from step `begin` on, up to `end`.

    `every`, `bout`: only in the first `bout` of every `every` steps; `drift_steps`: the slowness grows to its full size
    over this many steps.
    """

    cause: str
    ranks: tuple[int, ...]
    ratio: float
    begin: int
    end: int | None = None
    every: int = 1
    bout: int = 1
    drift_steps: int = 0

    def __post_init__(self) -> None:
        """Refuse what would be no fault."""
        if self.cause not in EFFECTS:
            raise ValueError(f"cause is {self.cause!r}; known are {', '.join(EFFECTS)}")
        if not self.ranks:
            raise ValueError("a fault needs at least one rank")
        if self.ratio <= 1:
            raise ValueError(f"ratio is {self.ratio:g}; a fault makes ranks slower: more than 1 times")
        if not 1 <= self.bout <= self.every:
            raise ValueError(f"bout is {self.bout} of every {self.every} steps; from 1 up to all of them")
        if self.begin < 0 or self.drift_steps < 0:
            raise ValueError(f"begin is {self.begin} and drift_steps {self.drift_steps}; steps count from 0")

    @property
    def pattern(self) -> str:
        """Return its pattern, in the words of a finding."""
        if self.drift_steps:
            return "drifting"
        return "intermittent" if self.bout < self.every else "steady"

    @property
    def effect(self) -> Effect:
        """Return the effect of its cause."""
        return EFFECTS[self.cause]

    @property
    def expected_cause(self) -> str:
        """Return the cause that a finding about it is to name."""
        return self.effect.found_as or self.cause

    def lasts_at(self, step: int) -> bool:
        """Return whether it is active after `step` steps, an intermittent one also between its slow steps."""
        return self.begin < step and (self.end is None or step <= self.end)

    def strength(self, step: int) -> float:
        """Return the share by which a step of these ranks is longer: 0.3 for one that is 1.3 times as long."""
        since = step - self.begin
        if since < 0 or (self.end is not None and step >= self.end) or since % self.every >= self.bout:
            return 0.0
        grown = min(1.0, (since + 1) / self.drift_steps) if self.drift_steps else 1.0
        return (self.ratio - 1) * grown


class Injection:
    """Puts faults into the conditions of a step. `base_ns[kind]` is each rank's work of a kind in a healthy step."""

    def __init__(self, faults: Sequence[Fault], base_ns: dict[str, Floats], transfer_ns: float) -> None:
        self._faults = tuple(faults)
        self._base_ns = base_ns
        self._whole_ns = np.sum(list(base_ns.values()), axis=0)
        self._transfer_ns = transfer_ns

    def apply(self, conditions: Conditions, step: int) -> Conditions:
        """Return the conditions with the faults in them."""
        work = {kind: factor.copy() for kind, factor in conditions.work.items()}
        transfer = conditions.transfer.copy()
        for fault in self._faults:
            extra_ns = self.extra_ns(fault, step)
            if fault.effect.kind == TRANSFER:
                transfer[list(fault.ranks)] += extra_ns[list(fault.ranks)] / self._transfer_ns
            else:
                work[fault.effect.kind] += extra_ns / self._base_ns[fault.effect.kind]
        return replace(conditions, work=work, transfer=transfer)

    def extra_ns(self, fault: Fault, step: int) -> Floats:
        """Return the time that the fault costs each rank in a step."""
        ranks: Ints = np.array(fault.ranks)
        extra = np.zeros(len(self._whole_ns))
        extra[ranks] = fault.strength(step) * self._whole_ns[ranks]
        return extra
