"""Ranges that outlive a profiler session are left when that does no harm, and never twice."""

from rankscope.agent.steps.open_ranges import OpenRanges


class Range:
    """A record_function, which writes down when it is entered and left."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def enter(self) -> "Range":
        self.log.append(f"enter {self.name}")
        return self

    def leave(self, *_error: object) -> None:
        self.log.append(f"leave {self.name}")


class Script:
    """A script with ranges, and sessions that begin and end around them."""

    def __init__(self) -> None:
        self.ranges = OpenRanges()
        self.log: list[str] = []

    def enter(self, name: str) -> Range:
        opened = Range(name, self.log)
        entered: Range = self.ranges.wrap_enter(Range.enter)(opened)
        assert entered is opened
        return entered

    def leave(self, opened: Range) -> list[str]:
        self.log.clear()
        self.ranges.wrap_exit(Range.leave)(opened, None, None, None)
        return list(self.log)

    def end_session(self) -> list[str]:
        self.log.clear()
        self.ranges.on_session_end()
        return list(self.log)


def test_range_is_left_at_once_in_the_session_it_was_entered_in_and_outside_of_all() -> None:
    script = Script()
    assert script.leave(script.enter("before")) == ["leave before"]
    script.ranges.on_session_begin()
    assert script.leave(script.enter("inside")) == ["leave inside"]
    survivor = script.enter("survivor")
    script.ranges.on_session_end()
    assert script.leave(survivor) == ["leave survivor"]


def test_range_of_an_earlier_session_is_left_when_the_later_one_has_ended() -> None:
    script = Script()
    script.ranges.on_session_begin()
    epoch, step = script.enter("epoch"), script.enter("step")
    script.ranges.on_session_end()
    script.ranges.on_session_begin()
    assert script.leave(step) == []
    assert script.leave(epoch) == []
    assert script.end_session() == ["leave step", "leave epoch"]
    assert script.end_session() == []


def test_range_entered_outside_of_all_sessions_is_left_late_too() -> None:
    # torch has given it no memory to write to, but late is as good as at once.
    script = Script()
    outside = script.enter("outside")
    script.ranges.on_session_begin()
    assert script.leave(outside) == []
    assert script.end_session() == ["leave outside"]


def test_range_entered_before_anybody_looked_counts_as_another_sessions() -> None:
    script = Script()
    unseen = Range("unseen", script.log)
    script.ranges.on_session_begin()
    assert script.leave(unseen) == []
    assert script.end_session() == ["leave unseen"]
