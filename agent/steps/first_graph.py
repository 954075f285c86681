"""Hold profiler sessions back until a run that will capture CUDA graphs has captured its first one.

A session loads the profiling library into the process, where it stays. One before the first capture of a graph has been
reported to leave the process without records of kernels for good, with torch 2.13 on CUDA 13.0 and on ROCm 7.2
(lightseekorg/tokenspeed #1348 and #1287). Whether a run will capture is read from what asks for it: torch.compile
called with CUDA graphs, or Megatron's arguments. Nothing is imported or changed for it.

A run may be wrong about itself (torch leaves graphs out for some models): after WAIT_STEPS steps and WAIT_NS sessions
begin as in any other run.
"""

import sys
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final, Protocol

from rankscope.agent.config import NO, YES
from rankscope.measure.units import NS_PER_S, ns_to_s

WAIT_STEPS: Final = 64
"""torch.compile captures in the second call of what it has compiled, Megatron after three steps by default."""
WAIT_NS: Final = 60 * NS_PER_S
"""So long at least: of short steps WAIT_STEPS are over while a job still warms up. Both must have passed."""
QUESTION_STEPS: Final = 8
"""Steps between two questions whether there is a graph."""
COMPILED: Final = "torch.compile was called with CUDA graphs"
MEGATRON: Final = "Megatron's arguments ask for CUDA graphs"
SET: Final = "cuda_graphs = yes"
AWAITS_GRAPH: Final = "awaits_graph"
"""What an agent reports in place of the state of its windows, in AgentCost."""


class Captures(Protocol):
    """The captures of CUDA graphs in this process, as `graph_captures.GraphCaptures`."""

    begun: int
    """How many have begun so far."""


def find_sign() -> str | None:
    """Return what shows that this process will capture CUDA graphs; None: nothing known does. A backend "cudagraphs"
    and inductor's option `triton.cudagraphs`, which the modes reduce-overhead and max-autotune set, are what torch's
    dynamo keeps of each call of torch.compile.
    """
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    # A copy: another thread may be compiling.
    backends = list(getattr(dynamo, "cached_backends", {}).values())
    if any(_captures_graphs(backend) for backend in backends):
        return COMPILED
    arguments = getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS", None)
    asked = [getattr(arguments, name, None) for name in ("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph")]
    return MEGATRON if any(value not in (None, False, "none") for value in asked) else None


def _captures_graphs(backend: Any) -> bool:
    name = getattr(backend, "compiler_name", None)
    if name == "inductor":
        triton = getattr(sys.modules.get("torch._inductor.config"), "triton", None)
        own = getattr(backend, "config", {})
        return bool(own.get("triton.cudagraphs", getattr(triton, "cudagraphs", False)))
    return bool(name == "cudagraphs")


class FirstGraph:
    """Whether sessions wait for the first graph of this process. Called on the training thread; `reason`, `state` and
    `describe` on any.

    `setting` is the setting `cuda_graphs`; without a device that CUPTI records, pass `NO`.
    """

    def __init__(
        self,
        setting: str,
        captures: Captures,
        *,
        find: Callable[[], str | None] = find_sign,
        read_clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._captures = captures
        self._find = find
        self._read_clock_ns = read_clock_ns
        self._sign = SET if setting == YES else None
        self._is_over = setting == NO
        self._since: tuple[int, int] | None = None
        self._given_up_after = 0, 0

    def waits(self, step: int) -> bool:
        """Return whether a session that would begin with this step has to wait."""
        if self._is_over:
            return False
        if self._captures.begun:
            self._is_over = True
            return False
        self._sign = self._sign or self._find()
        if self._sign is None:
            return False
        now_ns = self._read_clock_ns()
        if self._since is None:
            self._since = step, now_ns
        steps, waited_ns = step - self._since[0], now_ns - self._since[1]
        if steps >= WAIT_STEPS and waited_ns >= WAIT_NS:
            self._given_up_after = steps, waited_ns
            self._is_over = True
        return not self._is_over

    @property
    def is_waiting(self) -> bool:
        """Whether the last answer of `waits` was yes."""
        return self._since is not None and not self._is_over

    def on_session(self) -> None:
        """A session that attaches CUPTI begins, ours or the script's: there is nothing to wait for any more."""
        self._is_over = True

    @property
    def obstacle(self) -> str:
        """Why a capture is refused meanwhile, to follow "refused: "."""
        return (
            f"{self._sign}, and a profiler session before the first graph may leave the process without kernel records "
            "for good. Order it after the first graph, or set RANKSCOPE_CUDA_GRAPHS=no (docs/cost.md)"
        )

    def describe(self) -> str | None:
        """Return the line for the log once sessions begin although no graph has been captured; None before, or if it
        was.
        """
        steps, waited_ns = self._given_up_after
        if not steps:
            return None
        return (
            f"no CUDA graph was captured in {steps} steps and {ns_to_s(waited_ns):.0f} s although {self._sign}: "
            "profiler sessions begin now. If a graph is captured later, the process may have no kernel records for "
            "good; RANKSCOPE_DEVICE_WINDOWS=off begins no window, RANKSCOPE_CUDA_GRAPHS=no does not wait (docs/cost.md)"
        )
