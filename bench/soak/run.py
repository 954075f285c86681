"""One soak, from the first rank to the last account."""

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from bench.soak.faults import DoneFault, Saboteur
from bench.soak.fleet import LOSSY_RUN, Fleet, LeftDelivered, begun, run_name
from bench.soak.node import LifeAccount
from bench.soak.plan import Shape, plan, shape_of
from bench.soak.watch import ERRORS, PAGE_AGE_S_MAX, Key, Page, Trend, Watch, find_trend, parse_labels
from tests.integration.faults import PageAccount, to_accounts
from tests.integration.serving import DEADLINE_S, wait_for
from tests.integration.small_disk import mounted

STORE_PARTS: Final = frozenset({"history_store", "incident_store"})
"""Parts of the collector that have errors when the disk is full."""

START_S_MAX: Final = 600.0
"""How long 1,024 ranks may take to be there on a machine that is busy with something else: 32 interpreters start."""

DISK_MIB: Final = 512
"""Of the disk under the store: many times what the history of the longest soak takes."""


@dataclass(frozen=True, kw_only=True)
class SoakSettings:
    """What is asked for. Longest fault, scrape interval, how old a page may be, report interval and warm-up are in
    seconds.
    """

    ranks: int
    seconds: float
    seed: int
    fault_s_max: float = 30.0
    scrape_s: float = 15.0
    page_age_s_max: float = PAGE_AGE_S_MAX
    interval_s: float = 1.0
    warm_up_s: float = 120.0
    tell: Callable[[DoneFault], DoneFault] = lambda done: done
    """Told of each fault when it is over, which it gives back."""


class RunAccount(NamedTuple):
    """Of one run at the end: sums over the accounts of its ranks, and its restarts."""

    run: str
    restarts: int
    made: int
    published: int
    elsewhere: int
    overwritten: int
    dropped: int
    late: int
    gaps: int
    unaccounted: int


@dataclass(frozen=True, kw_only=True)
class SoakResult:
    """What came of it. `problems` is empty when nothing was wrong."""

    settings: SoakSettings
    shape: Shape
    faults: tuple[DoneFault, ...]
    has_small_disk: bool
    collectors: int
    watch: Watch
    collector_trend: Trend | None
    node_trend: Trend | None
    runs: tuple[RunAccount, ...]
    resends: int
    left: LeftDelivered
    seconds: float
    problems: tuple[str, ...]


def run_soak(settings: SoakSettings) -> SoakResult:
    """Begin everything, carry the plan out, end everything, and see whether anything is missing."""
    shape = shape_of(settings.ranks)
    faults = plan(settings.seed, settings.seconds, shape, settings.fault_s_max)
    with tempfile.TemporaryDirectory(prefix="soak-") as name, mounted(Path(name) / "disk", DISK_MIB) as disk:
        store = (disk or Path(name)) / "store.db"
        with begun(shape, Path(name), store, settings.interval_s) as fleet:
            watch = Watch(
                find_url=lambda: fleet.served.url,
                find_collector=lambda: fleet.served.pid,
                find_nodes=lambda: [child.pid for child in list(fleet.nodes.values())],
                find_restarts=fleet.find_restarts,
                scrape_s=settings.scrape_s,
                page_age_s_max=settings.page_age_s_max,
            )
            with watch.watching():
                _wait_for_ranks(watch, shape)
                first_s = watch.elapsed_s
                saboteur = Saboteur(fleet, watch, disk, settings.seed)
                done = tuple(settings.tell(saboteur.carry_out(fault, first_s)) for fault in faults)
                threading.Event().wait(max(0.0, first_s + settings.seconds - watch.elapsed_s))
                seconds = watch.elapsed_s
                fleet.revive_collector()
                lives = fleet.finish_nodes()
                fleet.revive_collector()
                left = fleet.finish_left()
                page = _wait_for_end(watch, lives)
            fleet.end_collector()
            accounts = {run_name(run): to_accounts(page.samples, run_name(run)) for run in range(shape.runs)}
            return SoakResult(
                settings=settings,
                shape=shape,
                faults=done,
                has_small_disk=disk is not None,
                collectors=fleet.collectors,
                watch=watch,
                collector_trend=find_trend(watch.collector_memory, settings.warm_up_s),
                node_trend=find_trend(watch.node_memory, settings.warm_up_s),
                runs=tuple(_sum(run, fleet, accounts[run_name(run)]) for run in range(shape.runs)),
                resends=sum(life.resends for life in lives),
                left=left,
                seconds=seconds,
                problems=(
                    *watch.problems,
                    *find_missing(shape, lives, left, accounts),
                    *find_errors(watch.reasons.values()),
                    *fleet.tracebacks,
                ),
            )


def find_missing(
    shape: Shape, lives: Sequence[LifeAccount], left: LeftDelivered, accounts: Mapping[str, Mapping[int, PageAccount]]
) -> list[str]:
    """What is not as it must be at the end: a rank without an account, an account that does not add up or that differs
    from what the rank has counted itself, reports that are lost and not counted.
    """
    found = []
    if len(lives) != shape.ranks:
        found.append(f"{len(lives)} of {shape.ranks} ranks told what they have made")
    if left.lives_left:
        found.append(f"{left.lives_left} killed lives have left something that was not delivered")
    for life in lives:
        account = accounts[life.run].get(life.rank)
        where = f"rank {life.rank} of {life.run}"
        if account is None:
            found.append(f"{where} has no account")
            continue
        facts = {
            "not all delivered": not life.is_delivered,
            "unaccounted": account.unaccounted != 0,
            "made": account.made != life.made,
            "overwritten": account.overwritten != life.overwritten,
            # The rank also counts what had arrived while its acknowledgement was on the way.
            "dropped": account.dropped > life.steps_dropped,
            "gaps": account.gaps > life.reports_dropped,
        }
        found += [f"{where}: {what}: {account}, {life}" for what, is_wrong in facts.items() if is_wrong]
    return found


def find_errors(reasons: Iterable[Mapping[Key, int]]) -> list[str]:
    """Errors of the collectors' own parts; those of a store whose disk was full are none."""
    return [
        f"{count} errors in {part}"
        for each in reasons
        for (name, part), count in each.items()
        if name == ERRORS and part not in STORE_PARTS
    ]


def _wait_for_ranks(watch: Watch, shape: Shape) -> None:
    """Until every rank has reported."""

    counts = [0]

    def look() -> bool | None:
        with contextlib.suppress(OSError):
            counts[0] = sum(name == "rankscope_step_records_created_total" for name, _ in watch.read_page().samples)
        return True if counts[0] == shape.ranks else None

    wait_for(look, lambda: f"{counts[0]} of {shape.ranks} ranks report", START_S_MAX)


def _wait_for_end(watch: Watch, lives: Sequence[LifeAccount]) -> Page:
    """The page once everything that was made is on it, or as it is when that does not come about."""
    made = {(life.run, str(life.rank)): life.made for life in lives}
    last = [Page({}, {}, {})]

    def look() -> Page | None:
        try:
            page = last[0] = watch.read_page()
        except OSError:
            return None
        seen = {
            (labels["run"], labels["rank"]): value
            for (name, text), value in page.samples.items()
            if name == "rankscope_step_records_created_total" and (labels := parse_labels(text))
        }
        return page if all(seen.get(key, 0) >= count for key, count in made.items()) else None

    try:
        return wait_for(look, lambda: "not everything is on the page", DEADLINE_S)
    except AssertionError:
        return last[0]


def _sum(run: int, fleet: Fleet, accounts: Mapping[int, PageAccount]) -> RunAccount:
    every = accounts.values()
    return RunAccount(
        run=run_name(run) + (" (small buffers, no disk)" if run == LOSSY_RUN else ""),
        restarts=fleet.restart_counts[run],
        made=sum(one.made for one in every),
        published=sum(one.published for one in every),
        elsewhere=sum(one.elsewhere for one in every),
        overwritten=sum(one.overwritten for one in every),
        dropped=sum(one.dropped for one in every),
        late=sum(one.late for one in every),
        gaps=sum(one.gaps for one in every),
        unaccounted=sum(abs(one.unaccounted) for one in every),
    )
