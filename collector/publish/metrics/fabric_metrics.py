"""Metrics of network ports and interfaces, which one rank of each node reads."""

from collections.abc import Callable
from typing import Final

from rankscope.collector.publish.metrics.measures import (
    INTERFACE_KIND,
    NOT_NEGATIVE,
    PORT,
    PORT_DIRECTION,
    RATIO,
    Measure,
)
from rankscope.collector.publish.metrics.rank_columns import Number, per_interface_and, per_port_and
from rankscope.measure.records import PortSample

_SYSFS: Final = "agent: /sys/class/infiniband (NodeSample), in one rank a node"
_NET: Final = "agent: /sys/class/net (NodeSample), in one rank a node"


def _sum(*fields: str) -> Callable[[PortSample], Number]:
    """Return the reader of the sum of those counters that the port has; None where it has none of them."""

    def read(port: PortSample) -> Number:
        known = [count for field in fields if (count := getattr(port, field)) is not None]
        return sum(known) if known else None

    return read


FABRIC: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_port_up", "gauge", "", PORT,
        "1 while the InfiniBand or RoCE port carries data, 0 while it does not.", "1 if its state is ACTIVE", _SYSFS,
        RATIO,
        per_port_and({(): lambda port: port.is_active}),
    ),
    Measure(
        "rankscope_port_bytes_total", "counter", "bytes", PORT_DIRECTION,
        "Data sent (tx) and received (rx) by the InfiniBand or RoCE port, of all that use it.",
        "port_xmit_data * 4, port_rcv_data * 4", _SYSFS, NOT_NEGATIVE,
        per_port_and({("tx",): lambda port: port.tx_bytes, ("rx",): lambda port: port.rx_bytes}),
    ),
    Measure(
        "rankscope_port_errors_total", "counter", "", PORT,
        "Errors of the port's link: symbol and receive errors, recoveries and losses of the link.",
        "symbol_error + port_rcv_errors + link_error_recovery + link_downed", _SYSFS, NOT_NEGATIVE,
        per_port_and({(): _sum("symbol_errors", "receive_errors", "link_recoveries", "link_downs")}),
    ),
    Measure(
        "rankscope_port_transport_errors_total", "counter", "", PORT,
        "Packets that were lost, late or refused: out of sequence, timeouts of acknowledgements, adaptive "
        "retransmissions, receivers that were not ready.",
        "out_of_sequence + local_ack_timeout_err + roce_adp_retrans + rnr_nak_retry_err", _SYSFS, NOT_NEGATIVE,
        per_port_and(
            {(): _sum("out_of_sequence", "ack_timeouts", "adaptive_retransmissions", "receiver_not_ready")}
        ),
    ),
    Measure(
        "rankscope_port_transmit_wait_ticks_total", "counter", "", PORT,
        "Ticks in which the port had data to send and could not; how long a tick is depends on the card.",
        "port_xmit_wait", _SYSFS, NOT_NEGATIVE,
        per_port_and({(): lambda port: port.xmit_wait}),
    ),
    Measure(
        "rankscope_port_congestion_notifications_total", "counter", "", PORT,
        "Congestion notifications of RoCE that the port received and slowed down for.", "rp_cnp_handled", _SYSFS,
        NOT_NEGATIVE,
        per_port_and({(): lambda port: port.cnps_handled}),
    ),
    Measure(
        "rankscope_interface_errors_total", "counter", "", INTERFACE_KIND,
        "Packets that a network interface lost in both directions, by kind: error, drop.",
        "rx_errors + tx_errors, rx_dropped + tx_dropped", _NET, NOT_NEGATIVE,
        per_interface_and({("error",): lambda one: one.errors, ("drop",): lambda one: one.drops}),
    ),
)  # fmt: skip
