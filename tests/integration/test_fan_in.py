"""The smallest size of the benchmark of relays: what its nodes make arrives, once, in far fewer batches."""

from bench.fan_in import FanIn, measure, render
from bench.load_probe import Scrape

RANKS = 32


def test_reports_behind_relays_arrive_once_in_fewer_batches() -> None:
    found = measure(RANKS, seconds=3, idle_s=0.5, warm_s=0.0)
    assert found.made >= 3 * RANKS
    assert (found.admitted, found.gaps) == (found.made, 0)
    assert 0 < found.batches_per_s < found.reports_per_s


def test_the_table_has_a_row_for_each_size() -> None:
    one = FanIn(
        ranks=1024, seconds=20.0, reports_per_s=1000.4, batches_per_s=128.0, cores=0.25, idle_cores=0.05,
        us_a_report=200.0, resident_bytes=2**27, publisher_cores=0.05, publisher_bytes=2**26,
        visible_s=(1.0, 2.0), answered_s=(0.002,), scrapes=(Scrape("/metrics", 0.0, 0.003, 10_000),),
        loader_cores=0.1, made=20_480, admitted=20_480,
        duplicates=0, gaps=0, resends=3,
    )  # fmt: skip
    *_, row = render([one]).splitlines()
    assert row == (
        "| 1,024 | 128 | 20 | 1,000 | 128 | 0.25 | 0.05 | 200 | 128 | 0.05 | 64 | 1.00 / 2.00 s | 2 / 2 ms "
        "| /metrics 3 ms, 0.0 MB | 0.10 | 20,480 | 20,480 | 0 | 0 | 3 |"
    )
