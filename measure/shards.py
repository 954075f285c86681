"""Several collectors: which of them a run belongs to. Pure, and the same for everybody who knows the same list.

Each run goes to one collector with all of its ranks, since a collector compares the ranks of a run. The rule is
rendezvous hashing (Thaler and Ravishankar 1998): every collector of the list draws a number from its own endpoint and
the run's name, and the highest has the run. So nobody has to be asked; the order of the list does not matter; and when
a collector joins a list of n, it takes 1/(n + 1) of the runs over and no other run moves.
"""

import hashlib
from collections.abc import Sequence

DRAW_BYTES = 8
"""Of the digest so many are compared: two of a thousand collectors draw the same number for one run in 10**13."""


def parse_collectors(text: str) -> tuple[str, ...]:
    """The endpoints in a list with commas, each once.

    >>> parse_collectors("tcp://a:1, tcp://b:1,tcp://a:1")
    ('tcp://a:1', 'tcp://b:1')
    """
    endpoints = (part.strip() for part in text.split(","))
    return tuple(dict.fromkeys(endpoint for endpoint in endpoints if endpoint))


def choose_collector(run: str, endpoints: Sequence[str]) -> str:
    """The endpoint of the collector that a run belongs to. Endpoints count as they are written: everybody must write
    them alike. Raises ValueError for none.

    >>> choose_collector("bert", ["tcp://a:1", "tcp://b:1"]) == choose_collector("bert", ["tcp://b:1", "tcp://a:1"])
    True
    """
    return max(endpoints, key=lambda endpoint: (_draw(run, endpoint), endpoint))


def _draw(run: str, endpoint: str) -> bytes:
    # The length keeps apart what would be the same text: no endpoint can take a letter from the run's name.
    text = f"{len(endpoint)}:{endpoint}{run}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=DRAW_BYTES).digest()
