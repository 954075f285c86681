"""Metrics of the collector itself."""

from typing import Final

from rankscope.measure.exported import NOT_NEGATIVE, ONE, RATIO, Measure

_COLLECTOR: Final = "collector: own counters (CollectorCounts)"


COLLECTOR: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_collector_info", "info", "", ("version",),
        "The collector that serves this page.", "always 1", "collector: its package", ONE,
    ),
    Measure(
        "rankscope_frames_refused_total", "counter", "", ("reason",),
        "Frames rejected because they could not be decoded, by reason.", "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_frames_received_total", "counter", "", (),
        "Frames received, rejected ones included.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_connections", "gauge", "", (),
        "Open connections of ranks, relays and sidecars, including those still authenticating.", "count", _COLLECTOR,
        NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_ingest_stall_max_seconds", "gauge", "seconds", (),
        "Longest recent time in which the collector read nothing while messages may have been waiting.",
        "largest of the last 30 to 60 s", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_peers_refused_total", "counter", "", ("reason",),
        "Connections refused or closed, Hellos refused, and messages in the name of another peer's rank, by reason.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_replies_failed_total", "counter", "", ("reason",),
        "Replies that could not be sent because the peer is gone or does not read, by reason.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_relays", "gauge", "", (),
        "Relays that have registered and are reachable.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_relay_batches_total", "counter", "", (),
        "Batches of frames received from relays.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_relay_frames_dropped_total", "counter", "", ("reason",),
        "Frames that relays did not forward, as counted by the relays; the ranks keep and resend them.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_relay_refused_total", "counter", "", ("reason",),
        "Frames and connections of ranks that relays refused, as counted by the relays.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_http_refused_total", "counter", "", ("reason",),
        "HTTP requests refused: busy, response_memory_full, streams_busy, unauthorised, foreign_host or tls_failed. "
        "Connections closed: slow_request, request_displaced or unread_response. Event streams: slow_reader for each "
        "stream that was ended, snapshot_skipped for each snapshot a reader was too slow to receive.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_runs_evicted_total", "counter", "", (),
        "Ended runs removed from memory to make room for others.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_collector_errors_total", "counter", "", ("part",),
        "Errors inside the collector, by part; other runs were not affected.",
        "count by part", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_store_writable", "gauge", "", (),
        "1 while the store is writable, 0 while it is not.", "0 or 1", _COLLECTOR, RATIO,
    ),
    Measure(
        "rankscope_store_lost_total", "counter", "", ("reason",),
        "Times the file of the store was removed, replaced, truncated or damaged while the collector had it open.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_store_used_bytes", "gauge", "bytes", (),
        "Size of the data in the store.", "pages in use * page size", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_history_rows_dropped_total", "counter", "", (),
        "History rows dropped while the store was not writable.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
)  # fmt: skip
