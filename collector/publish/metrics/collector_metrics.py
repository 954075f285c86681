"""Metrics of the collector itself."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rankscope.collector.publish.metrics.measures import NOT_NEGATIVE, ONE, RATIO, Measure, OfSnapshot
from rankscope.collector.publish.metrics.rank_columns import Number
from rankscope.collector.runs.snapshot import ChannelCounts, Snapshot
from rankscope.collector.valid_answers import LeftOut

_COLLECTOR: Final = "collector: own counters (CollectorCounts)"


def _of_count(read: Callable[[Snapshot], Number]) -> OfSnapshot:
    return OfSnapshot(lambda snapshot: [((), read(snapshot))])


def _of_counts_by_label(read: Callable[[Snapshot], Mapping[str, int]]) -> OfSnapshot:
    return OfSnapshot(lambda snapshot: (((key,), value) for key, value in read(snapshot).items()))


def _of_channels(read: Callable[[ChannelCounts], Number]) -> OfSnapshot:
    return OfSnapshot(
        lambda snapshot: (((name,), read(counts)) for name, counts in snapshot.counts.notifications.items())
    )


def _count_notifications(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], Number]]:
    for name, counts in snapshot.counts.notifications.items():
        for outcome, count in counts.outcomes.items():
            yield (name, outcome), count


def _count_pushes(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], Number]]:
    pushes = snapshot.counts.metric_pushes
    for outcome, count in () if pushes is None else pushes.outcomes.items():
        yield (outcome,), count


def _find_push_success(snapshot: Snapshot) -> Number:
    pushes = snapshot.counts.metric_pushes
    return None if pushes is None else pushes.success_wall_s


COLLECTOR: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_collector_info", "info", "", ("version",),
        "The collector that serves this page.", "always 1", "collector: its package", ONE,
        OfSnapshot(lambda snapshot: [((snapshot.version,), 1)]),
    ),
    Measure(
        "rankscope_frames_refused_total", "counter", "", ("reason",),
        "Frames rejected because they could not be decoded, by reason.", "count by reason", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: snapshot.counts.frames_refused),
    ),
    Measure(
        "rankscope_frames_received_total", "counter", "", (),
        "Frames received, rejected ones included.", "count", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.frames_received),
    ),
    Measure(
        "rankscope_connections", "gauge", "", (),
        "Open connections of ranks, relays and sidecars, including those still authenticating.", "count", _COLLECTOR,
        NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.connections),
    ),
    Measure(
        "rankscope_ingest_stall_max_seconds", "gauge", "seconds", (),
        "Longest recent time in which the collector read nothing while messages may have been waiting.",
        "largest of the last 30 to 60 s", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.read_pause_s),
    ),
    Measure(
        "rankscope_peers_refused_total", "counter", "", ("reason",),
        "Connections refused or closed, Hellos refused, and messages in the name of another peer's rank, by reason.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: snapshot.counts.peers_refused),
    ),
    Measure(
        "rankscope_replies_failed_total", "counter", "", ("reason",),
        "Replies that could not be sent because the peer is gone or does not read, by reason.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: snapshot.counts.answers_unsent),
    ),
    Measure(
        "rankscope_relays", "gauge", "", (),
        "Relays that have registered and are reachable.", "count", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.relays),
    ),
    Measure(
        "rankscope_relay_batches_total", "counter", "", (),
        "Batches of frames received from relays.", "count", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.relay_batches),
    ),
    Measure(
        "rankscope_relay_frames_dropped_total", "counter", "", ("reason",),
        "Frames that relays did not forward, as counted by the relays; the ranks keep and resend them.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: snapshot.counts.relay_dropped),
    ),
    Measure(
        "rankscope_relay_refused_total", "counter", "", ("reason",),
        "Frames and connections of ranks that relays refused, as counted by the relays.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: snapshot.counts.relay_refused),
    ),
    Measure(
        "rankscope_http_refused_total", "counter", "", ("reason",),
        "HTTP requests refused: busy, response_memory_full, streams_busy, unauthorized, foreign_host or tls_failed. "
        "Connections closed: slow_request, request_displaced or unread_response. Event streams: slow_reader for each "
        "stream that was ended, snapshot_skipped for each snapshot a reader was too slow to receive.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: snapshot.counts.http_refused),
    ),
    Measure(
        "rankscope_runs_evicted_total", "counter", "", (),
        "Ended runs removed from memory to make room for others.", "count", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.runs_evicted),
    ),
    Measure(
        "rankscope_collector_errors_total", "counter", "", ("part",),
        "Errors inside the collector, by part; other runs were not affected.",
        "count by part", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: snapshot.counts.contained_errors),
    ),
    Measure(
        "rankscope_impossible_numbers_total", "counter", "", ("kind",),
        "Numbers that could not be, such as a loss above the time it was lost of: left out, and logged once with what "
        'they were made of. Kind "answer": met where the API answers.',
        "count by kind", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: {**snapshot.counts.impossible, **LeftOut.read()}),
    ),
    Measure(
        "rankscope_collector_absent_seconds_total", "counter", "seconds", (),
        "Time in which the collector did not run: it was stopped, or its machine was suspended or too busy.",
        "sum over ticks of how late each was, from 1 s on", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.absent_s),
    ),
    Measure(
        "rankscope_captures_total", "counter", "", ("state",),
        "Captures that have ended, complete or failed, and orders that were refused; those without the control token "
        "are in rankscope_http_refused_total.",
        "count by state", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: snapshot.counts.captures),
    ),
    Measure(
        "rankscope_capture_pause_seconds_total", "counter", "seconds", (),
        "Time for which captures have stopped training.",
        "sum over captures of the longest pause of their ranks", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.capture_pause_s),
    ),
    Measure(
        "rankscope_capture_bytes_total", "counter", "bytes", (),
        "Size of the trace files that ranks have delivered, compressed.", "sum over files", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.capture_bytes),
    ),
    Measure(
        "rankscope_store_writable", "gauge", "", (),
        "1 while the store is writable, 0 while it is not.", "0 or 1", _COLLECTOR, RATIO,
        _of_count(lambda snapshot: snapshot.counts.store_writable),
    ),
    Measure(
        "rankscope_store_lost_total", "counter", "", ("reason",),
        "Times the file of the store was removed, replaced, truncated or damaged while the collector had it open.",
        "count by reason", _COLLECTOR, NOT_NEGATIVE,
        _of_counts_by_label(lambda snapshot: snapshot.counts.stores_lost),
    ),
    Measure(
        "rankscope_store_used_bytes", "gauge", "bytes", (),
        "Size of the data in the store.", "pages in use * page size", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.store_bytes),
    ),
    Measure(
        "rankscope_history_rows_dropped_total", "counter", "", (),
        "History rows dropped while the store was not writable.", "count", _COLLECTOR, NOT_NEGATIVE,
        _of_count(lambda snapshot: snapshot.counts.history_dropped),
    ),
    Measure(
        "rankscope_notifications_total", "counter", "", ("channel", "outcome"),
        "Tries to notify a receiver of an incident: delivered; retried, a failed try that is repeated; failed, an "
        "event that is given up; dropped, one whose incident was forgotten before.",
        "count by outcome", _COLLECTOR, NOT_NEGATIVE,
        OfSnapshot(_count_notifications),
    ),
    Measure(
        "rankscope_notifications_waiting", "gauge", "", ("channel",),
        "Events about incidents that are due and that a receiver has not got yet.", "count", _COLLECTOR, NOT_NEGATIVE,
        _of_channels(lambda counts: counts.waiting),
    ),
    Measure(
        "rankscope_notification_success_timestamp_seconds", "gauge", "seconds", ("channel",),
        "When the last event was delivered to a receiver, since 1970; absent before the first one.",
        "collector's wall clock", _COLLECTOR, NOT_NEGATIVE,
        _of_channels(lambda counts: counts.success_wall_s),
    ),
    Measure(
        "rankscope_otlp_pushes_total", "counter", "", ("outcome",),
        "Pushes of metrics by OTLP: delivered; failed, the receiver did not accept one of its requests; skipped, the "
        "push before took longer than the interval.",
        "count by outcome", _COLLECTOR, NOT_NEGATIVE,
        OfSnapshot(_count_pushes),
    ),
    Measure(
        "rankscope_otlp_push_success_timestamp_seconds", "gauge", "seconds", (),
        "When metrics were last pushed by OTLP, since 1970; absent before the first time.",
        "collector's wall clock", _COLLECTOR, NOT_NEGATIVE,
        _of_count(_find_push_success),
    ),
)  # fmt: skip
