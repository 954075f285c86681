"""OpenRanges: ranges that outlive a profiler session exit when that does no harm, and never twice."""

from rankscope.agent.steps.open_ranges import OpenRanges


class Range:
    """A record_function that records when it is entered and exited."""

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


def test_range_exits_at_once_in_its_session_or_outside() -> None:
    script = Script()
    assert script.leave(script.enter("before")) == ["leave before"]
    script.ranges.on_session_begin()
    assert script.leave(script.enter("inside")) == ["leave inside"]
    survivor = script.enter("survivor")
    script.ranges.on_session_end()
    assert script.leave(survivor) == ["leave survivor"]


def test_exit_of_an_earlier_sessions_range_is_deferred() -> None:
    script = Script()
    script.ranges.on_session_begin()
    epoch, step = script.enter("epoch"), script.enter("step")
    script.ranges.on_session_end()
    script.ranges.on_session_begin()
    assert script.leave(step) == []
    assert script.leave(epoch) == []
    assert script.end_session() == ["leave step", "leave epoch"]
    assert script.end_session() == []


def test_exit_of_a_range_from_outside_sessions_is_deferred() -> None:
    # torch has given it no memory to write to, but late is as good as at once.
    script = Script()
    outside = script.enter("outside")
    script.ranges.on_session_begin()
    assert script.leave(outside) == []
    assert script.end_session() == ["leave outside"]


def test_range_from_before_the_hooks_counts_as_another_sessions() -> None:
    script = Script()
    unseen = Range("unseen", script.log)
    script.ranges.on_session_begin()
    assert script.leave(unseen) == []
    assert script.end_session() == ["leave unseen"]
