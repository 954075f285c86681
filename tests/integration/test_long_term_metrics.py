"""One run in two stores on three ways: Prometheus scrapes the collector and writes on to VictoriaMetrics, which also
scrapes the collector by itself. All of them say the same.
"""

from collections.abc import Iterator

import pytest

from tests.integration.faults import wait_for_accounts
from tests.integration.light_ranks import crew_of
from tests.integration.metric_stores import Labels, Samples, Store, prometheus, victoria_metrics
from tests.integration.serving import serving, wait_for

RUN = "long-term"
RANKS = 2
SCRAPED, WRITTEN = "victoria", "prometheus"
"""The jobs by which the series of the two ways into VictoriaMetrics are told apart."""
STEPS = "rankscope_step_records_published_total"
SCRAPES = 5


class Seen:
    """What was kept of the run, and what the collector's page said at its end."""

    def __init__(self, of_prometheus: Store, of_victoria: Store, published: dict[int, int]) -> None:
        self.scraped_by_prometheus = wait_for_end(of_prometheus, WRITTEN, published)
        self.written_by_prometheus = wait_for_end(of_victoria, WRITTEN, published)
        self.scraped_by_victoria = wait_for_end(of_victoria, SCRAPED, published)
        self.published = published


def wait_for_end(store: Store, job: str, published: dict[int, int]) -> dict[Labels, Samples]:
    """The series of the run as a store has them, once it has a few samples of each and the last is that of the end."""
    selector = f'{STEPS}{{run="{RUN}",job="{job}"}}'

    def look() -> dict[Labels, Samples] | None:
        series = store.read_samples(selector)
        last = {rank_of(labels): samples[max(samples)] for labels, samples in series.items() if len(samples) >= SCRAPES}
        return series if last == published else None

    return wait_for(look, lambda: f"{store.read_samples(selector)}\n{store.log.read_text()}")


def rank_of(labels: Labels) -> int:
    return int(dict(labels)["rank"])


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Two ranks that report until the stores have several samples of them."""
    folder = tmp_path_factory.mktemp("stores")
    with serving() as served, crew_of(RUN, RANKS, served.endpoint) as crew:
        target = f"127.0.0.1:{served.ports[1]}"
        with (
            victoria_metrics(folder, SCRAPED, target) as victoria,
            prometheus(folder, WRITTEN, target, writes_to=victoria.url) as scraping,
        ):
            for store, job in ((scraping, WRITTEN), (victoria, WRITTEN), (victoria, SCRAPED)):
                wait_for_samples(store, job)
            assert crew.stop()
            accounts = wait_for_accounts(served, RUN, {rank.identity.rank: rank.made for rank in crew.ranks})
            yield Seen(scraping, victoria, {rank: account.published for rank, account in accounts.items()})


def wait_for_samples(store: Store, job: str) -> None:
    """Wait until a store has seen the run grow."""
    selector = f'{STEPS}{{run="{RUN}",job="{job}"}}'
    wait_for(
        lambda: (
            len([one for one in store.read_samples(selector).values() if len(set(one.values())) >= 3]) == RANKS or None
        ),
        store.log.read_text,
    )


def test_every_store_has_the_final_values_of_the_collectors_page(seen: Seen) -> None:
    for kept in (seen.scraped_by_prometheus, seen.written_by_prometheus, seen.scraped_by_victoria):
        assert {rank_of(labels): samples[max(samples)] for labels, samples in kept.items()} == seen.published


def test_samples_written_by_prometheus_equal_those_it_scraped(seen: Seen) -> None:
    assert set(seen.written_by_prometheus) == set(seen.scraped_by_prometheus)
    for labels, scraped in seen.scraped_by_prometheus.items():
        written = seen.written_by_prometheus[labels]
        both = scraped.keys() & written.keys()
        assert len(both) >= SCRAPES
        assert {at: written[at] for at in both} == {at: scraped[at] for at in both}
        # What one has more than the other came while they were asked one after the other, and before the end.
        assert all(at > max(both) for at in (scraped.keys() ^ written.keys()))


def test_store_scraping_by_itself_has_the_same_series_in_its_job(seen: Seen) -> None:
    def without_job(kept: dict[Labels, Samples]) -> set[Labels]:
        return {frozenset(label for label in labels if label[0] != "job") for labels in kept}

    assert without_job(seen.scraped_by_victoria) == without_job(seen.scraped_by_prometheus)


def test_no_counter_decreases_in_any_of_them(seen: Seen) -> None:
    for kept in (seen.scraped_by_prometheus, seen.written_by_prometheus, seen.scraped_by_victoria):
        for samples in kept.values():
            values = [samples[at] for at in sorted(samples)]
            assert values == sorted(values)
