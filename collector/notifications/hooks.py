"""Call Python hooks with events: callables of installed packages, found as entry points of the group GROUP.

    [project.entry-points."rankscope.incident_hooks"]
    pager = "my_package.paging:page"            # def page(event: IncidentEvent) -> None

A hook runs in a thread of its own in the collector's process. Only those that `notify_hooks` names are imported.
"""

import importlib.metadata
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.notifications.channel import DELIVERED, FAILED, Delivery
from rankscope.collector.notifications.event import IncidentEvent
from rankscope.measure.errors import SettingError

LOG = logging.getLogger("rankscope.collector")

GROUP: Final = "rankscope.incident_hooks"
HOOKS_MAX: Final = 16
BLOCKED_S: Final = 60.0
"""A call that takes longer is logged. It cannot be ended; only its own events wait."""


class Hook:
    """One entry point. `blocked_s` is after how long a call is said to block."""

    def __init__(self, entry: importlib.metadata.EntryPoint, blocked_s: float = BLOCKED_S) -> None:
        self.name = entry.name
        self._entry = entry
        self._blocked_s = blocked_s
        self._function: Callable[[IncidentEvent], object] | None = None
        self._import_problem = ""

    def __call__(self, event: IncidentEvent, cancelled: threading.Event) -> Delivery:  # noqa: ARG002 - it cannot be ended
        """Call the hook, once it is imported. What it raises is a failure, and nothing is tried again."""
        watch = threading.Timer(self._blocked_s, self._warn, [event.incident.id])
        watch.daemon = True
        watch.start()
        try:
            if self._function is None and not self._import_problem:
                self._load()
            if self._function is None:
                return Delivery(FAILED, self._import_problem)
            self._function(event)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in a hook is no reason to end its thread
            return Delivery(FAILED, f"it raised {_describe(error)}")
        finally:
            watch.cancel()
        return Delivery(DELIVERED)

    def prepare(self) -> None:
        """Import the hook, and log why that is not possible."""
        self._load()
        if self._import_problem:
            LOG.error("hook %s: %s; its events are lost until the collector is started again",
                      self.name, self._import_problem)  # fmt: skip

    def _load(self) -> None:
        try:
            self._function = self._entry.load()
        except BaseException as error:  # noqa: BLE001 - as above
            self._import_problem = f"{self._entry.value} cannot be imported: {_describe(error)}"

    def _warn(self, incident: int) -> None:
        LOG.warning("hook %s has not returned for %g s from an event of incident %d; its other events wait",
                    self.name, self._blocked_s, incident)  # fmt: skip


def find_hooks(
    config: CollectorConfig, entries: Iterable[importlib.metadata.EntryPoint] | None = None
) -> tuple[Hook, ...]:
    """Return the hooks that `notify_hooks` names, not imported. Raises SettingError for a name that no installed
    package has, and for more than HOOKS_MAX.
    """
    found = importlib.metadata.entry_points(group=GROUP) if entries is None else entries
    known = {entry.name: entry for entry in found}
    names = list(dict.fromkeys(name.strip() for name in config.notify_hooks.split(",") if name.strip()))
    if len(names) > HOOKS_MAX:
        raise SettingError(
            f"notify_hooks ({config.source('notify_hooks')}) has {len(names)} names, and each hook has a thread; the "
            f"most allowed is {HOOKS_MAX}. Name fewer."
        )
    for name in names:
        if name not in known:
            raise SettingError(
                f"notify_hooks is {config.notify_hooks!r} ({config.source('notify_hooks')}), and no installed package "
                f"has an entry point {name!r} in the group {GROUP}; there are: {', '.join(sorted(known)) or 'none'}."
            )
    return tuple(Hook(known[name]) for name in names)


def _describe(error: BaseException) -> str:
    """Return an error and the line that raised it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    where = "" if traceback is None else f" ({traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno})"
    return f"{type(error).__name__}: {str(error)[:200]}{where}"
