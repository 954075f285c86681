"""Define what the live page needs to know of the collector's settings: where ranks report, and where links lead."""

from typing import Final

import msgspec


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the collector that the live page shows. `listen` is the address of the setting, tcp://HOST:PORT, as
    the collector listens: HOST may stand for all addresses of its machine. `needs_keys`: agents need keys
    (docs/keys.md). `grafana_url` and `runbooks_url` are without a slash at the end; empty: not set.
    """

    listen: str = ""
    needs_keys: bool = False
    grafana_url: str = ""
    runbooks_url: str = ""


NO_SETTINGS: Final = PageSettings()
