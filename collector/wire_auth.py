"""Read the keys and credentials of the collector: which clients may send reports, and which may read over HTTP.

Agents on this machine may do without keys, because only this machine reaches loopback. With any other address a
collector without keys does not start unless `insecure` is set: any client that can reach it could report anything, and
read the reports of others in transit.
"""

import logging
import re
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.collector.ingest.curve import AllowedKeys, CurveServer
from rankscope.collector.publish.http_auth import HttpAuth, read_http_auth
from rankscope.measure.clock import Clock
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import read_key_pair

LOG = logging.getLogger("rankscope.collector")

_LOOPBACK: Final = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")


def read_curve(config: CollectorConfig, clock: Clock) -> CurveServer | None:
    """Return the keys for agents; None: every client may send reports. Raises SettingError for an address that other
    machines can reach without keys and without `insecure`, and for keys that no agent could match.
    """
    if bool(config.key_file) != bool(config.allowed_keys):
        given, lacking = ("key_file", "allowed_keys") if config.key_file else ("allowed_keys", "key_file")
        raise SettingError(
            f"{given} is {getattr(config, given)!r} ({config.source(given)}) and {lacking} is empty: encrypted "
            f"connections need both. `rankscope keys FOLDER` makes them."
        )
    if config.key_file:
        keys = AllowedKeys(config.allowed_keys, clock)
        return CurveServer(read_key_pair(config.key_file, "key_file"), keys.is_allowed, keys.may_relay)
    if is_loopback(config.listen):
        return None
    if not config.insecure:
        raise SettingError(
            f"listen is {config.listen} ({config.source('listen')}), which other machines can reach, and there are no "
            "keys: anybody there could send reports and read those of others. `rankscope keys FOLDER` makes keys for "
            "key_file and allowed_keys; --insecure (insecure = true) starts without."
        )
    LOG.warning(
        "insecure is set: any client that can reach %s can send reports in the name of any rank and read those of "
        "others. Use keys (`rankscope keys`), or a network on which every user is trusted.",
        config.listen,
    )
    return None


def read_http(config: CollectorConfig) -> HttpAuth:
    """Return the tokens and the certificate for HTTP clients. Raises SettingError for files that cannot be used."""
    access = read_http_auth(
        token_file=config.http_token_file,
        control_token_file=config.http_control_token_file,
        certificate_file=config.http_certificate_file,
        key_file=config.http_key_file,
    )
    if not is_loopback(config.http_listen) and not access.token:
        LOG.warning(
            "any client that can reach %s can read everything about every run; set http_token_file to require a token",
            config.http_listen,
        )
    return access


def is_loopback(address: str) -> bool:
    """Return whether an address to listen at, [SCHEME://]HOST:PORT, is reachable from this machine only.

    >>> is_loopback("tcp://127.0.0.1:18490"), is_loopback("tcp://*:18490"), is_loopback("[::1]:80")
    (True, False, True)
    """
    host = address.rpartition("://")[2].rpartition(":")[0]
    return _LOOPBACK.fullmatch(host) is not None
