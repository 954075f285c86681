"""Change settings of one run while it goes on, and change them back when their time is over. Pure.

    change -> what has changed        a client asks; a value is checked as that of a settings file
    tick   -> what has gone back      the wall clock, so that it holds over restarts of the collector

Of the collector's settings those change that decide what is found and who is notified. The others are of the ranks,
which are ordered what to take (`setting_orders.py`).
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding_words import format_clock
from rankscope.collector.invariants import require
from rankscope.measure.errors import SettingError
from rankscope.measure.rank_settings import COLLECTIVE_WINDOW, FULL_WINDOW_INTERVAL, LINE_SAMPLES
from rankscope.measure.settings import Settings, Value, find_settings, read, setting
from rankscope.measure.text import to_line


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSettings(Settings):
    """The settings of a rank that may change; the defaults stand for none: each rank has its own."""

    collective_window_s: float = setting(2.0, COLLECTIVE_WINDOW)
    full_window_interval_s: float = setting(20.0, FULL_WINDOW_INTERVAL)
    line_samples: bool = setting(True, LINE_SAMPLES)


THRESHOLDS: Final = ("slowdown_ratio_min", "detect_steps_min")
"""How slow is slow, and how many steps it takes to open a finding."""
OF_COLLECTOR: Final = (*THRESHOLDS, "notify_severity_min")
"""Settings of the collector that may change while a run goes on; the last says who is notified of what."""
OF_RANKS: Final = tuple(name for name, _, _ in find_settings(RankSettings))
CHANGEABLE: Final = (*OF_COLLECTOR, *OF_RANKS)
SET: Final = "set"
RESET: Final = "reset"
OVER: Final = "over"
"""Kinds of a change: to another value; back, by somebody; back, since its time was over."""
PAST_MAX: Final = 32
"""Changes of a run that are kept, the last ones."""
NAME_LENGTH_MAX: Final = 64
DAY_S: Final = 86_400
FOR_S_MIN: Final = 1.0
FOR_S_MAX: Final = 30.0 * DAY_S
ASKED: Final = "as asked"
"""Where a value comes from, in the texts of errors."""


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a setting of a run, one of the kinds SET, RESET and OVER. `value` is the new one, `before` the one
    that it replaced, and `own` the one without any change; None: of each rank its own. `by` and `host` are who asked
    for it as the client has said, `address` is where the request came from. `wall_s` is when, and `until_wall_s` until
    when, in seconds since 1970; None: until it is changed again. `text` says all of it.
    """

    name: str
    value: Value | None
    before: Value | None
    own: Value | None
    kind: str = SET
    by: str = ""
    host: str = ""
    address: str = ""
    wall_s: float
    until_wall_s: float | None = None
    text: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "text", _write(self))


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one run that were changed while it went on: those that are now, by name, and all changes that
    are kept, oldest first.
    """

    changed: tuple[SettingChange, ...] = ()
    past: tuple[SettingChange, ...] = ()


NOTHING_CHANGED: Final = RunSettings()


class RanksTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of the present settings of the ranks: how many of the `asked` have taken all of them, and by
    reason which have not. `text` says it; empty where nothing was ordered of them, or all have taken it.
    """

    asked: int = 0
    taken: int = 0
    refused: Mapping[str, tuple[int, ...]] = {}
    text: str = ""


NOTHING_ORDERED: Final = RanksTaken()


class WantedChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants: these values for `for_s` seconds (None: until they are changed again), then the settings
    `reset` back to what they are without a change. `asked_by` is the address that it came from.
    """

    run: str
    values: Mapping[str, Value] = {}
    reset: tuple[str, ...] = ()
    for_s: float | None = None
    by: str = ""
    host: str = ""
    asked_by: str = ""


class SettingsRefusal(msgspec.Struct, frozen=True):
    """Why nothing is changed, and the HTTP status of that."""

    status: int
    error: str


class LiveSettings:
    """The settings of one run. Written by RunState only."""

    def __init__(self, config: CollectorConfig) -> None:
        self._own = config
        #: The settings of the collector as they are for this run now.
        self.config = config
        #: By name, those that are changed.
        self._changed: dict[str, SettingChange] = {}
        #: At most PAST_MAX, oldest first.
        self._past: tuple[SettingChange, ...] = ()
        #: What is changed now, and what was; the same object while nothing changes.
        self.state = NOTHING_CHANGED
        #: Whether a finding now needs more than when the open ones were opened, until a detection pass has judged that.
        self.is_stricter = False

    @property
    def thresholds(self) -> Mapping[str, float]:
        """The thresholds of findings that are changed now."""
        return {name: float(getattr(self.config, name)) for name in THRESHOLDS if name in self._changed}

    @property
    def thresholds_said(self) -> str:
        """What a finding says of them; empty where none is changed."""
        parts = [
            f"{name} {show_value(getattr(self.config, name))} instead of {show_value(getattr(self._own, name))}"
            for name in self.thresholds
        ]
        return f"Judged with {' and '.join(parts)}." if parts else ""

    @property
    def of_ranks(self) -> Mapping[str, SettingChange]:
        """The settings of the ranks that are changed now, by name."""
        return {name: one for name, one in self._changed.items() if name in OF_RANKS}

    def restore(self, state: RunSettings) -> None:
        """Go on with what an earlier collector has saved. What is over goes back with the next tick; a value that this
        release does not allow goes back now.
        """
        for one in state.changed:
            try:
                values = check({} if one.value is None else {one.name: one.value})
                self.config = self._with(values)
            except SettingError:
                continue
            self._changed[one.name] = msgspec.structs.replace(one, own=self._find_own(one.name))
        self._past = state.past
        self._publish()

    def change(self, wanted: WantedChange, wall_s: float) -> tuple[SettingChange, ...]:
        """Change all that is wanted, or nothing; return what has changed. Raises SettingError with the cure."""
        for_s = wanted.for_s
        if for_s is not None and not FOR_S_MIN <= for_s <= FOR_S_MAX:
            raise SettingError(
                f"the time is {for_s:g} s; it must be from {FOR_S_MIN:g} s to {FOR_S_MAX / DAY_S:g} days."
            )
        check_names(wanted.reset)
        values = check(wanted.values)
        who: dict[str, Any] = {
            "by": to_line(wanted.by, NAME_LENGTH_MAX),
            "host": to_line(wanted.host, NAME_LENGTH_MAX),
            "address": to_line(wanted.asked_by, NAME_LENGTH_MAX),
        }
        until_wall_s = None if for_s is None else wall_s + for_s
        as_own = [name for name, value in values.items() if value == self._find_own(name)]
        back = [name for name in dict.fromkeys((*as_own, *wanted.reset)) if name in self._changed]
        made = [
            SettingChange(
                name=name, value=value, before=self._find(name), own=self._find_own(name), wall_s=wall_s,
                until_wall_s=until_wall_s, **who,
            )
            for name, value in values.items()
            if name not in as_own
        ]  # fmt: skip
        made += [self._go_back(name, RESET, wall_s, who) for name in back if name in as_own or name not in values]
        self._take(made)
        return tuple(made)

    def tick(self, wall_s: float) -> tuple[SettingChange, ...]:
        """Change back what is over; return that."""
        over = [one for one in self._changed.values() if one.until_wall_s is not None and one.until_wall_s <= wall_s]
        made = tuple(self._go_back(one.name, OVER, wall_s, {"by": one.by}) for one in over)
        if made:
            self._take(made)
        return made

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        require(len(self._past) <= PAST_MAX, "too many changes of settings are kept")
        require(all(name == one.name for name, one in self._changed.items()), "a change is kept under another name")
        require(set(self._changed) <= set(CHANGEABLE), "a setting is changed that may not be")

    def _take(self, made: Sequence[SettingChange]) -> None:
        before = self.config
        self.config = self._with({one.name: one.value for one in made})
        for one in made:
            if one.kind == SET:
                self._changed[one.name] = one
            else:
                self._changed.pop(one.name, None)
        self._past = (*self._past, *made)[-PAST_MAX:]
        self._publish()
        self.is_stricter |= any(getattr(self.config, name) > getattr(before, name) for name in THRESHOLDS)

    def _publish(self) -> None:
        self.state = RunSettings(changed=tuple(self._changed[name] for name in sorted(self._changed)), past=self._past)

    def _with(self, values: Mapping[str, Value | None]) -> CollectorConfig:
        """Return the collector's settings with these. Raises SettingError where two contradict each other."""
        ours: dict[str, Any] = {name: value for name, value in values.items() if name in OF_COLLECTOR}
        sources = {**self.config.sources, **dict.fromkeys(ours, ASKED)}
        return replace(self.config, sources=sources, **ours) if ours else self.config

    def _find(self, name: str) -> Value | None:
        """Return the present value of a setting; None: that of each rank."""
        one = self._changed.get(name)
        return self._find_own(name) if one is None else one.value

    def _find_own(self, name: str) -> Value | None:
        found: Value | None = getattr(self._own, name) if name in OF_COLLECTOR else None
        return found

    def _go_back(self, name: str, kind: str, wall_s: float, who: Mapping[str, Any]) -> SettingChange:
        own = self._find_own(name)
        return SettingChange(name=name, value=own, before=self._find(name), own=own, kind=kind, wall_s=wall_s, **who)


def describe_changed(settings: RunSettings, taken: RanksTaken = NOTHING_ORDERED) -> list[str]:
    """Return what is changed now, a text for each setting, and which ranks have not taken theirs."""
    return [*(one.text for one in settings.changed), *([taken.text] if taken.text else [])]


def check_names(names: Iterable[str]) -> None:
    """Raise SettingError for a name that may not change while a run goes on, with the nearest that may."""
    for name in names:
        if name in CHANGEABLE:
            continue
        shown = to_line(name, NAME_LENGTH_MAX)
        if name in {key for key, _, _ in find_settings(CollectorConfig)}:
            raise SettingError(f"{shown} cannot change while a run goes on. These can: {', '.join(CHANGEABLE)}.")
        near = difflib.get_close_matches(name, CHANGEABLE, n=1)
        cure = f"The nearest is {near[0]}: correct the name." if near else f"These can change: {', '.join(CHANGEABLE)}."
        raise SettingError(f"{shown} is no setting of a run that goes on. {cure}")


def check(given: Mapping[str, Value]) -> dict[str, Value]:
    """Return values, given as in a settings file or as texts, in the types of their settings. Raises SettingError for a
    name that may not change, and for a value that cannot be used.

    >>> check({"slowdown_ratio_min": "1.2", "line_samples": "off"})
    {'slowdown_ratio_min': 1.2, 'line_samples': False}
    """
    check_names(given)
    values: dict[str, Value] = {}
    for name, value in given.items():
        kind = CollectorConfig if name in OF_COLLECTOR else RankSettings
        values[name] = getattr(read(kind, overrides={name: value}, overrides_from=ASKED), name)
    return values


def _write(change: SettingChange) -> str:
    """Return what has changed, who has changed it, and when.

    >>> change = SettingChange(name="slowdown_ratio_min", value=1.05, before=1.2, own=1.2, by="anna", wall_s=50_520.0)
    >>> change.text
    'slowdown_ratio_min 1.05 instead of 1.2, set by anna, 1970-01-01 14:02 UTC'
    """
    who = (change.by or change.address or "somebody") + (f" on {change.host}" if change.host else "")
    value, before = show_value(change.value), show_value(change.before)
    at = f"{format_clock(change.wall_s)} UTC"
    if change.kind == OVER:
        return f"{change.name} {value} again instead of {before}, {at}: the time that {who} had set is over"
    if change.kind == RESET:
        return f"{change.name} {value} again instead of {before}, reset by {who}, {at}"
    until = "" if change.until_wall_s is None else f", until {format_clock(change.until_wall_s)} UTC"
    return f"{change.name} {value} instead of {show_value(change.own)}, set by {who}, {at}{until}"


def show_value(value: Value | None) -> str:
    """Return a value as a text that may stand in its variable; None: that of each rank."""
    if value is None:
        return "each rank's own"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
