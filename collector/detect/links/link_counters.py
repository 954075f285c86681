"""Find what the counters of network ports say about a slow link between machines: `link_errors`, `congestion` or
`link_rate`. Pure.

This is evidence beside a slow transfer, never a finding of its own: ports count errors and waiting in healthy clusters
too. So a counter speaks only if it grew on an accused machine while the link was slow, by TIMES_MIN times the median of
the ports of the same name on other machines, by more than a healthy port counts, and at PAST_TIMES_MIN times its own
rate before, where that is known.

    link_errors    the port corrects or drops what it receives, or loses its link
    congestion     data waits to be sent, arrives marked, or is lost on the way and sent again
    link_rate      the port's link has come up at a lower rate than those of the others

Packets are lost, and sent again, because of bad cables as well; then the port at the other end counts the errors. Where
a machine has an active InfiniBand or RoCE port, that moves the data of a training: its interfaces and TCP, which serve
everything else, say nothing then.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.machine_growth import Machines, SampledStretch, find_growth, find_stretch_before, spread
from rankscope.measure.records import NodeSample, PortSample

LINK_ERRORS: Final = "link_errors"
CONGESTION: Final = "congestion"
LINK_RATE: Final = "link_rate"
SUGGESTS: Final[Mapping[str, str]] = {
    LINK_ERRORS: "sign of link errors: ",
    CONGESTION: "sign of congestion: ",
}
"""What a counter suggests, by kind; a rate suggests nothing beyond itself."""
TIMES_MIN: Final = 10.0
"""Ratio to the other machines' ports: what all ports count is the way of this network, and no reason of one link."""
PAST_TIMES_MIN: Final = 2.0
"""Ratio to what the port itself counted a step before: what it always counts did not make its link slow now."""
NAMED_MAX: Final = 4
"""Counters named for one link and kind, those farthest above the others first."""
ACCUSED_MAX: Final = 64
"""Machines of one location that are looked at, the first by name. With more of them the slow groups single out no link,
and each costs the pass a millisecond."""
OTHERS_MAX: Final = 32
"""Other machines, evenly spread, that each is compared with."""
LOCATIONS_MAX: Final = 16
"""Slow links of one pass whose ports are looked at."""
GIGABIT: Final = 1000**3
SHOWN_EXACTLY_MIN: Final = 10
"""Least number that a sentence shows without decimals: 0.4 is not 0."""


class LinkCounter(NamedTuple):
    """A counter: what it indicates, its name in a sentence for one and for several, and the least growth that says
    something: a healthy port has a few bit errors an hour (InfiniBand allows one in 1e12 bits), and waits for a while
    in every step.
    """

    kind: str
    one: str
    several: str
    growth_min: int


PORT_COUNTERS: Final[Mapping[str, LinkCounter]] = {
    "symbol_errors": LinkCounter(LINK_ERRORS, "symbol error", "symbol errors", 10),
    "receive_errors": LinkCounter(LINK_ERRORS, "receive error", "receive errors", 10),
    "link_recoveries": LinkCounter(LINK_ERRORS, "recovery of its link", "recoveries of its link", 1),
    "link_downs": LinkCounter(LINK_ERRORS, "loss of its link", "losses of its link", 1),
    "xmit_wait": LinkCounter(CONGESTION, "tick of waiting to send", "ticks of waiting to send", 1_000_000),
    "cnps_handled": LinkCounter(
        CONGESTION, "congestion notification received", "congestion notifications received", 1000
    ),
    "cnps_sent": LinkCounter(CONGESTION, "congestion notification sent", "congestion notifications sent", 1000),
    "out_of_sequence": LinkCounter(CONGESTION, "packet out of sequence", "packets out of sequence", 100),
    "adaptive_retransmissions": LinkCounter(CONGESTION, "adaptive retransmission", "adaptive retransmissions", 100),
    "ack_timeouts": LinkCounter(CONGESTION, "timeout of an acknowledgement", "timeouts of acknowledgements", 10),
}
"""By field of PortSample. A receiver that is not ready (`receiver_not_ready`) is a slow process, and no property of the
network.
"""
INTERFACE_COUNTERS: Final[Mapping[str, LinkCounter]] = {
    "errors": LinkCounter(LINK_ERRORS, "error", "errors", 10),
    "drops": LinkCounter(CONGESTION, "dropped packet", "dropped packets", 100),
}
"""By field of InterfaceSample."""
TCP: Final = "tcp_segments_retransmitted"
COUNTERS: Final[Mapping[str, LinkCounter]] = {
    **PORT_COUNTERS,
    **INTERFACE_COUNTERS,
    TCP: LinkCounter(CONGESTION, "TCP segment sent again", "TCP segments sent again", 100),
}


class Sign(NamedTuple):
    """A counter that grew on one machine and not on the others: as a text, and as numbers for the evidence. `ratio` to
    the others orders signs.
    """

    kind: str
    text: str
    evidence: Mapping[str, float]
    ratio: float

    def write(self) -> str:
        """Return what it says about the link."""
        return f"{SUGGESTS.get(self.kind, '')}{self.text}"


class _Place(NamedTuple):
    """A port, an interface, or with empty names the machine itself."""

    what: str = ""
    name: str = ""


Counts = Mapping[tuple[_Place, str], int | None]
"""What a machine has counted, by place and field."""


class _Growths(NamedTuple):
    """What one machine counted over some steps, and the rate of each active port at the end, in bits per second."""

    steps: int
    counted: Mapping[tuple[_Place, str], int]
    rates: Mapping[str, int]


class LinkCounters:
    """The counters of the machines of a run in one detection pass. Keeps what it has read: slow links share machines,
    and are compared with the same others. The machines are looked for with the first slow link: most passes have none.
    """

    def __init__(self, find_machines: Callable[[], Machines]) -> None:
        self._find_machines = find_machines
        self._grown: dict[tuple[str, int], _Growths | None] = {}
        self._locations_left = LOCATIONS_MAX

    def find_signs(self, accused: Iterable[str], from_step: int) -> dict[str, list[Sign]]:
        """Return by kind what indicates the reason of a slow link of accused machines, the clearest sign first; without
        a kind that nothing indicates, and nothing after LOCATIONS_MAX calls. Machines without two samples since that
        step are not judged, nor is a port that no other machine has.
        """
        if not self._locations_left:
            return {}
        self._locations_left -= 1
        accused = tuple(accused)[:ACCUSED_MAX]
        others = spread(sorted(self._find_machines().counts.keys() - set(accused)), OTHERS_MAX)
        read = {node: self._read(node, from_step) for node in (*accused, *others)}
        grown = {node: growths for node, growths in read.items() if growths is not None}
        found: dict[str, list[Sign]] = {}
        for node in accused:
            elsewhere = spread([growths for name, growths in grown.items() if name != node], OTHERS_MAX)
            for sign in self._find_signs_of(node, grown[node], elsewhere, from_step) if node in grown else ():
                found.setdefault(sign.kind, []).append(sign)
        return {kind: sorted(signs, key=lambda sign: -sign.ratio)[:NAMED_MAX] for kind, signs in sorted(found.items())}

    def _read(self, node: str, from_step: int) -> _Growths | None:
        key = node, from_step
        if key not in self._grown:
            stretch = self._find_machines().find_stretch(node, from_step)
            self._grown[key] = None if stretch is None else _read(stretch)
        return self._grown[key]

    def _find_signs_of(self, node: str, mine: _Growths, others: Sequence[_Growths], from_step: int) -> Iterator[Sign]:
        yield from _find_slow_rates(node, mine, others)
        signs = dict(_find_grown(node, mine, others))
        if not signs:
            return
        before = find_stretch_before(self._find_machines().counts[node], from_step)
        past = None if before is None else _read(before)
        for key, sign in signs.items():
            if past is None or key not in past.counted or _rate(mine, key) >= PAST_TIMES_MIN * _rate(past, key):
                yield sign


def _rate(growths: _Growths, key: tuple[_Place, str]) -> float:
    return growths.counted[key] / growths.steps


def _read(stretch: SampledStretch) -> _Growths:
    before, after = _flatten(stretch.first), _flatten(stretch.last)
    growths = {key: find_growth(before.get(key), value) for key, value in after.items()}
    return _Growths(
        stretch.steps,
        {key: growth for key, growth in growths.items() if growth is not None},
        {port.name: rate for port in _active(stretch.last) if (rate := port.rate_bits_per_s or 0) > 0},
    )


def _active(sample: NodeSample) -> Sequence[PortSample]:
    return [port for port in sample.ports if port.is_active]


def _flatten(sample: NodeSample) -> Counts:
    """Return the counts of the active ports; on a machine without one those of its interfaces and of TCP."""
    active = _active(sample)
    if active:
        return {(_Place("port", port.name), field): getattr(port, field) for port in active for field in PORT_COUNTERS}
    counts: dict[tuple[_Place, str], int | None] = {
        (_Place("interface", one.name), field): getattr(one, field)
        for one in sample.interfaces
        for field in INTERFACE_COUNTERS
    }
    return {**counts, (_Place(), TCP): sample.tcp_segments_retransmitted}


def _find_grown(node: str, mine: _Growths, others: Sequence[_Growths]) -> Iterator[tuple[tuple[_Place, str], Sign]]:
    for key, growth in mine.counted.items():
        place, field = key
        counter = COUNTERS[field]
        theirs = [_rate(one, key) for one in others if key in one.counted] if growth >= counter.growth_min else []
        if not theirs:
            continue
        usual = float(np.median(theirs)) * mine.steps
        if growth >= TIMES_MIN * usual:
            whose, of_others = _name(node, place, len(theirs))
            words = counter.one if growth == 1 else counter.several
            steps = f"{mine.steps} step{'s' if mine.steps > 1 else ''}"
            text = f"{growth} {words} on {whose} in {steps} ({of_others}: {_write_number(usual)})"
            evidence = {f"{field}/{node}/{place.name}".rstrip("/"): growth}
            yield key, Sign(counter.kind, text, evidence, growth / max(1.0, usual))


def _find_slow_rates(node: str, mine: _Growths, others: Sequence[_Growths]) -> Iterator[Sign]:
    """Find ports whose link has come up at a lower rate than that of most other machines' ports of the name."""
    for port, rate in mine.rates.items():
        theirs = [one.rates[port] for one in others if port in one.rates]
        usual = float(np.median(theirs)) if theirs else 0.0
        if rate < usual:
            whose, of_others = _name(node, _Place("port", port), len(theirs))
            text = f"{whose} at {rate / GIGABIT:g} Gb/s ({of_others}: {usual / GIGABIT:g})"
            evidence = {f"rate_bits_per_s/{node}/{port}": rate}
            yield Sign(LINK_RATE, text, evidence, math.inf)


def _write_number(number: float) -> str:
    """Write a median of counts.

    >>> _write_number(0.0), _write_number(0.4), _write_number(402.3)
    ('0', '0.4', '402')
    """
    return f"{number:.0f}" if number >= SHOWN_EXACTLY_MIN else f"{number:.2g}"


def _name(node: str, place: _Place, others: int) -> tuple[str, str]:
    """Return how a sentence names a place of a node, and those of the others."""
    nodes = "other nodes" if others > 1 else "the other node"
    if not place.what:
        return f"node {node}", f"median of {nodes}" if others > 1 else nodes
    same = f"the same {place.what} on {nodes}"
    return f"{place.what} {place.name} of node {node}", f"median of {same}" if others > 1 else same
