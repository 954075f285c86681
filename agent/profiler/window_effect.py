"""Compare the steps between the windows of a device with those before the first one, and end the windows if they slow
training. Pure: step times in, decisions out.

The first session that records an NVIDIA GPU attaches CUPTI to the process. It stays after the session, and makes every
later launch of a kernel slower. On an H200 a step bound by its 650 launches took 11 ms before, 15 to 17 ms after it,
and 12 ms once CUPTI was detached; a step bound by the GPU took the same (`bench/results/gpu-*.md`). The
agent's own clock cannot see that.

    REFERENCE   no window yet: a stretch of steps is timed
    READY       the first session may begin
    ATTACHED    up to STRETCHES_MAX stretches between the windows are compared with the reference
    SLOWER      two of them in a row were slower: no window begins; CUPTI is detached if that is safe, else steps are
                compared once more
    DETACHED    up to STRETCHES_MAX stretches without CUPTI are compared with the reference
    KEPT        windows go on: they do not slow training measurably, or detaching CUPTI did not help in any stretch (the
                ranks of a run, which share their step time, need not detach it at the same step)
    ENDED       no more windows in this run
    ON_DEMAND   no window begins by itself: the device is recorded in captures only

A stretch is STRETCH_BLOCKS blocks of consecutive steps outside of windows, its time the median of the blocks' means. A
mean, because a loop that waits for its device only every few steps has short steps and long ones; a median, because a
checkpoint must not count, nor the reading of a window by the agent's thread. The reference has STRETCH_STEPS_MIN steps,
doubled until they take STRETCH_NS_MIN, and the others have as many. A stretch is slower if it takes `slowdown_min` more
than the reference, and more than ERRORS_MIN times the standard error of the difference. Where steps differ so much
among themselves that no two stretches in a row say so, all of them together decide, by ERRORS_MIN_TOGETHER.
"""

import enum
from typing import Final

from rankscope.measure.median import find_median
from rankscope.measure.units import NS_PER_S

STRETCH_BLOCKS: Final = 4
STRETCH_STEPS_MIN: Final = 32
BLOCK_STEPS_MIN: Final = STRETCH_STEPS_MIN // STRETCH_BLOCKS
STRETCH_STEPS_MAX: Final = 4096
STRETCH_NS_MIN: Final = NS_PER_S
"""So long, because the agent's thread has something to do about once a second."""
STRETCHES_MAX: Final = 4
SETTLE_STEPS: Final = 2
"""Steps left out after a window."""
SLOWDOWN_MIN: Final = 0.03
"""Smaller differences occur in the first minutes of a training anyhow, for example while a GPU becomes warm."""
ERRORS_MIN: Final = 5.0
"""More than the usual three, since the error follows from four blocks only."""
ERRORS_MIN_TOGETHER: Final = 4.0
"""Of all stretches together, whose error follows from four times as many."""
HELPED_MIN: Final = 0.5
"""Share of the slowdown that must be gone without CUPTI, if CUPTI was the cause."""
_MAD_TO_SIGMA: Final = 1.4826
_MEDIAN_TO_MEAN_ERROR: Final = 1.2533
"""Standard deviation of normal values over their median absolute deviation; error of their median over that of their
mean."""


class EffectState(enum.Enum):
    """How far the comparison is; see above."""

    REFERENCE = "reference"
    READY = "ready"
    ATTACHED = "attached"
    SLOWER = "slower"
    DETACHED = "detached"
    KEPT = "kept"
    ENDED = "ended"
    ON_DEMAND = "on_demand"


class StepBlocks:
    """Step times in blocks of consecutive steps.

    >>> stretch = StepBlocks(block_steps=8)
    >>> for duration_ns in [10] * 24 + [90] * 8:
    ...     stretch.add(duration_ns)
    >>> stretch.is_complete, stretch.median_ns
    (True, 10.0)
    """

    def __init__(self, block_steps: int) -> None:
        self.block_steps = block_steps
        self._means_ns: list[float] = []
        self._sum_ns = 0
        self._count = 0

    def add(self, duration_ns: int) -> None:
        """Add the next step."""
        self._sum_ns += duration_ns
        self._count += 1
        if self._count == self.block_steps:
            self._means_ns.append(self._sum_ns / self._count)
            self.interrupt()

    @property
    def steps_left(self) -> int:
        """How many steps it needs at least to be complete."""
        return (STRETCH_BLOCKS - len(self._means_ns)) * self.block_steps - self._count

    @property
    def blocks(self) -> int:
        """The number of its blocks so far."""
        return len(self._means_ns)

    def add_blocks_of(self, other: "StepBlocks") -> None:
        """Add the blocks of another one."""
        self._means_ns += other._means_ns

    def interrupt(self) -> None:
        """Drop the block that is not complete: the next step does not follow on."""
        self._sum_ns = self._count = 0

    @property
    def is_complete(self) -> bool:
        """Whether it has all its blocks."""
        return len(self._means_ns) >= STRETCH_BLOCKS

    @property
    def median_ns(self) -> float:
        """The median of the blocks' means, ns."""
        return find_median(self._means_ns)

    @property
    def relative_error(self) -> float:
        """The standard error of the median, as a share of it."""
        middle_ns = self.median_ns
        deviation_ns = find_median([abs(mean_ns - middle_ns) for mean_ns in self._means_ns])
        error_ns = _MEDIAN_TO_MEAN_ERROR * _MAD_TO_SIGMA * deviation_ns / len(self._means_ns) ** 0.5
        return error_ns / middle_ns if middle_ns else 0.0


class WindowEffect:
    """The effect of a device's windows on the steps between them. Steps may come from the agent thread, under the event
    buffer's lock; everything else is called on the training thread, `on_other_profiler` on any.
    """

    def __init__(
        self,
        *,
        warmup_steps: int,
        slowdown_min: float = SLOWDOWN_MIN,
        state: EffectState = EffectState.REFERENCE,
    ) -> None:
        self._warmup_steps = warmup_steps
        self._slowdown_min = slowdown_min
        self._before_ns: list[int] = []
        self._reference = self._stretch = StepBlocks(BLOCK_STEPS_MIN)
        self._together = StepBlocks(BLOCK_STEPS_MIN)
        self._stretches = 0
        self._slower_in_a_row = 0
        self._is_confirmed = False
        self._settling = 0
        self._blocks_at_window = -1
        self.state = state
        self.attached_ratio: float | None = None
        """How much longer steps between windows took than before the first, as a share, in the stretch compared last,
        or in all together once they decide; None before the first comparison. `detached_ratio` is that without CUPTI,
        after it was detached.
        """
        self.detached_ratio: float | None = None

    @property
    def allows_windows(self) -> bool:
        """Whether a window of the device may begin."""
        return self.state in {EffectState.READY, EffectState.ATTACHED, EffectState.KEPT}

    @property
    def is_ready(self) -> bool:
        """Whether the first session may begin."""
        return self.state is EffectState.READY

    @property
    def is_slower(self) -> bool:
        """Whether steps have become longer, and nothing has been done about it yet."""
        return self.state is EffectState.SLOWER

    @property
    def is_kept(self) -> bool:
        """Whether windows go on."""
        return self.state is EffectState.KEPT

    @property
    def is_comparing(self) -> bool:
        """Whether steps are being compared with the reference."""
        return self.is_open and self.state not in {EffectState.REFERENCE, EffectState.READY}

    @property
    def has_ended(self) -> bool:
        """Whether there are no more windows in this run."""
        return self.state is EffectState.ENDED

    @property
    def is_on_demand(self) -> bool:
        """Whether the device is recorded in captures only."""
        return self.state is EffectState.ON_DEMAND

    @property
    def may_interrupt(self) -> bool:
        """Whether a planned window may begin: while stretches are compared only after another block, since windows
        would leave none of very long steps.
        """
        return self.state is not EffectState.ATTACHED or self._stretch.blocks != self._blocks_at_window

    @property
    def steps_left(self) -> int:
        """How many steps it takes at least until something changes."""
        if self.state is EffectState.REFERENCE:
            return max(1, STRETCH_STEPS_MIN - len(self._before_ns), -len(self._before_ns) % STRETCH_STEPS_MIN)
        if self.state in {EffectState.ATTACHED, EffectState.DETACHED}:
            return max(1, self._settling + self._stretch.steps_left)
        return 1

    @property
    def is_open(self) -> bool:
        """Whether steps are still compared, so that each boundary matters."""
        return self.state not in {EffectState.KEPT, EffectState.ENDED, EffectState.ON_DEMAND}

    def on_step(self, step: int, duration_ns: int, *, in_window: bool) -> None:
        """Add a finished step."""
        if in_window:
            self._settling = SETTLE_STEPS
            del self._before_ns[len(self._before_ns) // BLOCK_STEPS_MIN * BLOCK_STEPS_MIN :]
            self._stretch.interrupt()
            self._blocks_at_window = self._stretch.blocks
        elif self._settling:
            self._settling -= 1
        elif self.state is EffectState.REFERENCE and step >= self._warmup_steps:
            self._before_ns.append(duration_ns)
            self._complete_reference()
        elif self.state in {EffectState.ATTACHED, EffectState.DETACHED}:
            self._stretch.add(duration_ns)
            if self._stretch.is_complete:
                self._compare()

    def on_attached(self) -> None:
        """The first session of the device has ended."""
        if self.state is EffectState.READY:
            self.state = EffectState.ATTACHED

    def on_detached(self) -> None:
        """CUPTI has been detached."""
        if self.state is EffectState.SLOWER:
            self.state = EffectState.DETACHED
            self._settling, self._stretches = SETTLE_STEPS, 0

    def on_stays_attached(self) -> None:
        """CUPTI cannot be detached here: two more stretches must be slower, since nothing else can confirm it."""
        if self.state is EffectState.SLOWER:
            self.state = EffectState.ENDED if self._is_confirmed else EffectState.ATTACHED
            self._is_confirmed = True
            self._stretches = self._slower_in_a_row = 0

    def on_other_profiler(self) -> None:
        """The user's profiler begins, which attaches CUPTI: whether detaching it helps cannot be seen any more."""
        if self.state in {EffectState.SLOWER, EffectState.DETACHED}:
            self.state = EffectState.ENDED

    def end(self) -> None:
        """There are no more windows in this run."""
        self.state = EffectState.ENDED

    def restart(self) -> None:
        """Begin the reference anew, if no session has been: something else has changed the steps."""
        if self.state in {EffectState.REFERENCE, EffectState.READY}:
            self._before_ns.clear()
            self.state = EffectState.REFERENCE

    def _complete_reference(self) -> None:
        """Make the reference of the steps so far, if they are as many as it takes."""
        count = len(self._before_ns)
        if count < STRETCH_STEPS_MIN or count & (count - 1):
            return
        if sum(self._before_ns) < STRETCH_NS_MIN and count < STRETCH_STEPS_MAX:
            return
        self._reference, self._stretch = StepBlocks(count // STRETCH_BLOCKS), StepBlocks(count // STRETCH_BLOCKS)
        for duration_ns in self._before_ns:
            self._reference.add(duration_ns)
        self._before_ns.clear()
        self.state = EffectState.READY

    def _compare(self) -> None:
        stretch, self._stretch = self._stretch, StepBlocks(self._reference.block_steps)
        self._stretches += 1
        ratio = self._find_ratio(stretch)
        if self.state is EffectState.DETACHED:
            self.detached_ratio = ratio
            slower = self.attached_ratio or 0.0
            if slower - ratio >= HELPED_MIN * slower:
                self.state = EffectState.ENDED
            elif self._stretches == STRETCHES_MAX:
                self.state = EffectState.KEPT
            return
        self.attached_ratio = ratio
        self._together.add_blocks_of(stretch)
        self._slower_in_a_row = self._slower_in_a_row + 1 if self._is_slower(stretch, ERRORS_MIN) else 0
        if self._slower_in_a_row == 2:  # noqa: PLR2004 - two in a row, as above
            self.state = EffectState.SLOWER
        elif self._stretches == STRETCHES_MAX:
            self.attached_ratio = self._find_ratio(self._together)
            is_slower = self._is_slower(self._together, ERRORS_MIN_TOGETHER)
            self.state = EffectState.SLOWER if is_slower else EffectState.KEPT
        if self.state is not EffectState.ATTACHED:
            self._together = StepBlocks(self._reference.block_steps)

    def _find_ratio(self, stretch: StepBlocks) -> float:
        return stretch.median_ns / self._reference.median_ns - 1 if self._reference.median_ns else 0.0

    def _is_slower(self, stretch: StepBlocks, errors_min: float) -> bool:
        error: float = (stretch.relative_error**2 + self._reference.relative_error**2) ** 0.5
        return self._find_ratio(stretch) > max(self._slowdown_min, errors_min * error)


def describe_ratio(ratio: float) -> str:
    """Return how steps have changed, as text.

    >>> describe_ratio(0.336), describe_ratio(-0.0151), describe_ratio(0.004)
    ('34 % longer than before it', '2 % shorter than before it', 'as long as before it')
    """
    percent = round(100 * ratio)
    if not percent:
        return "as long as before it"
    return f"{abs(percent)} % {'longer' if percent > 0 else 'shorter'} than before it"
