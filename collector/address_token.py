"""Tokens for HTTP that are part of an address: `http://127.0.0.1:PORT/?token=TOKEN`. Pure, but for making one.

Rank 0 prints such an address of the collector that it has started. It works as it is in a browser, by curl, in a scrape
and as `--url` of a command.
"""

import secrets
from typing import Final
from urllib.parse import unquote

PARAMETER: Final = "token"
"""Name of the token in the query."""
TOKEN_BYTES: Final = 16


def make_token() -> str:
    """Return a new token of 128 random bits, all of whose characters may stand in an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def split_token(address: str) -> tuple[str, str]:
    """Return an address, or a path with its query, without the token that it carries, and that token; empty where it
    carries none.

    >>> split_token("/metrics/ranks?shard=1/2&token=abc"), split_token("/?token=abc"), split_token("/?run=a%2Fb")
    (('/metrics/ranks?shard=1/2', 'abc'), ('/', 'abc'), ('/?run=a%2Fb', ''))
    """
    begins = f"{PARAMETER}="
    path, _, query = address.partition("?")
    if begins not in query:
        return address, ""
    parts = query.split("&")
    tokens = [one.removeprefix(begins) for one in parts if one.startswith(begins)]
    rest = "&".join(one for one in parts if not one.startswith(begins))
    return f"{path}?{rest}" if rest else path, unquote(tokens[0]) if tokens else ""
