"""OrderedSettings: what a rank takes of the collector's settings, refuses, and goes back to."""

import pytest

from rankscope.agent.config import read_config
from rankscope.agent.governor import Allowance
from rankscope.agent.profiler.ordered_settings import OrderedSettings
from rankscope.measure.messages import SettingsOrder, SettingsTaken
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.unit.agent.profiler.test_profiler_windows import make_windows

OFTEN = {"full_window_interval_s": "2"}


class Rank:
    """The settings of a rank whose steps take 100 ms, with a budget that pays for any window; its clock is driven."""

    def __init__(self, **settings: str) -> None:
        self.windows = make_windows(**settings)
        self.windows.plan.allow(Allowance(0.9, 10**15, 10**15))
        self.windows.plan.learn_full(NS_PER_MS)
        self.windows.plan.learn_step(100 * NS_PER_MS, 0)
        config = read_config({f"RANKSCOPE_{name.upper()}": text for name, text in settings.items()})
        self.now_ns = 0
        self.settings = OrderedSettings(config, self.windows, lambda: self.now_ns)

    def order(self, values: dict[str, str], **lasts_s: int) -> SettingsTaken:
        lasts_ns = {name: seconds * NS_PER_S for name, seconds in lasts_s.items()}
        return self.settings.handle(SettingsOrder(id="1", values=values, lasts_ns=lasts_ns))

    @property
    def interval_steps(self) -> int:
        return self.windows.plan.full_interval_steps

    @property
    def is_paused(self) -> bool:
        sampler = self.windows.sampling.find_sampler()
        assert sampler is not None
        return sampler.is_paused


def test_windows_come_as_often_as_ordered_until_the_next_order() -> None:
    rank = Rank()
    assert rank.interval_steps == 256  # 20 s are 200 steps
    assert rank.order(OFTEN) == SettingsTaken(id="1")
    assert rank.interval_steps == 32  # 2 s are 20
    rank.order({})
    assert rank.interval_steps == 256


def test_windows_are_as_long_as_is_ordered() -> None:
    rank = Rank()
    assert rank.windows.plan.light_window_steps == 32  # 2 s are 20 steps
    rank.order({"collective_window_s": "0.5"})
    assert rank.windows.plan.light_window_steps == 8


def test_budget_stays_above_an_order() -> None:
    rank = Rank()
    rank.windows.plan.allow(Allowance(0.001, 10**15, 10**15))
    rank.order(OFTEN)
    # A window of 1 ms at half of 0.001 of the time: one in 2 s. With ten times the cost one in 20 s.
    rank.windows.plan.learn_full(10 * NS_PER_MS)
    assert rank.interval_steps == 256


def test_rank_goes_back_by_itself_without_a_collector() -> None:
    rank = Rank()
    rank.order({**OFTEN, "line_samples": "false"}, full_window_interval_s=60)
    rank.now_ns = 60 * NS_PER_S - 1
    rank.settings.tick()
    assert (rank.interval_steps, rank.is_paused) == (32, True)
    rank.now_ns += 1
    rank.settings.tick()
    assert (rank.interval_steps, rank.is_paused) == (256, True)  # the samples have no end


def test_samples_pause_and_go_on() -> None:
    rank = Rank()
    rank.order({"line_samples": "false"})
    assert rank.is_paused
    rank.order({"line_samples": "true"})
    assert not rank.is_paused


@pytest.mark.parametrize(
    ("settings", "values", "reason"),
    [
        ({"setting_orders": "no"}, OFTEN, "setting_orders is no on this rank"),
        ({"capture_orders": "off"}, OFTEN, "capture_orders is off on this rank"),
        ({"full_windows": "off"}, OFTEN, "this rank has no such profiler windows"),
        ({"line_samples": "off"}, {"line_samples": "true"}, "line_samples is off on this rank"),
        ({}, {"full_window_interval_s": "0"}, "the smallest allowed is 1"),
        ({}, {"enabled": "false"}, "this agent cannot change it while it runs"),
        ({}, {"of_tomorrow": "1"}, "this agent cannot change it while it runs"),
    ],
)
def test_what_a_rank_does_not_take_is_said_and_changes_nothing(
    settings: dict[str, str], values: dict[str, str], reason: str
) -> None:
    rank = Rank(**settings)
    before = rank.interval_steps
    (said,) = rank.order(values).refused.values()
    assert reason in said
    assert rank.interval_steps == before


def test_job_may_allow_settings_without_captures() -> None:
    rank = Rank(setting_orders="yes", capture_orders="off")
    assert rank.order(OFTEN).refused == {}


def test_of_an_order_what_is_allowed_is_taken() -> None:
    rank = Rank()
    assert set(rank.order({**OFTEN, "of_tomorrow": "1"}).refused) == {"of_tomorrow"}
    assert rank.interval_steps == 32
