"""Asking a running collector over HTTP, for the commands that show what it knows."""

import argparse
import urllib.error
import urllib.request
from typing import Final

from rankscope.measure.errors import SettingError, UnavailableError

DEFAULT_URL: Final = "http://127.0.0.1:18491"
HTTP_TIMEOUT_S: Final = 10.0


def add_url(parser: argparse.ArgumentParser) -> None:
    """The option that says where the collector is."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the collector's HTTP address [{DEFAULT_URL}]")


def check_url(url: str) -> str:
    """The address, to which a path may be added. Raises SettingError when it is none."""
    if not url.startswith(("http://", "https://")):
        raise SettingError(f"--url is {url!r}; an HTTP address begins with http:// or https://")
    return url.rstrip("/")


def ask(url: str) -> bytes:
    """The body of a page of a collector, whose address `check_url` has seen. Raises UnavailableError without one."""
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:  # noqa: S310 - `check_url` has seen it
            return bytes(answer.read())
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise UnavailableError(
            f"no collector answers at {url}: {error}. `rankscope serve` starts one; --url says where it is."
        ) from error
