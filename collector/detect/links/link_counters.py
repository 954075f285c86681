"""Find what the counters of network ports say about a slow link: `link_errors` or `congestion`. Pure.

This is evidence beside a slow transfer, never a finding of its own: ports count errors and waiting in healthy clusters
too. So a counter speaks only if it grew on an accused machine while the link was slow, by TIMES_MIN times the median of
the ports of the same name on other machines, and by more than a healthy port counts.

    link_errors    the port corrects or drops what it receives, loses its link, or runs at a lower rate
    congestion     data waits to be sent, arrives marked, or is lost on the way and sent again

Packets are lost, and sent again, because of bad cables as well; then the port at the other end counts the errors.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.machine_growth import NodeCounts, Stretch, find_growth, find_stretch, spread
from rankscope.measure.records import NodeSample

LINK_ERRORS: Final = "link_errors"
CONGESTION: Final = "congestion"
TIMES_MIN: Final = 10.0
"""Ratio to the other machines' ports: what all ports count is the way of this network, and no reason of one link."""
NAMED_MAX: Final = 4
"""Counters named for one link and kind, those farthest above the others first."""
ACCUSED_MAX: Final = 64
"""Machines of one location that are looked at, the first by name. With more of them the slow groups single out no link,
and each costs the pass a millisecond."""
OTHERS_MAX: Final = 32
"""Other machines, evenly spread, that each is compared with."""
GIGABIT: Final = 1000**3


class Counter(NamedTuple):
    """A counter: what it indicates, its name in a sentence, and the least growth that says something: a healthy port
    has a few bit errors an hour (InfiniBand allows one in 1e12 bits), and waits for a while in every step.
    """

    kind: str
    words: str
    growth_min: int


PORT_COUNTERS: Final[Mapping[str, Counter]] = {
    "symbol_errors": Counter(LINK_ERRORS, "symbol errors", 10),
    "receive_errors": Counter(LINK_ERRORS, "receive errors", 10),
    "link_recoveries": Counter(LINK_ERRORS, "recoveries of its link", 1),
    "link_downs": Counter(LINK_ERRORS, "losses of its link", 1),
    "xmit_wait": Counter(CONGESTION, "ticks of waiting to send", 1_000_000),
    "cnps_handled": Counter(CONGESTION, "congestion notifications received", 1000),
    "cnps_sent": Counter(CONGESTION, "congestion notifications sent", 1000),
    "out_of_sequence": Counter(CONGESTION, "packets out of sequence", 100),
    "adaptive_retransmissions": Counter(CONGESTION, "adaptive retransmissions", 100),
    "ack_timeouts": Counter(CONGESTION, "timeouts of acknowledgements", 10),
    "receiver_not_ready": Counter(CONGESTION, "refusals of a receiver that was not ready", 100),
}
"""By field of PortSample."""
INTERFACE_COUNTERS: Final[Mapping[str, Counter]] = {
    "errors": Counter(LINK_ERRORS, "errors", 10),
    "drops": Counter(CONGESTION, "dropped packets", 100),
}
"""By field of InterfaceSample."""
TCP: Final = "tcp_segments_retransmitted"
COUNTERS: Final[Mapping[str, Counter]] = {
    **PORT_COUNTERS,
    **INTERFACE_COUNTERS,
    TCP: Counter(CONGESTION, "TCP segments sent again", 100),
}


class Sign(NamedTuple):
    """A counter that grew on one machine and not on the others, as a sentence and as numbers for the evidence. `ratio`
    to the others orders signs.
    """

    kind: str
    sentence: str
    evidence: Mapping[str, float]
    ratio: float


class _Growths(NamedTuple):
    """What one machine counted over some steps, by the name of the port or interface (empty: the machine's) and the
    field; and the rate of each active port at the end, in bits per second.
    """

    steps: int
    counted: Mapping[tuple[str, str], int]
    rates: Mapping[str, int]


def find_signs(
    accused: Iterable[str], machines: Mapping[str, Sequence[NodeCounts]], from_step: int
) -> dict[str, list[Sign]]:
    """Return by kind what indicates the reason of a slow link between accused machines, the clearest sign first;
    without a kind that nothing indicates. Machines without two samples since that step are not judged, nor is a port
    that no other machine has.
    """
    accused = tuple(accused)[:ACCUSED_MAX]
    others = spread(sorted(machines.keys() - set(accused)), OTHERS_MAX)
    grown = {
        node: _read(stretch)
        for node in (*accused, *others)
        if (stretch := find_stretch(machines.get(node, ()), from_step)) is not None
    }
    found: dict[str, list[Sign]] = {}
    for node in accused:
        elsewhere = spread([growths for name, growths in grown.items() if name != node], OTHERS_MAX)
        if node in grown:
            for sign in (*_find_slow_rates(node, grown[node], elsewhere), *_find_grown(node, grown[node], elsewhere)):
                found.setdefault(sign.kind, []).append(sign)
    return {kind: sorted(signs, key=lambda sign: -sign.ratio)[:NAMED_MAX] for kind, signs in sorted(found.items())}


def _read(stretch: Stretch) -> _Growths:
    before, after = _flatten(stretch.first), _flatten(stretch.last)
    growths = {key: find_growth(before.get(key), value) for key, value in after.items()}
    return _Growths(
        stretch.steps,
        {key: growth for key, growth in growths.items() if growth is not None},
        {port.name: port.rate_bits_per_s for port in stretch.last.ports if port.rate_bits_per_s},
    )


def _flatten(sample: NodeSample) -> dict[tuple[str, str], int | None]:
    ports = {(port.name, field): getattr(port, field) for port in sample.ports for field in PORT_COUNTERS}
    interfaces = {(one.name, field): getattr(one, field) for one in sample.interfaces for field in INTERFACE_COUNTERS}
    return {**ports, **interfaces, ("", TCP): sample.tcp_segments_retransmitted}


def _find_grown(node: str, mine: _Growths, others: Sequence[_Growths]) -> Iterator[Sign]:
    for (port, field), growth in mine.counted.items():
        counter = COUNTERS[field]
        if growth < counter.growth_min:
            continue
        theirs = [one.counted[port, field] / one.steps for one in others if (port, field) in one.counted]
        if not theirs:
            continue
        usual = float(np.median(theirs)) * mine.steps
        if growth >= TIMES_MIN * usual:
            whose, of_others = _name(node, port)
            text = f"{whose} counted {growth} {counter.words} within {mine.steps} steps, {of_others} {usual:.0f}"
            yield Sign(counter.kind, text, {f"{field}/{node}/{port}".rstrip("/"): growth}, growth / max(1.0, usual))


def _find_slow_rates(node: str, mine: _Growths, others: Sequence[_Growths]) -> Iterator[Sign]:
    """Find ports whose link has come up at a lower rate than that of most other machines' ports of the name."""
    for port, rate in mine.rates.items():
        theirs = [one.rates[port] for one in others if port in one.rates]
        usual = float(np.median(theirs)) if theirs else 0.0
        if rate < usual:
            whose, of_others = _name(node, port)
            text = f"{whose} ran at {rate / GIGABIT:g} Gb/s, {of_others} at {usual / GIGABIT:g}"
            yield Sign(LINK_ERRORS, text, {f"rate_bits_per_s/{node}/{port}": rate}, math.inf)


def _name(node: str, port: str) -> tuple[str, str]:
    """Return how a sentence names a port (empty: the machine as a whole), and those of the others."""
    if not port:
        return f"node {node}", "the other nodes, at the median,"
    return f"port {port} of node {node}", "the same port of the other nodes, at the median,"
