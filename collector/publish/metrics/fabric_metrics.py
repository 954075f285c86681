"""Metrics of network ports and interfaces, which one rank of each node reads."""

from typing import Final

from rankscope.collector.publish.metrics.measures import (
    INTERFACE_KIND,
    NOT_NEGATIVE,
    PORT,
    PORT_DIRECTION,
    PORT_KIND,
    RATIO,
    Measure,
)
from rankscope.collector.publish.metrics.rank_columns import per_interface_and, per_port_and

_SYSFS: Final = "agent: /sys/class/infiniband (NodeSample), in one rank a node"
_NET: Final = "agent: /sys/class/net (NodeSample), in one rank a node"


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
        "rankscope_port_errors_total", "counter", "", PORT_KIND,
        "Errors of the port's link, by kind: symbol, receive, recovery (of the link), loss (of the link).",
        "symbol_error, port_rcv_errors, link_error_recovery, link_downed", _SYSFS, NOT_NEGATIVE,
        per_port_and(
            {
                ("symbol",): lambda port: port.symbol_errors,
                ("receive",): lambda port: port.receive_errors,
                ("recovery",): lambda port: port.link_recoveries,
                ("loss",): lambda port: port.link_downs,
            }
        ),
    ),
    Measure(
        "rankscope_port_transport_errors_total", "counter", "", PORT_KIND,
        "Packets that were lost, late or refused, by kind: out_of_sequence, ack_timeout, adaptive_retransmission, "
        "receiver_not_ready.",
        "out_of_sequence, local_ack_timeout_err, roce_adp_retrans, rnr_nak_retry_err", _SYSFS, NOT_NEGATIVE,
        per_port_and(
            {
                ("out_of_sequence",): lambda port: port.out_of_sequence,
                ("ack_timeout",): lambda port: port.ack_timeouts,
                ("adaptive_retransmission",): lambda port: port.adaptive_retransmissions,
                ("receiver_not_ready",): lambda port: port.receiver_not_ready,
            }
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
