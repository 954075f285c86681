"""Order the settings that are changed of a run's ranks, and keep which rank has taken them. Pure.

    tick -> orders to rank processes; take <- their answers

A rank process is asked until it has answered, also one that joins later. It changes back by itself when the time of a
change is over, and when the collector says that nothing is changed any more.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import name_ranks
from rankscope.collector.runs.attempt import Attempt
from rankscope.collector.runs.events import AskSettings
from rankscope.collector.runs.live_settings import NOTHING_ORDERED, OF_RANKS, RanksTaken, RunSettings, show_value
from rankscope.measure.messages import SettingsOrder, SettingsTaken
from rankscope.measure.text import to_line
from rankscope.measure.units import NS_PER_S, s_to_ns

REPEAT_NS: Final = 3 * NS_PER_S
SILENT_NS: Final = 30 * NS_PER_S
"""A rank that is asked for so long is asked only as often: an agent of an earlier release never answers."""
REASON_LENGTH_MAX: Final = 300
NO_ANSWER: Final = "an agent of an earlier release takes no such order"


class _Asked(NamedTuple):
    """When a rank process was first and last asked for an order."""

    id: str
    first_ns: int
    last_ns: int


class SettingOrders:
    """The orders of one run. Written by RunState only."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        #: By boot id of live rank processes, the last order answered and what was refused of it, as a sentence.
        self._answers: dict[str, tuple[str, str]] = {}
        #: As of the last tick that looked at the ranks.
        self.taken = NOTHING_ORDERED
        self._settled_id: str | None = None
        self._look_ns = 0

    def tick(self, settings: RunSettings, attempt: Attempt, now_ns: int, now_wall_s: float) -> list[AskSettings]:
        """Return the orders that are due."""
        order_id = _find_id(settings)
        if order_id is None or (order_id == self._settled_id and now_ns < self._look_ns):
            return []
        live = {one.identity.boot_id: one.identity.rank for one in attempt.ranks.values() if one.is_live}
        self._asked = {boot_id: one for boot_id, one in self._asked.items() if boot_id in live}
        self._answers = {boot_id: one for boot_id, one in self._answers.items() if boot_id in live}
        order, effects = _make_order(order_id, settings, now_wall_s), []
        for boot_id in live:
            if boot_id in self._answers and self._answers[boot_id][0] == order_id:
                continue
            before = self._asked.get(boot_id)
            if before is None or before.id != order_id:
                before = _Asked(order_id, now_ns, now_ns - SILENT_NS)
            pause_ns = REPEAT_NS if now_ns - before.first_ns < SILENT_NS else SILENT_NS
            if now_ns - before.last_ns >= pause_ns:
                self._asked[boot_id] = before._replace(last_ns=now_ns)
                effects.append(AskSettings(boot_id, order))
        self.taken = self._count(order_id, live, now_ns)
        # Once all have answered, it is only looked for ranks that have joined: of 16,384 that takes 10 ms.
        self._settled_id = order_id if self.taken.taken == len(live) else None
        self._look_ns = now_ns + REPEAT_NS
        return effects

    def take(self, boot_id: str, taken: SettingsTaken) -> None:
        """Take the answer of a rank process that is asked."""
        asked = self._asked.get(boot_id)
        if asked is not None and asked.id == taken.id:
            reasons = [f"{name}: {reason}" for name, reason in sorted(taken.refused.items())]
            self._answers[boot_id] = taken.id, to_line("; ".join(reasons), REASON_LENGTH_MAX)

    def _count(self, order_id: str, live: Mapping[str, int], now_ns: int) -> RanksTaken:
        refused: dict[str, list[int]] = {}
        taken = 0
        for boot_id, rank in sorted(live.items(), key=lambda one: one[1]):
            answered, reason = self._answers.get(boot_id, ("", ""))
            if answered == order_id and not reason:
                taken += 1
            elif answered == order_id:
                refused.setdefault(reason, []).append(rank)
            elif now_ns - self._asked[boot_id].first_ns >= SILENT_NS:
                refused.setdefault(NO_ANSWER, []).append(rank)
        of_ranks = {reason: tuple(ranks) for reason, ranks in refused.items()}
        return RanksTaken(asked=len(live), taken=taken, refused=of_ranks, text=_write(len(live), taken, of_ranks))


def _find_id(settings: RunSettings) -> str | None:
    """Return the id of the present order, which is that of the last change; None: nothing was ever ordered."""
    times = [one.wall_s for one in (*settings.past, *settings.changed) if one.name in OF_RANKS]
    return f"{max(times):.6f}" if times else None


def _make_order(order_id: str, settings: RunSettings, now_wall_s: float) -> SettingsOrder:
    changed = {one.name: one for one in settings.changed if one.name in OF_RANKS}
    return SettingsOrder(
        id=order_id,
        values={name: show_value(one.value) for name, one in changed.items()},
        lasts_ns={
            name: max(0, s_to_ns(one.until_wall_s - now_wall_s))
            for name, one in changed.items()
            if one.until_wall_s is not None
        },
    )


def _write(asked: int, taken: int, refused: Mapping[str, tuple[int, ...]]) -> str:
    if taken == asked:
        return ""
    parts = [f"{name_ranks(ranks)} {_say_how(reason, len(ranks))}: {reason}" for reason, ranks in refused.items()]
    return "; ".join([f"taken by {taken} of {asked} ranks", *parts])


def _say_how(reason: str, ranks: int) -> str:
    if reason == NO_ANSWER:
        return "gives no answer" if ranks == 1 else "give no answer"
    return "refuses" if ranks == 1 else "refuse"
