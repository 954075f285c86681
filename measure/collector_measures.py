"""The measures of the collector itself."""

from typing import Final

from rankscope.measure.exported import NOT_NEGATIVE, ONE, RATIO, Measure

_COLLECTOR: Final = "collector: about itself (CollectorCounts)"


COLLECTOR: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_collector_info", "info", "", ("version",),
        "The collector that this page is of.", "always 1", "collector: its package", ONE,
    ),
    Measure(
        "rankscope_frames_refused_total", "counter", "", ("reason",),
        "Frames the collector could not take for a message.", "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_frames_received_total", "counter", "", (),
        "Frames that have come in, refused ones included.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_connections", "gauge", "", (),
        "Open connections of ranks, relays and sidecars, and of whoever is not let in yet.", "count", _COLLECTOR,
        NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_ingest_stall_max_seconds", "gauge", "seconds", (),
        "The longest time in which the collector read nothing while messages may have waited.",
        "largest of the last 30 to 60 s", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_peers_refused_total", "counter", "", ("reason",),
        "Connections refused or cut off, Hellos refused, and messages in the name of somebody else's rank.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_replies_failed_total", "counter", "", ("reason",),
        "Answers whose agent is gone or does not read.", "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_relays", "gauge", "", (),
        "Relays that have said Hello and can be reached.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_relay_batches_total", "counter", "", (),
        "Batches of frames taken in from relays.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_relay_frames_dropped_total", "counter", "", ("reason",),
        "Frames that relays did not pass on, by their own count; the ranks hold them and send them again.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_relay_refused_total", "counter", "", ("reason",),
        "Frames and connections of ranks that relays refused, by their own count.",
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
        "Runs that had ended and were let go to make room.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_collector_errors_total", "counter", "", ("part",),
        "Errors of the collector's own parts; the other runs were not affected.",
        "count by part", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_store_writable", "gauge", "", (),
        "1 while the collector's store can be written to.", "0 or 1", _COLLECTOR, RATIO,
    ),
    Measure(
        "rankscope_store_lost_total", "counter", "", ("reason",),
        "How often the store's file was lost while the collector had it open: removed, replaced, truncated or damaged.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_store_used_bytes", "gauge", "bytes", (),
        "What the collector's store holds.", "pages in use * page size", _COLLECTOR, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_history_rows_dropped_total", "counter", "", (),
        "Lines of history that gave way while the store could not be written to.", "count", _COLLECTOR, NOT_NEGATIVE,
    ),
)  # fmt: skip
