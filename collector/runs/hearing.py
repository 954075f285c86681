"""Tell a run that is gone from a collector that hears nobody: its network is cut, or it did not run itself. Pure.

That no rank of a run reports any more says something of the run only if the collector would have heard it. It would, if
it heard others meanwhile: other runs, or a rank of the run that said goodbye. When all fall silent at once, what they
have in common is the collector. Then no run is said to be lost, and there is one finding about all of them.

    last heard of the run ... nothing from anybody for PAUSE_SHARE of `rank_silent_s`  -> nothing heard, not known
                          ... others heard, later than that                            -> the run is lost
                          ... then others come back, the run not, for `rank_silent_s`  -> the run is lost
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.runs.run_end import NOT_HEARD, RunEnd
from rankscope.collector.runs.run_end_words import format_utc

NOTHING_HEARD: Final = "nothing_heard"
"""Kind and cause of the finding about a collector that no rank reports to any more."""
PAUSE_SHARE: Final = 0.5
"""Share of `rank_silent_s` without any message after which the collector is taken not to hear: ranks report once a
second, each at another moment, and 4 s apart at most."""


class Heard(NamedTuple):
    """What the collector had heard of anybody: the last message, and since when it hears without a pause."""

    last_collector_ns: int = 0
    since_collector_ns: int = 0

    def hear(self, last_collector_ns: int, silent_ns: int) -> "Heard":
        """Return this when the last message of anybody was at that time.

        >>> Heard(100, 0).hear(130, silent_ns=20), Heard(100, 0).hear(105, silent_ns=20)
        (Heard(last_collector_ns=130, since_collector_ns=130), Heard(last_collector_ns=105, since_collector_ns=0))
        """
        if last_collector_ns <= self.last_collector_ns:
            return self
        has_paused = last_collector_ns - self.last_collector_ns > PAUSE_SHARE * silent_ns
        return Heard(last_collector_ns, last_collector_ns if has_paused else self.since_collector_ns)

    def shows_gone(self, last_of_run_ns: int, now_collector_ns: int, silent_ns: int) -> bool:
        """Return whether a run is gone that was last heard of at that time, and not the collector's hearing.

        >>> Heard(100, 0).shows_gone(80, 100, silent_ns=20), Heard(100, 0).shows_gone(95, 115, silent_ns=20)
        (True, False)
        >>> [Heard(130, 120).shows_gone(80, now_ns, silent_ns=20) for now_ns in (130, 140)]
        [False, True]
        """
        pause_ns = PAUSE_SHARE * silent_ns
        if self.last_collector_ns <= last_of_run_ns + pause_ns:
            return False
        return (
            self.since_collector_ns <= last_of_run_ns + pause_ns
            or now_collector_ns - self.since_collector_ns >= silent_ns
        )


class SilentRun(NamedTuple):
    """A run all of whose ranks are silent, with its ranks and their nodes."""

    run: str
    end: RunEnd
    ranks: int
    nodes: Collection[str]


def find_nothing_heard(silent: Sequence[SilentRun], *, is_anybody_heard: bool) -> Mapping[str, Finding]:
    """Return the finding about runs of which nothing is heard, with the id of the run that it is kept with, the
    largest.
    There is none while anybody is heard.
    """
    unheard = sorted((one for one in silent if one.end.reason == NOT_HEARD), key=lambda one: (-one.ranks, one.run))
    if is_anybody_heard or not unheard:
        return {}
    since = max((one.end.ended_wall_s for one in unheard if one.end.ended_wall_s is not None), default=None)
    ranks, nodes = sum(one.ranks for one in unheard), {node for one in unheard for node in one.nodes}
    machines = f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}"
    of_all = f"{ranks} rank{'' if ranks == 1 else 's'} on {machines}"
    at = "" if since is None else f" since {format_utc(since)}"
    what = f"nothing heard of {f'{len(unheard)} runs' if len(unheard) > 1 else 'the run'}{at}"
    why = "all silent at once: the network or the machine of the collector itself"
    if len(unheard) == 1:
        why = "no other run reports here, so it may have ended, or the network between may be cut"
    finding = Finding(
        kind=NOTHING_HEARD,
        cause=NOTHING_HEARD,
        what=what,
        why=why,
        also=(f"{of_all}; whether they go on: not known",),
        suggestion=suggest(NOTHING_HEARD, NOTHING_HEARD),
        evidence={"runs": float(len(unheard)), "ranks": float(ranks), "nodes": float(len(nodes))},
    )
    return {unheard[0].run: finding}
