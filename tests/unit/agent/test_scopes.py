"""Scopes of the script: ranges of torch's profiler while a capture is on, and nothing otherwise."""

import threading
from collections.abc import Iterator

import pytest

from rankscope.agent import scope
from rankscope.agent.scopes import NAME_LENGTH_MAX, switch


class Ranges:
    """Makes ranges that note their begin and end, and fail at one of these if `fails_at` says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.errors: list[str] = []
        self.fails_at = ""

    def note(self, call: str) -> None:
        self.calls.append(call)
        if self.fails_at and call.startswith(self.fails_at):
            raise RuntimeError("torch has changed")

    def make(self, name: str) -> "Range":
        return Range(self, name)

    def turn_on(self) -> None:
        switch.turn_on(self.make, lambda error: self.errors.append(str(error)))


class Range:
    """One of these ranges."""

    def __init__(self, ranges: Ranges, name: str) -> None:
        self._ranges, self._name = ranges, name

    def __enter__(self) -> None:
        self._ranges.note(f"begin {self._name}")

    def __exit__(self, *_error: object) -> None:
        self._ranges.note(f"end {self._name}")


@pytest.fixture
def ranges() -> Iterator[Ranges]:
    """Ranges that a test may turn on."""
    yield Ranges()
    switch.turn_off()


def test_scope_marks_nothing_while_no_capture_is_on() -> None:
    with scope("outer") as entered, entered:
        pass
    assert entered._open is None


def test_nested_scopes_are_ranges_of_their_names(ranges: Ranges) -> None:
    ranges.turn_on()
    with scope("outer"), scope("inner"):
        pass
    assert ranges.calls == ["begin outer", "begin inner", "end inner", "end outer"]


def test_each_call_of_a_decorated_function_is_a_range(ranges: Ranges) -> None:
    @scope("factorial")
    def factorial(number: int) -> int:
        """Multiply."""
        return 1 if number == 0 else number * factorial(number - 1)

    ranges.turn_on()
    assert factorial(2) == 2
    assert ranges.calls == ["begin factorial"] * 3 + ["end factorial"] * 3
    assert (factorial.__name__, factorial.__doc__) == ("factorial", "Multiply.")


def test_exception_of_the_script_passes_and_ends_the_range(ranges: Ranges) -> None:
    ranges.turn_on()
    error = ValueError("of the script")
    with pytest.raises(ValueError, match="of the script") as raised, scope("part"):
        raise error
    assert raised.value is error
    assert ranges.calls == ["begin part", "end part"]


def test_scope_that_began_before_the_capture_has_no_range(ranges: Ranges) -> None:
    with scope("before"):
        ranges.turn_on()
        with scope("inside"):
            pass
    assert ranges.calls == ["begin inside", "end inside"]


def test_scope_that_is_open_at_the_end_of_a_capture_still_ends(ranges: Ranges) -> None:
    ranges.turn_on()
    with scope("part"):
        switch.turn_off()
        with scope("after"):
            pass
    assert ranges.calls == ["begin part", "end part"]


def test_one_object_may_be_entered_again(ranges: Ranges) -> None:
    ranges.turn_on()
    part = scope("part")
    with part, part:
        assert ranges.calls == ["begin part"] * 2
    assert ranges.calls[2:] == ["end part"] * 2


def test_threads_that_share_a_scope_end_their_own_ranges() -> None:
    ended: list[tuple[str, str]] = []

    class Owned:
        def __enter__(self) -> None:
            self.thread = threading.current_thread().name

        def __exit__(self, *_error: object) -> None:
            ended.append((self.thread, threading.current_thread().name))

    part, has_entered, may_leave = scope("part"), threading.Event(), threading.Event()

    def enter() -> None:
        with part:
            has_entered.set()
            assert may_leave.wait(10)

    switch.turn_on(lambda _name: Owned(), lambda _error: None)
    try:
        other = threading.Thread(target=enter, name="other")
        with part:
            other.start()
            assert has_entered.wait(10)
        may_leave.set()
        other.join()
    finally:
        switch.turn_off()
    main = threading.current_thread().name
    assert ended == [(main, main), ("other", "other")]
    assert part._open == {}


@pytest.mark.parametrize("place", ["begin", "end"])
def test_error_of_a_range_never_reaches_the_script(ranges: Ranges, place: str) -> None:
    ranges.turn_on()
    ranges.fails_at = place
    with scope("part"):
        done = True
    assert (done, ranges.errors) == (True, ["torch has changed"])


def test_name_that_is_no_text_is_written_as_one(ranges: Ranges) -> None:
    ranges.turn_on()
    with scope(7), scope("x" * 1000):  # type: ignore[arg-type]
        pass
    assert ranges.calls[:2] == ["begin 7", "begin " + "x" * NAME_LENGTH_MAX]


def test_name_that_cannot_be_text_costs_its_range(ranges: Ranges) -> None:
    class Unnamed:
        def __str__(self) -> str:
            raise LookupError("no name")

    ranges.turn_on()
    with scope(Unnamed()):  # type: ignore[arg-type]
        pass
    assert (ranges.calls, ranges.errors) == ([], ["no name"])


def test_generator_with_scopes_between_its_values_ends_each(ranges: Ranges) -> None:
    def produce() -> Iterator[int]:
        for number in (1, 2):
            with scope(f"part {number}"):
                yield number

    ranges.turn_on()
    assert list(produce()) == [1, 2]
    assert ranges.calls == ["begin part 1", "end part 1", "begin part 2", "end part 2"]


def test_decorated_generators_and_coroutines_are_left_alone() -> None:
    def produce() -> Iterator[int]:
        yield 1

    async def fetch() -> int:
        return 1

    assert scope("part")(produce) is produce
    assert scope("part")(fetch) is fetch
