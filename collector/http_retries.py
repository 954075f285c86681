"""Which answers of HTTP another try may not meet."""

from http import HTTPStatus
from typing import Final

RETRIED_STATUSES: Final = frozenset({
    HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS,
})  # fmt: skip
"""Client errors that pass: 408, 425, 429."""


def may_pass(status: int) -> bool:
    """Return whether another try may be answered otherwise than with this status, an error.

    >>> [status for status in (307, 400, 401, 404, 408, 425, 429, 500, 503) if may_pass(status)]
    [408, 425, 429, 500, 503]
    """
    return status in RETRIED_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR
