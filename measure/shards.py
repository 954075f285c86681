"""Choose the collector of a run among several. Pure: everyone with the same list chooses the same.

Each run belongs to one collector with all of its ranks, since a collector compares the ranks of a run. The rule is
rendezvous hashing (Thaler and Ravishankar 1998): each collector of the list scores a hash of its endpoint and the run's
name, and the highest score has the run. So no coordination is needed, the order of the list does not matter, and a
collector that joins a list of n gets 1/(n + 1) of the runs while no other run moves.
"""

import hashlib
from collections.abc import Sequence

DRAW_BYTES = 8
"""Bytes of the digest that are compared: two of a thousand collectors collide for one run in 10**13."""


def parse_collectors(text: str) -> tuple[str, ...]:
    """Return the endpoints in a list with commas, each once.

    >>> parse_collectors("tcp://a:1, tcp://b:1,tcp://a:1")
    ('tcp://a:1', 'tcp://b:1')
    """
    endpoints = (part.strip() for part in text.split(","))
    return tuple(dict.fromkeys(endpoint for endpoint in endpoints if endpoint))


def choose_collector(run: str, endpoints: Sequence[str]) -> str:
    """Return the endpoint of the collector that a run belongs to. Endpoints count as they are written: everybody must
    write them alike. Raises ValueError for none.

    >>> choose_collector("bert", ["tcp://a:1", "tcp://b:1"]) == choose_collector("bert", ["tcp://b:1", "tcp://a:1"])
    True
    """
    return max(endpoints, key=lambda endpoint: (_draw(run, endpoint), endpoint))


def _draw(run: str, endpoint: str) -> bytes:
    # The length prefix keeps endpoint and run apart, so that no two pairs give the same text.
    text = f"{len(endpoint)}:{endpoint}{run}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=DRAW_BYTES).digest()
