"""Define the settings of the commands that query a collector: configs/client.toml is written from this file.

The last of these that sets a value wins: the default, the file, the environment, the command line. The file
is the one that RANKSCOPE_CLIENT_CONFIG names, or else ~/.config/rankscope/client.toml where there is one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

from rankscope.collector.address_token import split_token
from rankscope.measure.errors import SettingError
from rankscope.measure.settings import FROM_DEFAULT, Setting, Settings, Value, find_settings, read, setting

DEFAULT_URL: Final = "http://127.0.0.1:18491"
USER_FILE: Final = "rankscope/client.toml"
"""Path in the user's folder of configurations, $XDG_CONFIG_HOME or ~/.config."""


def _find_url_problem(url: str) -> str | None:
    if not url.startswith(("http://", "https://")):
        return "an HTTP address begins with http:// or https://"
    form = "it must be http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(url)
        has_host_and_port = bool(parts.hostname) and parts.port != 0
    except ValueError as error:  # a port that is no number or above 65535, an IPv6 address without its last bracket
        return f"{form}: {error}"
    if not has_host_and_port or "@" in parts.netloc or urlsplit(split_token(url)[0]).query or parts.fragment:
        return f"{form}, without a user, a query or a fragment"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientConfig(Settings):
    """All settings of the commands that query a collector: status, top, incidents, report, doctor, capture."""

    TITLE: ClassVar[str] = (
        "rankscope status, top, incidents, nodes, report, capture: where the collector is. "
        "Also ~/.config/rankscope/client.toml."
    )
    PREFIX: ClassVar[str] = "RANKSCOPE_"
    FILE_VARIABLE: ClassVar[str] = "RANKSCOPE_CLIENT_CONFIG"

    url: str = setting(
        DEFAULT_URL,
        Setting(
            "HTTP address of the collector, http://HOST:PORT or https://HOST:PORT. Agents have another one, tcp://. "
            "For a collector that rank 0 has started it is the address of the live page that rank 0 has printed, with "
            "?token=TOKEN.",
            find_problem=_find_url_problem,
        ),
    )
    token_file: str = setting(
        "",
        Setting(
            "File with the token that the collector requires (its `http_token_file`). Only its owner, and "
            "optionally its group, may read it."
        ),
    )
    control_token_file: str = setting(
        "",
        Setting(
            "File with the token that the collector requires of orders (its `http_control_token_file`), for "
            "`rankscope capture`. Only its owner, and optionally its group, may read it."
        ),
    )
    ca_file: str = setting(
        "",
        Setting(
            "File with the certificate to trust, PEM, for a collector with HTTPS whose certificate the system does not "
            "trust. Empty: the certificates that the system trusts."
        ),
    )

    @property
    def is_url_given(self) -> bool:
        """Whether the address of the collector was set anywhere."""
        return self.source("url") != FROM_DEFAULT


def read_client_config(environment: Mapping[str, str], overrides: Mapping[str, Value] | None = None) -> ClientConfig:
    """Return the configuration of the commands. Raises SettingError for a value or a file that cannot be used.

    Only the variables of these settings are read: agents have others with the same prefix.
    """
    names = {f"{ClientConfig.PREFIX}{key.upper()}" for key, _, _ in find_settings(ClientConfig)}
    named = environment.get(ClientConfig.FILE_VARIABLE, "")
    file_name = named or _find_user_file(environment)
    return read(
        ClientConfig,
        file_text=_read_file(file_name, ClientConfig.FILE_VARIABLE if named else "") if file_name else None,
        file_name=file_name,
        environment={name: text for name, text in environment.items() if name in names and text},
        overrides=overrides,
    )


def _find_user_file(environment: Mapping[str, str]) -> str:
    """Return the path of the user's own file; empty where there is none."""
    folder = environment.get("XDG_CONFIG_HOME") or f"{environment.get('HOME', '')}/.config"
    path = Path(folder) / USER_FILE
    # A relative folder is to be ignored, says the XDG Base Directory Specification.
    return str(path) if path.is_absolute() and os.path.lexists(path) else ""


def _read_file(name: str, named_by: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if named_by:
            text = f"{named_by} is {name!r}, which cannot be read: {error}. Name a readable file or unset {named_by}."
        else:
            text = f"{name} cannot be read: {error}. Make it readable, or remove it."
        raise SettingError(text) from error
