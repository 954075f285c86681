"""Say what ranks copy from the host's memory to their GPUs (docs/copies.md). Pure."""

from collections.abc import Iterable

from rankscope.collector.runs.ratios import exposed_host_copy_ratio
from rankscope.measure.records import HostCopies, Totals, WindowBreakdown, add_host_copies
from rankscope.measure.units import format_bytes, format_duration, format_share


def describe_host_copies(windows: WindowBreakdown | None) -> str:
    """Return the copies of a rank's last full windows as text, the mean of a step; empty where they are not known.

    >>> copies = HostCopies(count=2, duration_ns=4_000_000, exposed_ns=2_000_000, bytes=40_000_000)
    >>> window = WindowBreakdown(first_step=1, step_count=2, window_ns=100_000_000, compute_ns=90_000_000,
    ...     communication_ns=0, overlap_ns=0, exposed_communication_ns=0, copy_ns=2_000_000, idle_ns=8_000_000,
    ...     host_copies=copies)
    >>> describe_host_copies(window)
    '19.1 MiB per step in 2.0 ms (10.0 GB/s), 1.0 ms of it exposed (2.0 % of the time); none from pageable memory'
    """
    copies = None if windows is None else windows.host_copies
    if windows is None or copies is None or windows.step_count <= 0:
        return ""
    if not copies.count:
        return "none"
    steps, share = windows.step_count, exposed_host_copy_ratio(windows)
    size = "" if copies.unsized else f"{format_bytes(copies.bytes / steps)} per step in "
    time = f"{size}{format_duration(copies.duration_ns / steps)}{' per step' if copies.unsized else ''}"
    of_time = "" if share is None else f" ({format_share(share)} of the time)"
    exposed = f"{format_duration(copies.exposed_ns / steps)} of it exposed{of_time}"
    return f"{time}{_describe_rate(copies)}, {exposed}; {_describe_memory(copies)}"


def describe_copies_of_run(totals: Iterable[Totals]) -> str:
    """Return the copies in all windows of these rank processes as text; empty where there are none.

    >>> describe_copies_of_run([Totals(window_ns=50, host_copies=HostCopies(count=1, exposed_ns=2, untold=1))])
    'exposed 4.0 % of the time; pinned or pageable not known'
    """
    known = [(one.host_copies, one.window_ns) for one in totals if one.host_copies is not None]
    copies, window_ns = add_host_copies(one for one, _ in known), sum(ns for _, ns in known)
    if copies is None or not copies.count or window_ns <= 0:
        return ""
    share = format_share(copies.exposed_ns / window_ns)
    return f"exposed {share} of the time{_describe_rate(copies)}; {_describe_memory(copies)}"


def _describe_rate(copies: HostCopies) -> str:
    """Return the bytes per second while a copy ran; empty where the bytes or the time are not known."""
    # Bytes per nanosecond are GB per second.
    return "" if copies.unsized or not copies.duration_ns else f" ({copies.bytes / copies.duration_ns:.1f} GB/s)"


def _describe_memory(copies: HostCopies) -> str:
    if copies.untold:
        return "pinned or pageable not known"
    part, whole, unit = copies.pageable_bytes, copies.bytes, "bytes"
    if copies.unsized or not whole:
        part, whole, unit = copies.pageable_ns, copies.duration_ns, "copying time"
    if not part:
        return "none from pageable memory"
    if part >= whole:
        return "all from pageable memory"
    return f"{format_share(part / whole)} of the {unit} from pageable memory"
