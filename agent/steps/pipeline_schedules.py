"""Reads what is announced of this rank's pipeline: the schedule, its stages, microbatches.

    torch.distributed.pipelining    `step` of both kinds of schedules is wrapped to note which schedule object trains,
                                    and nothing else; the agent's thread reads its fields. A schedule that does not
                                    train (`eval`, one without a loss) is not noted, nor is a class of the user's with
                                    a `step` of its own.
    Megatron-core                   its parallel state and its calculator of microbatches are asked. The schedule
                                    follows from them, as its `get_forward_backward_func` has it.

The times are those that all steps have (collector/steps/pipeline_stages.py). Imported on the agent's thread, once the
script has imported either.
"""

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from rankscope.agent.guard import Guard
from rankscope.agent.steps.patches import Patch
from rankscope.measure.bounds import ITEMS_MAX, NAME_LENGTH_MAX
from rankscope.measure.records import PipelineSchedule
from rankscope.measure.text import to_unicode

PART: Final = "pipelines"
SCHEDULES: Final = "torch.distributed.pipelining.schedules"
MEGATRON: Final = "megatron.core.parallel_state"
MICROBATCHES: Final = "megatron.core.num_microbatches_calculator"
KINDS: Final = ("PipelineScheduleSingle", "PipelineScheduleMulti")
"""Its classes whose `step` every schedule of torch's inherits, of one stage a rank and of several."""

Call = Callable[..., Any]


class PipelineSchedules:
    """The schedule that this process trains with. Used on the agent's thread."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._patches: list[Patch] = []
        self._is_waiting = True
        self._last: Callable[[], Any] = lambda: None

    def read(self, *, is_last: bool = False) -> PipelineSchedule | None:
        """Return what the last schedule that trained announces; None before any has, and after it is gone. With the
        `is_last` reading torch is restored.
        """
        try:
            if self._is_waiting and SCHEDULES in sys.modules:
                self._install()
            schedule = self._last()
            if is_last or self._guard.is_off(PART):
                self.remove()
            return _read_megatron() if schedule is None else _read(schedule)
        except Exception as error:  # noqa: BLE001 - torch keeps these fields private
            self._guard.record(PART, error)
            return None

    def remove(self) -> None:
        """Restore torch."""
        self._is_waiting, self._last = False, lambda: None
        while self._patches:
            self._patches.pop().revert()

    def _install(self) -> None:
        """Wrap `step` of torch's schedules, as far as this torch has them, once their import is over."""
        schedules = sys.modules[SCHEDULES]
        if getattr(schedules.__spec__, "_initializing", False):
            return
        self._is_waiting = False
        for kind in (getattr(schedules, name, None) for name in KINDS):
            if "step" in vars(kind or object):
                patch = Patch(kind, "step", self._wrap)
                patch.apply()
                self._patches.append(patch)

    def _wrap(self, original: Call) -> Call:
        @functools.wraps(original)
        def step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if schedule._has_backward and self._last() is not schedule:
                    self._last = weakref.ref(schedule)
            except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the training script
                self._guard.record(PART, error)
            self._guard.raise_held()
            return original(schedule, *args, **kwargs)

        return step


def _read_megatron() -> PipelineSchedule | None:
    """Return the pipeline of Megatron-core; None where it has none. Without its calculator, as in a script that is not
    Megatron-LM's, the number of microbatches is 0.
    """
    state, batches = sys.modules.get(MEGATRON), sys.modules.get(MICROBATCHES)
    if state is None or not getattr(state, "model_parallel_is_initialized", bool)():
        return None
    ranks, place = state.get_pipeline_model_parallel_world_size(), state.get_pipeline_model_parallel_rank()
    held = state.get_virtual_pipeline_model_parallel_world_size() or 1
    if ranks == 1 or held > ITEMS_MAX:
        return None
    calculator = getattr(batches, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR", None)
    return PipelineSchedule(
        name=f"forward_backward_pipelining_with{'' if held > 1 else 'out'}_interleaving",
        stages=tuple(place + chunk * ranks for chunk in range(held)),
        stage_count=held * ranks,
        ranks=ranks,
        microbatches=0 if calculator is None else int(calculator.get()),
    )


def _read(schedule: Any) -> PipelineSchedule | None:
    several = getattr(schedule, "_stages", None)
    stages = [schedule._stage] if several is None else list(several)
    if len(stages) > ITEMS_MAX:
        return None
    return PipelineSchedule(
        name=to_unicode(type(schedule).__name__[:NAME_LENGTH_MAX]),
        stages=tuple(sorted(int(stage.stage_index) for stage in stages)),
        stage_count=int(stages[0].num_stages),
        ranks=int(stages[0].group_size),
        microbatches=int(schedule._n_microbatches),
    )
