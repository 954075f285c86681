"""Traffic, faults and activity of a GPU through the real pynvml and ctypes, against tests/nvml_stand_in."""

from pathlib import Path

import pynvml  # type: ignore[import-untyped, unused-ignore]  # it comes without types
import pytest

from rankscope.agent.sample import nvml_readings
from rankscope.agent.sample.nvml import FIELDS
from rankscope.measure.records import DeviceSample
from tests.nvml_stand_in import compile_nvml
from tests.nvml_stand_in.sampling import MIB, QUIET, SLICE, STRAINED, name_fields, read_sample, run_script

SECOND = "sample(0); answer(sample(1))"
"""The second sample of a sampler: the first one that has something to compare with."""

FALLEN_OFF_THE_BUS = 79


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a present-day library."""
    return compile_nvml(tmp_path_factory.mktemp("driver")).parent


# -- the fields -------------------------------------------------------------------------------------------------------


def test_nvml_fills_all_fields_but_time_names_and_amd_links() -> None:
    of_amd = {"xgmi_tx_bytes", "xgmi_rx_bytes"}
    assert set(FIELDS) == set(DeviceSample.__struct_fields__) - {"host_ns", "uuid", "model", "absent"} - of_amd


@pytest.mark.parametrize("gpu", [STRAINED, QUIET, SLICE])
def test_each_field_has_a_value_or_a_reason_never_both_nor_none(driver: Path, gpu: str) -> None:
    sample = read_sample(driver, gpu, SECOND)
    assert {field for field in FIELDS if sample[field] is None} == sample["absent"].keys()


# -- traffic ----------------------------------------------------------------------------------------------------------


def test_bytes_of_all_nvlinks_are_counted_together(driver: Path) -> None:
    sample = read_sample(driver, STRAINED)
    # The twelve links have sent 1.2e9 KiB and received 2.4e9 KiB; one alone would have a twelfth.
    assert sample["nvlink_tx_bytes"] == 1_200_000_000 * 1024
    assert sample["nvlink_rx_bytes"] == 2_400_000_000 * 1024


def test_bytes_of_pcie_are_counted_beyond_32_bits(driver: Path) -> None:
    sample = read_sample(driver, STRAINED)
    assert (sample["pcie_tx_bytes"], sample["pcie_rx_bytes"]) == (5_000_000_000, 6_000_000_000)


@pytest.mark.parametrize(("gpu", "present", "most"), [(STRAINED, (8, 5), (16, 5)), (QUIET, (16, 1), (16, 5))])
def test_pcie_link_has_lanes_and_generation_now_and_at_most(
    driver: Path, gpu: str, present: tuple[int, int], most: tuple[int, int]
) -> None:
    sample = read_sample(driver, gpu)
    assert (sample["pcie_link_width"], sample["pcie_link_generation"]) == present
    assert (sample["pcie_link_width_max"], sample["pcie_link_generation_max"]) == most


def test_pcie_counter_that_wraps_every_moment_is_no_measurement(driver: Path) -> None:
    sample = read_sample(driver, QUIET)
    assert sample["pcie_tx_bytes"] is None
    assert sample["absent"]["pcie_tx_bytes"] == "counter_of_32_bits_wraps"


def test_gpu_without_nvlink_says_so_and_has_its_memory_clock(driver: Path) -> None:
    sample = read_sample(driver, QUIET)
    assert sample["absent"]["nvlink_tx_bytes"] == "not_supported"
    assert sample["memory_clock_hertz"] == 3_201_000_000


def test_our_numbers_of_the_traffic_counters_are_those_of_pynvml() -> None:
    known = {name: number for name, (number, _) in nvml_readings.ASKED.items() if hasattr(pynvml, name)}
    assert len(known) >= 2  # an older pynvml knows only those of NVLink
    assert known == {name: getattr(pynvml, name) for name in known}


# -- bit errors and remapped rows -------------------------------------------------------------------------------------


def test_bit_errors_are_counted_as_corrected_or_uncorrected(driver: Path) -> None:
    sample = read_sample(driver, STRAINED)
    assert (sample["ecc_corrected"], sample["ecc_uncorrected"]) == (21, 1)


def test_remapped_rows_are_told_with_what_is_still_to_be_done(driver: Path) -> None:
    sample = read_sample(driver, STRAINED)
    assert [sample[field] for field in nvml_readings.REMAP_FIELDS] == [5, 2, True, False]


def test_gpu_without_ecc_has_no_count_instead_of_none_found(driver: Path) -> None:
    sample = read_sample(driver, QUIET)
    fields = (*nvml_readings.ECC_FIELDS, *nvml_readings.REMAP_FIELDS)
    assert {field: sample["absent"][field] for field in fields} == dict.fromkeys(fields, "not_supported")


# -- Xid errors -------------------------------------------------------------------------------------------------------


def test_gpu_without_xid_errors_has_zero_of_them_and_no_last_one(driver: Path) -> None:
    sample = read_sample(driver, STRAINED)
    assert (sample["xid_count"], sample["xid_last"], sample["absent"]["xid_last"]) == (0, None, "none_seen")


def test_xid_errors_are_counted_and_the_last_one_is_named(driver: Path) -> None:
    sample = read_sample(driver, STRAINED, "sample(); raise_xid(31); raise_xid(48); answer(sample())")
    assert (sample["xid_count"], sample["xid_last"]) == (2, 48)


def test_xid_error_stays_in_the_samples_that_follow_it(driver: Path) -> None:
    sample = read_sample(driver, STRAINED, "sample(); raise_xid(31); sample(); answer(sample())")
    assert (sample["xid_count"], sample["xid_last"]) == (1, 31)


def test_flood_of_xid_errors_is_taken_in_parts(driver: Path) -> None:
    script = "sample()\nfor _ in range(100): raise_xid(31)\nanswer([*sample(), *sample()])"
    samples = [name_fields(values) for values in run_script(driver, STRAINED, script)]
    assert [sample["xid_count"] for sample in samples] == [nvml_readings.EVENTS_MAX, 100]


def test_lost_gpu_tells_the_xid_error_it_was_lost_with(driver: Path) -> None:
    script = f"sample(0); raise_xid({FALLEN_OFF_THE_BUS}); answer([*sample(1), *sample(2)])"
    lost_from = run_script(driver, STRAINED, "sample(); answer(calls())") + 1
    lost, later = map(name_fields, run_script(driver, STRAINED, script, STAND_IN_LOST_FROM_CALL=lost_from))
    assert (lost["xid_count"], lost["xid_last"], lost["absent"]["power_watts"]) == (1, 79, "gpu_is_lost")
    assert (later["xid_count"], later["xid_last"]) == (1, 79)


def test_count_of_xid_errors_goes_on_when_a_lost_gpu_is_back(driver: Path) -> None:
    script = "sample(0); raise_xid(79); sample(1); sample(11); raise_xid(31); answer(sample(12))"
    lost_from = run_script(driver, STRAINED, "sample(); answer(calls())") + 1
    lost = {"STAND_IN_LOST_FROM_CALL": lost_from, "STAND_IN_LOST_UNTIL_CALL": lost_from + 1}
    sample = read_sample(driver, STRAINED, script, **lost)
    assert (sample["xid_count"], sample["xid_last"], sample["temperature_celsius"]) == (2, 31, 88.0)


def test_xid_error_of_a_lost_gpu_is_counted_when_it_is_back(driver: Path) -> None:
    lost_from = run_script(driver, STRAINED, "sample(); answer(calls())") + 1
    lost = {"STAND_IN_LOST_FROM_CALL": lost_from, "STAND_IN_LOST_UNTIL_CALL": lost_from + 1}
    sample = read_sample(driver, STRAINED, "sample(0); sample(1); raise_xid(79); answer(sample(11))", **lost)
    assert (sample["xid_count"], sample["xid_last"]) == (1, 79)


def test_gpu_that_replaces_another_begins_its_own_count(driver: Path) -> None:
    script = f"sample(0); raise_xid(31); sample(1)\nuuid = {QUIET!r}\nanswer(sample(2))"
    assert read_sample(driver, STRAINED, script)["xid_count"] == 0


def test_slice_counts_its_own_xid_errors_and_those_of_no_slice(driver: Path) -> None:
    script = "sample(); raise_xid(31, 7); raise_xid(43, 8); raise_xid(48); answer(sample())"
    sample = read_sample(driver, SLICE, script)  # instance 7; instance 8 is a neighbor's
    assert (sample["xid_count"], sample["xid_last"]) == (2, 48)


def test_events_without_permission_are_absent_and_rest_measured(driver: Path) -> None:
    sample = read_sample(driver, STRAINED, STAND_IN_NO_EVENTS=4)
    assert [sample["absent"][field] for field in nvml_readings.XID_FIELDS] == ["no_permission"] * 2
    assert sample["ecc_corrected"] == 21


# -- performance counters ---------------------------------------------------------------------------------------------


def test_first_sample_has_no_activity_because_that_takes_two(driver: Path) -> None:
    absent = read_sample(driver, STRAINED)["absent"]
    assert {absent[field] for field in nvml_readings.ACTIVITY_FIELDS} == {"needs_two_samples"}


@pytest.mark.parametrize("script", [SECOND, "sample(0); sample(1); answer(sample(2))"])
def test_activity_since_the_last_sample_is_told_in_our_units(driver: Path, script: str) -> None:
    sample = read_sample(driver, STRAINED, script)
    assert {field: sample[field] for field in nvml_readings.ACTIVITY_FIELDS} == {
        "sm_active_ratio": 0.9,  # NVML says 90 per cent
        "sm_occupancy_ratio": 0.25,
        "tensor_active_ratio": 0.57,
        "dram_bandwidth_ratio": 0.29,
        "nvlink_tx_bytes_per_s": 1024 * MIB,  # 1024 MiB/s
        "nvlink_rx_bytes_per_s": 2048 * MIB,
    }


def test_slice_has_the_activity_of_its_own_multiprocessors(driver: Path) -> None:
    sample = read_sample(driver, SLICE, SECOND)
    assert sample["sm_active_ratio"] == 0.45  # the stand-in gives a slice half of the whole GPU's 90 per cent


def test_one_metric_that_is_missing_leaves_the_others(driver: Path) -> None:
    sample = read_sample(driver, SLICE, SECOND)
    assert sample["absent"]["nvlink_tx_bytes_per_s"] == "not_supported"
    assert sample["absent"]["sm_occupancy_ratio"] == "not_a_number"


def test_gpu_without_performance_counters_says_so(driver: Path) -> None:
    absent = read_sample(driver, QUIET, SECOND)["absent"]
    assert {absent[field] for field in nvml_readings.ACTIVITY_FIELDS} == {"not_supported"}


def test_driver_without_performance_counters_says_so(tmp_path: Path) -> None:
    compile_nvml(tmp_path, old_driver=True)
    absent = read_sample(tmp_path, STRAINED, SECOND)["absent"]
    assert {absent[field] for field in nvml_readings.ACTIVITY_FIELDS} == {"function_not_found"}


def test_returned_gpu_compares_with_nothing_from_before_its_loss(driver: Path) -> None:
    lost_from = run_script(driver, STRAINED, "sample(); answer(calls())") + 1
    lost = {"STAND_IN_LOST_FROM_CALL": lost_from, "STAND_IN_LOST_UNTIL_CALL": lost_from + 1}
    sample = read_sample(driver, STRAINED, "sample(0); sample(1); answer(sample(11))", **lost)
    assert sample["absent"]["sm_active_ratio"] == "needs_two_samples"


# -- what NVML holds for us -------------------------------------------------------------------------------------------


def test_samples_hold_one_event_set_and_two_snapshots_in_all(driver: Path) -> None:
    assert run_script(driver, STRAINED, "sample(0); sample(1); sample(2); answer(held())") == [1, 2]


def test_closed_sampler_gives_back_what_nvml_held_for_it(driver: Path) -> None:
    assert run_script(driver, STRAINED, "sample(0); sampler.close(); answer(held())") == [0, 0]


def test_process_changing_its_gpu_frees_what_the_old_one_held(driver: Path) -> None:
    script = f"sample(0)\nuuid = {QUIET!r}\nsample(1); answer(held())"
    assert run_script(driver, STRAINED, script) == [1, 0]  # that GPU has no performance counters


def test_gpu_that_comes_and_goes_leaves_nothing_behind(driver: Path) -> None:
    lost_from = run_script(driver, STRAINED, "sample(); answer(calls())") + 1
    lost = {"STAND_IN_LOST_FROM_CALL": lost_from, "STAND_IN_LOST_UNTIL_CALL": lost_from + 1}
    assert run_script(driver, STRAINED, "sample(0); sample(1); sample(11); answer(held())", **lost) == [1, 2]
