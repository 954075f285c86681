"""SettingOrders: which rank is asked to take which settings, how often, and what is said of those that do not."""

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.events import AskSettings
from rankscope.collector.runs.live_settings import LiveSettings, WantedChange
from rankscope.collector.runs.setting_orders import REPEAT_NS, SILENT_NS, SettingOrders
from rankscope.measure.messages import SettingsTaken
from rankscope.measure.settings import Value
from tests.unit.collector.runs.run_stories import Story, boot_of


class Ordered:
    """The orders of a run of three ranks, of which the last has not joined yet."""

    def __init__(self) -> None:
        self.story = Story(3).join(0, 1)
        self.settings = LiveSettings(CollectorConfig())
        self.orders = SettingOrders()
        self.wall_s = 0.0

    def set(self, *reset: str, for_s: float | None = None, **values: Value) -> "Ordered":
        self.wall_s += 1
        self.settings.change(WantedChange(run="story", values=values, reset=reset, for_s=for_s), self.wall_s)
        return self

    def tick(self, after_ns: int = 0) -> list[AskSettings]:
        self.story.now_ns += after_ns
        attempt = self.story.run.attempt
        assert attempt is not None
        return self.orders.tick(self.settings.state, attempt, self.story.now_ns, self.wall_s)

    def answer(self, rank: int, order_id: str, **refused: str) -> None:
        self.orders.take(boot_of(rank), SettingsTaken(id=order_id, refused=refused))


def test_nothing_is_ordered_without_a_changed_rank_setting() -> None:
    ordered = Ordered().set(slowdown_ratio_min=1.2)
    assert (ordered.tick(), ordered.orders.taken.text) == ([], "")


def test_every_rank_is_asked_until_it_has_answered() -> None:
    ordered = Ordered().set(full_window_interval_s=5.0, line_samples=False, for_s=60.0)
    asked = ordered.tick()
    assert [one.boot_id for one in asked] == [boot_of(0), boot_of(1)]
    assert asked[0].order.values == {"full_window_interval_s": "5", "line_samples": "false"}
    assert asked[0].order.lasts_ns == dict.fromkeys(asked[0].order.values, 60 * 10**9)
    ordered.answer(0, asked[0].order.id)
    assert ordered.tick(REPEAT_NS - 1) == []
    assert [one.boot_id for one in ordered.tick(1)] == [boot_of(1)]
    assert ordered.orders.taken.text == "taken by 1 of 2 ranks"
    ordered.answer(1, asked[0].order.id)
    assert ordered.tick(SILENT_NS) == []
    assert (ordered.orders.taken.taken, ordered.orders.taken.text) == (2, "")


def test_rank_that_joins_later_is_asked_as_well() -> None:
    ordered = Ordered().set(collective_window_s=1.0)
    for rank, one in enumerate(ordered.tick()):
        ordered.answer(rank, one.order.id)
    assert ordered.tick() == []
    ordered.story.join(2)
    assert [one.boot_id for one in ordered.tick(REPEAT_NS)] == [boot_of(2)]


def test_change_back_is_ordered_too() -> None:
    ordered = Ordered().set(line_samples=False)
    for rank, one in enumerate(ordered.tick()):
        ordered.answer(rank, one.order.id)
    asked = ordered.set("line_samples").tick()
    assert [(one.boot_id, one.order.values) for one in asked] == [(boot_of(0), {}), (boot_of(1), {})]


def test_refusals_and_silence_are_said_with_the_ranks() -> None:
    ordered = Ordered().set(line_samples=False)
    order = ordered.tick()[0].order
    ordered.answer(0, order.id, line_samples="setting_orders is no on this rank")
    ordered.tick(SILENT_NS)
    assert ordered.orders.taken.text == (
        "taken by 0 of 2 ranks; rank 0 refuses: line_samples: setting_orders is no on this rank; "
        "rank 1 gives no answer: an agent of an earlier release takes no such order"
    )
    assert ordered.tick(REPEAT_NS) == []
    assert [one.boot_id for one in ordered.tick(SILENT_NS)] == [boot_of(1)]


def test_answer_to_an_earlier_order_counts_for_nothing() -> None:
    ordered = Ordered().set(line_samples=False)
    before = ordered.tick()[0].order.id
    ordered.set(full_window_interval_s=5.0).tick()
    ordered.answer(0, before)
    ordered.tick()
    assert ordered.orders.taken.taken == 0
