"""Pages that were late have all begun earlier, those that are in time take that back. The clock is the test's."""

import pytest

from rankscope.collector.publish.metrics.page_cache import LEAD_S
from rankscope.collector.publish.metrics.page_lead import EARLIER_S_MAX, STEP_S, PrerenderLead
from tests.unit.collector.publish.metrics.page_world import World

SCRAPE_S = 15.0


@pytest.mark.parametrize("late", [0, 1, 2])
def test_after_pages_that_were_late_all_are_begun_earlier(late: int) -> None:
    world = World(large=True)
    world.ask_twice()
    for scrape in range(late + 1):
        world.now_s = 1030.0 + scrape * SCRAPE_S
        if scrape == late:
            world.now_s -= LEAD_S + late * STEP_S + 0.01
            assert world.cache.prepare() == pytest.approx(0.01)
        else:
            world.ask()  # nobody has prepared it
            world.tick()


def test_pages_in_time_are_begun_no_earlier() -> None:
    world = World(large=True)
    for _ in range(10):
        world.ask()
        world.pass_time(SCRAPE_S)
    assert world.cache._lead.earlier_s == 0.0


def test_a_page_that_is_late_again_and_again_is_begun_no_earlier_than_allowed() -> None:
    lead = PrerenderLead()
    for _ in range(100):
        lead.note(is_late=True)
    assert lead.earlier_s == EARLIER_S_MAX
