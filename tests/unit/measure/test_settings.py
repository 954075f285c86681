"""Check where a setting's value comes from, and the errors for unusable ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from rankscope.measure.errors import SettingError
from rankscope.measure.settings import (
    Mistake,
    Ordered,
    Setting,
    Settings,
    Value,
    constant,
    find_address_problem,
    read,
    read_leniently,
    setting,
)
from tests.contract.settings_file import document


def find_pump_problem(name: str) -> str | None:
    return None if name.startswith("pump") else "it must begin with pump"


@dataclass(frozen=True, kw_only=True, slots=True)
class Garden(Settings):
    """A configuration with one setting of each kind."""

    TITLE: ClassVar[str] = "A garden."
    PREFIX: ClassVar[str] = "GARDEN_"
    FILE_VARIABLE: ClassVar[str] = "GARDEN_CONFIG"
    FOREIGN_VARIABLES: ClassVar[tuple[str, ...]] = ("GARDEN_CONFIG", "GARDEN_SHED_*")
    RULES: ClassVar[tuple[Ordered, ...]] = (
        Ordered("beds", "beds_max", "there is no room for more."),
        Ordered("dry_ratio", "wet_ratio", "a dry bed is not wet.", strictly=True),
    )

    open: bool = setting(True, Setting("Whether the gate is open."))
    beds: int = setting(4, Setting("How many beds there are.", unit="beds", smallest=1, largest=1000))
    beds_max: int = setting(1000, Setting("How many beds there is room for.", smallest=1))
    interval_s: float = setting(
        60.0,
        Setting("Time between two waterings.", unit="seconds", smallest=0.5, largest=3600, below="Roots would rot."),
    )
    dry_ratio: float = setting(0.2, Setting("Below, a bed is dry."))
    wet_ratio: float = setting(0.8, Setting("Above, a bed is wet.", largest=1, above="No bed is wetter than wet."))
    pump: str = setting("pump-1", Setting("The pump.", length_max=8, find_problem=find_pump_problem))
    # One bed in ten.
    spades: int = constant(3, Setting("How many spades there are.", smallest=1, largest=9))
    water: str = setting("rain", Setting("What is poured.", choices=("rain", "well")))


def read_problem(
    *,
    file_text: str | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Value] | None = None,
) -> str:
    with pytest.raises(SettingError) as caught:
        read(Garden, file_text=file_text, file_name="garden.toml", environment=environment, overrides=overrides)
    return str(caught.value)


def test_without_any_layer_every_value_is_the_default() -> None:
    garden = read(Garden)
    assert garden == Garden()
    assert set(garden.sources.values()) == {"the default"}


def test_each_layer_wins_over_the_one_below_it_and_is_remembered() -> None:
    garden = read(
        Garden,
        file_text="beds = 5\ninterval_s = 5.0\npump = 'pump-5'",
        file_name="garden.toml",
        environment={"GARDEN_INTERVAL_S": "6", "GARDEN_PUMP": "pump-6"},
        overrides={"pump": "pump-7"},
    )
    assert (garden.open, garden.beds, garden.interval_s, garden.pump) == (True, 5, 6.0, "pump-7")
    assert [garden.source(key) for key in ("open", "beds", "interval_s", "pump")] == [
        "the default",
        "from garden.toml",
        "from GARDEN_INTERVAL_S",
        "from the command line",
    ]


def test_a_configuration_made_in_code_is_checked_too_and_says_so() -> None:
    with pytest.raises(SettingError, match=r"^beds is 0 \(from the code\); the smallest allowed is 1\."):
        Garden(beds=0)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("ON", True), (" yes ", True), ("0", False), ("Off", False)]
)
def test_the_environment_may_say_yes_and_no_in_several_words(text: str, value: bool) -> None:
    assert read(Garden, environment={"GARDEN_OPEN": text}).open is value


def test_texts_become_numbers_in_environment_and_overrides() -> None:
    garden = read(Garden, environment={"GARDEN_BEDS": "1_00"}, overrides={"interval_s": "2.5"})
    assert (garden.beds, garden.interval_s) == (100, 2.5)


def test_a_whole_number_in_the_file_may_stand_for_a_number() -> None:
    interval_s = read(Garden, file_text="interval_s = 7").interval_s
    assert (interval_s, type(interval_s)) == (7.0, float)


def test_variables_without_the_prefix_are_not_looked_at() -> None:
    assert read(Garden, environment={"PATH": "/bin", "GARDENER": "x", "GARDEN": "1"}) == Garden()


def test_a_variable_that_is_known_to_be_no_setting_is_let_be() -> None:
    assert read(Garden, environment={"GARDEN_CONFIG": "garden.toml", "GARDEN_SHED_DOOR": "red"}) == Garden()


def test_variables_that_kubernetes_makes_are_ignored() -> None:
    service = {
        "GARDEN_GATE_SERVICE_HOST": "10.0.0.1",
        "GARDEN_GATE_SERVICE_PORT": "80",
        "GARDEN_GATE_SERVICE_PORT_METRICS": "80",
        "GARDEN_GATE_PORT": "tcp://10.0.0.1:80",
        "GARDEN_GATE_PORT_80_TCP": "tcp://10.0.0.1:80",
        "GARDEN_GATE_PORT_80_TCP_PROTO": "tcp",
        "GARDEN_GATE_PORT_80_TCP_PORT": "80",
        "GARDEN_GATE_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert read(Garden, environment=service) == Garden()


def test_variable_like_a_port_with_a_number_is_a_mistake() -> None:
    problem = read_problem(environment={"GARDEN_GATE_PORT": "80"})
    assert problem.startswith("GARDEN_GATE_PORT is set in the environment and is no setting.")


def test_too_small_value_names_its_source_and_its_effect() -> None:
    assert (
        read_problem(environment={"GARDEN_INTERVAL_S": "0.01"})
        == "interval_s is 0.01 (from GARDEN_INTERVAL_S); the smallest allowed is 0.5. Roots would rot."
    )


def test_a_value_above_the_largest_says_what_it_would_do() -> None:
    assert (
        read_problem(overrides={"wet_ratio": 1.5})
        == "wet_ratio is 1.5 (from the command line); the largest allowed is 1. No bed is wetter than wet."
    )


def test_a_limit_without_a_reason_gives_the_range_as_the_cure() -> None:
    assert (
        read_problem(file_text="beds = 1001")
        == "beds is 1001 (from garden.toml); the largest allowed is 1_000. Give a value from 1 to 1_000."
    )
    assert read_problem(overrides={"beds_max": 0}).endswith("the smallest allowed is 1. Give a value of at least 1.")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("beds = 4.0", "beds is 4.0 (from garden.toml); it must be a whole number from 1 to 1_000."),
        ("beds = true", "beds is true (from garden.toml); it must be a whole number from 1 to 1_000."),
        ("beds_max = '7'", "beds_max is '7' (from garden.toml); it must be a whole number of at least 1."),
        ("open = 1", "open is 1 (from garden.toml); it must be true or false."),
        ("wet_ratio = nan", "wet_ratio is nan (from garden.toml); it must be a number of at most 1."),
        ("pump = 1", "pump is 1 (from garden.toml); it must be text."),
        ("interval_s = [1]", "interval_s is [1] (from garden.toml); it must be a number from 0.5 to 3_600."),
    ],
)
def test_a_value_of_another_kind_is_refused_with_the_kind_wanted(line: str, problem: str) -> None:
    assert read_problem(file_text=line) == problem


@pytest.mark.parametrize(("key", "text"), [("INTERVAL_S", "soon"), ("INTERVAL_S", "inf"), ("BEDS", ""), ("OPEN", "2")])
def test_a_text_that_is_no_such_value_is_refused(key: str, text: str) -> None:
    problem = read_problem(environment={f"GARDEN_{key}": text})
    assert problem.startswith(f"{key.lower()} is {text!r} (from GARDEN_{key}); it must be ")


def test_a_whole_number_that_no_float_can_hold_is_refused() -> None:
    # 2**53 + 1 as a float is 2**53.
    assert "it must be a number" in read_problem(overrides={"dry_ratio": 2**53 + 1})


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("water", "sea", "it must be one of 'rain', 'well'. Choose one of them."),
        ("pump", "hose", "it must begin with pump."),
        ("pump", "pump-1234", "it has 9 characters, the most allowed is 8. Shorten it."),
        ("pump", "pump\x07", "it has characters that cannot be printed. Remove them."),
    ],
)
def test_a_text_that_cannot_be_used_is_refused_with_the_cure(key: str, text: str, problem: str) -> None:
    assert read_problem(overrides={key: text}) == f"{key} is {text!r} (from the command line); {problem}"


def test_a_long_value_is_not_repeated_in_full() -> None:
    problem = read_problem(overrides={"pump": "p" * 10_000})
    assert len(problem) < 250
    assert "it has 10000 characters" in problem


def test_an_unknown_key_in_the_file_names_the_nearest() -> None:
    assert (
        read_problem(file_text="intervall_s = 3")
        == "intervall_s is no setting (from garden.toml). The nearest is interval_s: correct the name or remove it."
    )


def test_an_unknown_variable_names_the_nearest() -> None:
    assert (
        read_problem(environment={"GARDEN_BED": "3"}) == "GARDEN_BED is set in the environment and is no setting. "
        "The nearest is GARDEN_BEDS: correct the name or remove it."
    )


def test_a_key_that_is_like_no_setting_is_to_be_removed() -> None:
    assert read_problem(overrides={"xyzzy": 1}) == (
        "xyzzy is no setting (from the command line). Remove it: no setting has a name like it."
    )


def test_a_variable_in_small_letters_is_no_setting() -> None:
    assert "GARDEN_beds is set in the environment" in read_problem(environment={"GARDEN_beds": "3"})


@pytest.mark.parametrize("text", ["beds = ", "beds 4", "beds = 1\nbeds = 2", "a = " + "[" * 10_000])
def test_a_file_that_is_not_toml_is_refused_by_its_name(text: str) -> None:
    assert read_problem(file_text=text).startswith("garden.toml is not a TOML file: ")


def test_contradicting_values_name_both_their_sources() -> None:
    assert (
        read_problem(file_text="beds = 9", environment={"GARDEN_BEDS_MAX": "8"})
        == "beds is 9 (from garden.toml) and must not be larger than beds_max, which is 8 (from GARDEN_BEDS_MAX): "
        "there is no room for more. Lower the first or raise the second."
    )


def test_equal_values_pass_a_rule_unless_it_is_strict() -> None:
    assert Garden(beds=7, beds_max=7).beds == 7
    with pytest.raises(SettingError, match=r"dry_ratio is 0\.8 .* and must be smaller than wet_ratio"):
        Garden(dry_ratio=0.8)


def test_document_has_everything_about_a_key_above_its_default() -> None:
    blocks = document(Garden).split("\n\n")
    assert blocks[0].startswith("# A garden.\n# Used when the environment variable GARDEN_CONFIG names this file.")
    assert blocks[2].splitlines() == [
        "# How many beds there are.",
        "# unit: beds; default: 4; range: from 1 to 1_000; environment: GARDEN_BEDS",
        "beds = 4",
    ]
    assert '# default: "rain"; one of: rain, well; environment: GARDEN_WATER\nwater = "rain"' in blocks[-1]


def test_the_document_read_back_gives_the_defaults() -> None:
    assert read(Garden, file_text=document(Garden), file_name="garden.toml") == Garden()


@pytest.mark.parametrize("address", ["tcp://a:1", "tcp://node-7.cluster.local:65535", "tcp://[fe80::1%eth0]:18490"])
def test_an_address_to_connect_to_has_a_scheme_a_host_and_a_port(address: str) -> None:
    assert find_address_problem(address, scheme="tcp://") is None


@pytest.mark.parametrize(
    "address", ["a:1", "tcp://:1", "tcp://*:1", "tcp://a b:1", "tcp://fe80::1:1", "tcp://a", "ipc://a:1"]
)
def test_an_address_without_its_scheme_or_host_is_refused(address: str) -> None:
    assert (
        find_address_problem(address, scheme="tcp://") == "it must be tcp://HOST:PORT, for example tcp://10.0.0.1:18490"
    )


@pytest.mark.parametrize("port", ["", "0", "*", "65536", "-1", "1e3", "१"])
def test_a_port_to_connect_to_is_a_number_of_16_bits(port: str) -> None:
    assert find_address_problem(f"a:{port}") == "its port must be a number from 1 to 65535"


@pytest.mark.parametrize("address", ["*:0", "0.0.0.0:*", "[::]:9090"])
def test_an_address_to_listen_on_may_leave_host_and_port_open(address: str) -> None:
    assert find_address_problem(address, listening=True) is None
    assert (
        find_address_problem("a:x", listening=True)
        == "its port must be a number from 1 to 65535, or 0 for any free one"
    )


# -- what can be used of settings with mistakes ------------------------------------------------------------------------


def test_unusable_value_leaves_that_of_the_layer_below() -> None:
    config, mistakes = read_leniently(
        Garden, file_text="beds = 7", file_name="garden.toml", environment={"GARDEN_BEDS": "0"}
    )
    assert (config.beds, config.source("beds")) == (7, "from garden.toml")
    text = "beds is 0 (from GARDEN_BEDS); the smallest allowed is 1. Give a value from 1 to 1_000."
    assert mistakes == (Mistake("beds", text),)


def test_value_of_another_kind_leaves_the_default() -> None:
    config, (mistake,) = read_leniently(Garden, environment={"GARDEN_BEDS": "many", "GARDEN_OPEN": "no"})
    assert (config.beds, config.source("beds"), config.open) == (4, "the default", False)
    assert mistake.key == "beds"


def test_wrong_value_below_a_good_one_is_no_mistake() -> None:
    config, mistakes = read_leniently(
        Garden, file_text="beds = 0", file_name="garden.toml", environment={"GARDEN_BEDS": "2"}
    )
    assert (config.beds, mistakes) == (2, ())


def test_unknown_names_are_mistakes_with_the_nearest_known() -> None:
    config, mistakes = read_leniently(
        Garden, file_text="bedz = 9", file_name="g", environment={"GARDEN_WATTER": "well", "GARDEN_ZZZ": "1"}
    )
    assert config == Garden()
    assert [(mistake.key, mistake.is_unknown) for mistake in mistakes] == [("water", True), ("", True), ("beds", True)]


def test_file_that_is_not_toml_leaves_the_other_layers() -> None:
    config, (mistake,) = read_leniently(Garden, file_text="beds", file_name="g.toml", overrides={"beds": 3})
    assert (config.beds, mistake.key, mistake.is_unknown) == (3, "", False)
    assert mistake.text.startswith("g.toml is not a TOML file: ")


# -- constants --------------------------------------------------------------------------------------------------------


def test_constant_is_in_no_file_and_no_list_of_settings() -> None:
    assert "spades" not in document(Garden)
    assert Garden().spades == 3


@pytest.mark.parametrize(
    "given",
    [{"file_text": "spades = 4"}, {"environment": {"GARDEN_SPADES": "4"}},
     {"overrides": {"spades": 4}}],
)  # fmt: skip
def test_constant_is_no_setting(given: dict[str, Any]) -> None:
    assert "is no setting" in read_problem(**given)


def test_test_changes_a_constant_by_a_variable_of_its_own() -> None:
    assert read(Garden, environment={"GARDEN_CONSTANT_SPADES": "5"}).spades == 5
    assert read_problem(environment={"GARDEN_CONSTANT_SPADES": "10"}) == (
        "spades is 10 (from GARDEN_CONSTANT_SPADES); the largest allowed is 9. Give a value from 1 to 9."
    )


def test_constant_of_the_code_is_checked() -> None:
    with pytest.raises(SettingError, match="spades is 0"):
        Garden(spades=0)
