"""Answer the API about settings that change while a run goes on, without any socket.

GET  /api/v1/runs/RUN/settings           what is changed now and was before, and what may change (routes_api.py)
POST /api/v1/runs/RUN/settings           change some, or change them back; needs the control token (http_auth.py)
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from rankscope.collector.publish.api.capture_routes import find_ordered_run
from rankscope.collector.publish.routes import JSON, Response, refuse
from rankscope.collector.runs.live_settings import (
    CHANGEABLE,
    NOTHING_ORDERED,
    RanksTaken,
    RunSettings,
    SettingChange,
    SettingsRefusal,
    WantedChange,
)
from rankscope.measure.errors import UnavailableError
from rankscope.measure.settings import Value

SETTINGS_SUFFIX: Final = "/settings"
NO_SETTINGS_HERE: Final = SettingsRefusal(503, "this collector changes no settings")


class SettingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change: `set` has values by the names of settings, as a settings file or as texts, for `for_s` seconds
    (None: until they are changed again); those of `reset` go back to what they are without a change. `by` and `host`
    say who wants it.
    """

    set: Mapping[str, Value] = {}
    reset: tuple[str, ...] = ()
    for_s: float | None = None
    by: str = ""
    host: str = ""


class ShownSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run that are changed while it goes on, by name, and all changes that are kept, oldest first.
    `ranks`: which of them have taken theirs, not known in the answer to a change. `changeable` are the names of those
    that may change.
    """

    changed: tuple[SettingChange, ...]
    past: tuple[SettingChange, ...]
    ranks: RanksTaken = NOTHING_ORDERED
    changeable: tuple[str, ...] = CHANGEABLE


class SettingRoutes:
    """Answers to orders; any thread. `order_settings` changes settings, and raises UnavailableError where it is not
    known whether it has.
    """

    def __init__(self, order_settings: Callable[[WantedChange], RunSettings | SettingsRefusal]) -> None:
        self._order_settings = order_settings

    def order(self, target: str, body: bytes, asked_by: str) -> Response:
        """Return the answer to an admitted POST to `target`. `asked_by` is the address that it came from."""
        try:
            given = msgspec.json.decode(body or b"{}", type=SettingOptions)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return refuse(HTTPStatus.BAD_REQUEST, f"the body is no change of settings as JSON: {error}")
        wanted = WantedChange(
            run=find_ordered_run(target, SETTINGS_SUFFIX) or "", values=given.set, reset=given.reset,
            for_s=given.for_s, by=given.by, host=given.host, asked_by=asked_by,
        )  # fmt: skip
        if not (wanted.values or wanted.reset):
            return refuse(HTTPStatus.UNPROCESSABLE_ENTITY, "nothing is to change: give `set` or `reset`")
        try:
            found = self._order_settings(wanted)
        except UnavailableError as error:
            text = f"{error}. They may have been changed all the same: a GET shows them."
            return refuse(HTTPStatus.SERVICE_UNAVAILABLE, text)
        if isinstance(found, SettingsRefusal):
            return refuse(HTTPStatus(found.status), found.error)
        shown = ShownSettings(changed=found.changed, past=found.past)
        return Response(HTTPStatus.OK, JSON, msgspec.json.encode(shown))
