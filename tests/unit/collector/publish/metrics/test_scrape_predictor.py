"""When a page is asked for next, from when it was asked for before."""

from rankscope.collector.publish.metrics.scrape_predictor import ScrapePredictor


def beat_of(*moments_s: float) -> ScrapePredictor:
    beat = ScrapePredictor()
    for moment_s in moments_s:
        beat.note(moment_s)
    return beat


def test_who_has_asked_once_is_not_expected() -> None:
    assert beat_of(5.0).expected_s(5.0) is None


def test_who_has_asked_twice_is_expected_at_that_distance_and_not_after_it() -> None:
    beat = beat_of(5.0, 20.0)
    assert beat.expected_s(20.0) == beat.expected_s(34.9) == 35.0
    assert beat.expected_s(35.0) is None


def test_a_distance_that_has_not_come_for_long_is_forgotten() -> None:
    beat = beat_of(0.0, 1.0, 16.0, 31.0, 46.0, 61.0)
    assert beat.expected_s(61.0) == 76.0
