"""Answers of the API and reports without numbers that cannot be."""

from collections.abc import Iterator, Mapping

import msgspec
import pytest

from rankscope.collector.valid_answers import _LOGGED, LeftOut, encode_valid, without_impossible


class Part(msgspec.Struct, frozen=True):
    rank: int
    step_ns_median: float | None
    goodput_ratio: float | None = None
    duration_ns: int = 0
    phases_ns: Mapping[str, float] = {}
    difference_ns: float | None = None
    step: int = -1


class Whole(msgspec.Struct, frozen=True):
    parts: tuple[Part, ...]
    best: Part | None = None
    by_name: Mapping[str, Part] = {}


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    before = LeftOut.count
    LeftOut.count = 0
    _LOGGED.clear()
    yield
    LeftOut.count = before


def test_numbers_that_can_be_are_the_same_object() -> None:
    whole = Whole((Part(0, 5.0, 1 + 1e-12, 3, {"data": 0.0}, -7.0),), best=Part(1, None))
    assert without_impossible(whole) is whole
    assert LeftOut.read() == {}


def test_number_that_cannot_be_is_none_wherever_it_is(caplog: pytest.LogCaptureFixture) -> None:
    wrong, right = (
        Part(1, -7e6, 1.25, phases_ns={"data": -1.0, "other": 2.0}),
        Part(1, None, None, phases_ns={"other": 2.0}),
    )
    whole = Whole((Part(0, 1.0), wrong), wrong, {"a": wrong})
    assert without_impossible(whole) == Whole((Part(0, 1.0), right), right, {"a": right})
    assert without_impossible({"runs": [wrong]}) == {"runs": [right]}
    assert LeftOut.read() == {"answer": 4 * 3}
    (line,) = [one.message for one in caplog.records if "goodput_ratio" in one.message.partition(" cannot")[0]]
    assert line.startswith("Part.goodput_ratio cannot be 1.25 ({'rank': 1, 'step': -1}; its range is 0 to 1): left out")


def test_number_that_the_form_wants_stays_and_is_counted() -> None:
    found = Part(0, None, duration_ns=-5)
    assert without_impossible(found) is found
    assert LeftOut.count == 1


def test_no_finite_number_is_as_json_has_it() -> None:
    assert msgspec.json.decode(encode_valid(Part(0, float("nan"))))["step_ns_median"] is None
