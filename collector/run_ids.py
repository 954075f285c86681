"""Make and parse run ids: a name with the time of the run's first Hello, `bert@20261125T103005Z` (UTC).

Launchers reuse names (`RANKSCOPE_RUN`, a Slurm job that is started each night). The id distinguishes these runs
everywhere: in the state, the store, the API and the incidents. The collector appends the time to every name, so no name
that a user may choose can be the id of another run, and the ids of one name sort by their start. In a store that
several collectors share the name of the collector follows: runs of one name may begin in the same second on two
clusters.
"""

import difflib
import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Final

from rankscope.measure.errors import UnavailableError

_ID: Final = re.compile(r"(.+)@(\d{8}T\d{6}Z)(?:\.[A-Za-z0-9_-]+)?", re.DOTALL)
_BEGUN: Final = "%Y%m%dT%H%M%SZ"
NEAR_AMONG_MAX: Final = 1_000
"""Runs among which a near name is looked for."""
SHOWN_MAX: Final = 5
ASKED_SHOWN_MAX: Final = 80
"""Characters of a name that nobody knows."""


def make_run_id(name: str, wall_s: float, *, latest_id: str | None = None, collector: str = "") -> str:
    """Return the id of a run that begins now, greater than `latest_id`, the id of the previous run of this name, which
    this collector has seen, and ends with its name where it has one.

    >>> make_run_id("bert", 0.0)
    'bert@19700101T000000Z'
    >>> make_run_id("bert", 0.0, latest_id="bert@19700101T000000Z")
    'bert@19700101T000001Z'
    >>> make_run_id("bert", 0.0, collector="west"), read_run_name("bert@19700101T000000Z.west")
    ('bert@19700101T000000Z.west', 'bert')
    """
    begun = datetime.fromtimestamp(max(0.0, wall_s), timezone.utc).replace(microsecond=0)
    before = None if latest_id is None else _read_begun(latest_id)
    if before is not None:
        begun = max(begun, before + timedelta(seconds=1))
    return f"{name}@{begun.strftime(_BEGUN)}{'.' * bool(collector)}{collector}"


def read_run_name(run_id: str) -> str:
    """Return the name of the run with this id. Text without the form of an id, as in an early store, is a name.

    >>> read_run_name("bert@20261125T103005Z"), read_run_name("bert"), read_run_name("a@b")
    ('bert', 'bert', 'a@b')
    """
    parsed = _ID.fullmatch(run_id)
    return run_id if parsed is None else parsed[1]


def choose_run_id(asked: str, known: Iterable[str]) -> str | None:
    """Return the id among `known` that `asked` names: an id, or a name, which is the latest run of that name. None when
    there is none.

    >>> known = ["bert@20261125T103005Z", "bert@20261125T110000Z", "t5@20261125T103005Z"]
    >>> choose_run_id("bert", known), choose_run_id("bert@20261125T103005Z", known), choose_run_id("gpt", known)
    ('bert@20261125T110000Z', 'bert@20261125T103005Z', None)
    """
    ids = set(known)
    if asked in ids and read_run_name(asked) != asked:
        return asked
    return max((one for one in ids if read_run_name(one) == asked), default=asked if asked in ids else None)


def find_run_id(asked: str, known: Iterable[str], holder: str) -> str:
    """Return the id as `choose_run_id` does. Raises UnavailableError where there is none, as `describe_unknown_run`."""
    ids = list(known)
    found = choose_run_id(asked, ids)
    if found is None:
        raise UnavailableError(describe_unknown_run(asked, ids, holder))
    return found


def describe_unknown_run(asked: str, known: Iterable[str], holder: str) -> str:
    r"""Return the sentence, the same everywhere, about a run that `holder` does not know: a near name, else those
    it has.

    >>> known = ["bert@20261125T103005Z", "bert@20261125T110000Z", "t5@20261125T103005Z"]
    >>> print(describe_unknown_run("brt", known, "runs.db"), describe_unknown_run("gpt", known, "runs.db"), sep="\n")
    no run 'brt' is known to runs.db. Did you mean 'bert'?
    no run 'gpt' is known to runs.db. It has 'bert', 't5'.
    """
    ids = list(known)[:NEAR_AMONG_MAX]
    names = list(dict.fromkeys(map(read_run_name, ids)))
    near = difflib.get_close_matches(asked[:ASKED_SHOWN_MAX], [*names, *ids], n=1)
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    has = f"It has {', '.join(map(repr, names[:SHOWN_MAX]))}{more}." if names else "It has none yet."
    cure = f"Did you mean {near[0]!r}?" if near else has
    return f"no run {asked[:ASKED_SHOWN_MAX]!r} is known to {holder}. {cure}"


def name_run(name: str, run_id: str) -> str:
    """Return a text that names a run among several of one name: its name, and its id where that is another.

    >>> name_run("bert", "bert@20261125T103005Z"), name_run("bert", "bert")
    ('bert (bert@20261125T103005Z)', 'bert')
    """
    return name if run_id in {"", name} else f"{name} ({run_id})"


def _read_begun(run_id: str) -> datetime | None:
    parsed = _ID.fullmatch(run_id)
    if parsed is None:
        return None
    try:
        return datetime.strptime(parsed[2], _BEGUN).replace(tzinfo=timezone.utc)
    except ValueError:  # a name with digits that are no date
        return None
