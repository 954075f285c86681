"""The NVML sampler through the real pynvml and ctypes, against tests/nvml_stand_in: nothing is patched.

Each case is a process of its own, because pynvml loads its library once per process.
"""

import re
from pathlib import Path

import pynvml  # type: ignore[import-untyped, unused-ignore]  # it comes without types
import pytest

from rankscope.agent.sample import nvml_readings
from rankscope.agent.sample.nvml import FIELDS
from rankscope.agent.sample.nvml_readings import (
    APPLICATIONS_CLOCKS_SETTING,
    GPU_IDLE,
    THROTTLE_REASONS,
    XID_FIELDS,
    name_throttle_reasons,
)
from tests.nvml_stand_in import compile_nvml
from tests.nvml_stand_in.sampling import MIB, QUIET, SLICE, STRAINED, name_fields, read_sample, run_script

CALLS_TO_FIND = 4
"""The handle by its UUID, the name, the registration of events, whether there is GPM."""

CALLS_TO_READ = 18
"""Utilization, memory, power, temperature, clock, throttle reasons, clock of the memory, power limit, energy; all
traffic counters at once; width and generation of the PCIe link, now and at most; ECC errors of two kinds, remapped
rows; GPM. The events of a set are not asked of the device."""

DEVICE_FIELDS = tuple(field for field in FIELDS if field not in XID_FIELDS)
"""What is lost with a device that was found once."""

LOST = {**dict.fromkeys(DEVICE_FIELDS, "gpu_is_lost"), "xid_last": "none_seen"}
"""Why each field of such a device is absent."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a present-day library."""
    return compile_nvml(tmp_path_factory.mktemp("driver")).parent


def test_throttled_gpu_is_read_in_our_units(driver: Path) -> None:
    sample = read_sample(driver, STRAINED)
    expected = {
        "host_ns": 0,
        "uuid": STRAINED,
        "model": "Stand-in Strained",
        "utilization_ratio": 0.97,
        "memory_used_bytes": 60_000 * MIB,
        "memory_total_bytes": 80_000 * MIB,
        "power_watts": 699.5,
        "temperature_celsius": 88.0,
        "sm_clock_hertz": 1_230_000_000,
        "throttle_reasons": ["hw_slowdown", "sw_thermal_slowdown"],  # clocks set on purpose are left out
        "memory_clock_hertz": 3_201_000_000,
        "power_limit_watts": 700.0,
        "energy_joules": 0.0,
    }
    assert {field: sample[field] for field in expected} == expected


def test_energy_is_the_use_of_the_board_since_the_first_sample(driver: Path) -> None:
    samples = run_script(driver, STRAINED, "answer([sample(at_s)[0] for at_s in (0, 1, 2)])")
    assert [name_fields(one)["energy_joules"] for one in samples] == [0.0, 0.5, 1.0]


def test_idle_gpu_is_measured_as_not_throttled(driver: Path) -> None:
    sample = read_sample(driver, QUIET)
    assert sample["throttle_reasons"] == []
    assert sample["utilization_ratio"] == 0.0


def test_value_without_permission_is_absent_and_others_measured(driver: Path) -> None:
    sample = read_sample(driver, QUIET)
    assert sample["power_watts"] is None
    assert sample["absent"]["power_watts"] == "no_permission"
    assert sample["temperature_celsius"] == 31.0


def test_old_driver_is_read_through_the_older_calls(tmp_path: Path) -> None:
    compile_nvml(tmp_path, old_driver=True)
    sample = read_sample(tmp_path, STRAINED)
    assert sample["memory_used_bytes"] == (60_000 + 512) * MIB  # the older call counts the driver's own 512 MiB as used
    assert sample["throttle_reasons"] == ["hw_slowdown", "sw_thermal_slowdown"]
    assert sample["absent"].keys().isdisjoint(nvml_readings.STATE_FIELDS)


def test_gpu_slice_has_own_memory_and_the_power_of_its_board(driver: Path) -> None:
    torch_name = SLICE.replace("MIG-", "GPU-")
    sample = read_sample(driver, torch_name)
    assert sample["uuid"] == SLICE
    assert (sample["memory_used_bytes"], sample["memory_total_bytes"]) == (4_000 * MIB, 10_000 * MIB)
    assert sample["power_watts"] == 250.0
    assert sample["absent"]["energy_joules"] == "counted_for_the_whole_board"
    assert sample["throttle_reasons"] == ["sw_power_cap"]
    assert sample["absent"]["utilization_ratio"] == "not_supported"


def test_slice_can_be_asked_for_by_its_own_name(driver: Path) -> None:
    assert read_sample(driver, SLICE)["model"] == "Stand-in Slice"


def test_unloaded_driver_is_told_with_cure_once_at_no_later_cost(driver: Path) -> None:
    script = "answer([sample(0), sample(1000), said, sampler.unavailable, calls()])"
    first, second, said, unavailable, calls = run_script(driver, STRAINED, script, STAND_IN_INIT_RESULT=9)
    assert (first, second, unavailable, calls) == ([], [], "driver_not_loaded", 0)
    assert said == [
        (
            "GPU sensors are not read (driver_not_loaded): nvmlInit failed with Driver Not Loaded; the NVIDIA driver's "
            "libnvidia-ml.so.1 must be found and fit the loaded driver; a container needs `utility` in "
            "NVIDIA_DRIVER_CAPABILITIES. Everything else is measured"
        )
    ]


def test_error_unknown_to_pynvml_is_named_by_the_drivers_text(driver: Path) -> None:
    script = "sample(); answer(sampler.unavailable)"
    assert run_script(driver, STRAINED, script, STAND_IN_INIT_RESULT=4242) == "stand_in_made_up_error"


def test_machine_without_the_driver_library_gives_no_samples(tmp_path: Path) -> None:
    # An unusable file of that name ends the search, so that a real driver of this machine is not found instead.
    (tmp_path / "libnvidia-ml.so.1").touch()
    script = "answer([sample(), sample(), len(said), sampler.unavailable])"
    assert run_script(tmp_path, STRAINED, script) == [[], [], 1, "library_not_found"]


def test_process_that_does_not_use_cuda_never_loads_nvml(driver: Path) -> None:
    assert run_script(driver, "", "answer([sample(), 'pynvml' in sys.modules, said])") == [[], False, []]


def test_nvml_is_opened_once_and_the_device_looked_up_once(driver: Path) -> None:
    script = "answer([[sample(at_s) and calls() for at_s in range(3)], init_balance()])"
    counts, balance = run_script(driver, STRAINED, script)
    assert counts == [CALLS_TO_FIND + samples * CALLS_TO_READ for samples in (1, 2, 3)]
    assert balance == 1


def test_closed_sampler_gives_nvml_back_and_no_more_samples(driver: Path) -> None:
    script = "sample(); sampler.close(); sampler.close(); answer([init_balance(), sample(), said])"
    assert run_script(driver, STRAINED, script) == [0, [], []]


def test_sampler_closed_before_it_was_needed_never_opens_nvml(driver: Path) -> None:
    assert run_script(driver, STRAINED, "sampler.close(); answer([sample(), 'pynvml' in sys.modules])") == [[], False]


def test_gpu_lost_between_two_samples_is_absent_in_every_field(driver: Path) -> None:
    script = "sample(0); answer(sample(1))"
    lost_from = CALLS_TO_FIND + CALLS_TO_READ + 1
    (values,) = run_script(driver, STRAINED, script, STAND_IN_LOST_FROM_CALL=lost_from)
    sample = name_fields(values)
    assert sample["absent"] == LOST
    assert {sample[field] for field in DEVICE_FIELDS} == {None}
    assert (sample["host_ns"], sample["uuid"], sample["model"]) == (1_000_000_000, STRAINED, "Stand-in Strained")


def test_gpu_lost_within_a_sample_is_asked_nothing_more(driver: Path) -> None:
    script, third_reading = "answer([sample(), calls()])", CALLS_TO_FIND + 3
    (values,), calls = run_script(driver, STRAINED, script, STAND_IN_LOST_FROM_CALL=third_reading)
    assert name_fields(values)["absent"] == LOST
    assert calls == third_reading


def test_gpu_with_nothing_readable_is_lost_whatever_the_error(driver: Path) -> None:
    script = "sample(0); answer([*sample(1), [calls()], *sample(2), [calls()]])"
    lost = {"STAND_IN_LOST_FROM_CALL": CALLS_TO_FIND + CALLS_TO_READ + 1, "STAND_IN_LOST_RESULT": 999}
    values, calls, _, calls_later = run_script(driver, STRAINED, script, **lost)
    assert name_fields(values)["absent"] == {**dict.fromkeys(DEVICE_FIELDS, "unknown"), "xid_last": "none_seen"}
    assert calls == calls_later  # it is left alone for 10 s


def test_lost_gpu_is_retried_after_10_then_20_s_until_it_is_back(driver: Path) -> None:
    script = "answer([[at_s, sample(at_s)[0][3] is None, calls()] for at_s in (0, 1, 10, 11, 30, 31)])"
    # Calls 1-22 are the first sample. Call 23 finds the GPU lost, call 24 still, call 25 sees it again.
    history = run_script(driver, STRAINED, script, STAND_IN_LOST_FROM_CALL=23, STAND_IN_LOST_UNTIL_CALL=25)
    assert history == [
        [0, False, CALLS_TO_FIND + CALLS_TO_READ],
        [1, True, 23],
        [10, True, 23],  # only 9 s after the loss
        [11, True, 24],
        [30, True, 24],  # only 19 s after the first try
        [31, False, 24 + CALLS_TO_FIND + CALLS_TO_READ],
    ]


def test_lost_gpu_is_retried_at_most_every_ten_minutes_later(driver: Path) -> None:
    # Waits of 10, 20, 40, 80, 160, 320 s end at 630 s; from then on one try every 600 s: 1230, 1830, 2430.
    script = "answer([sample(at_s) and calls() for at_s in range(0, 2500, 10)])"
    counts = run_script(driver, STRAINED, script, STAND_IN_LOST_FROM_CALL=1)
    tries = [10 * place for place, count in enumerate(counts) if count > (counts[place - 1] if place else 0)]
    assert tries == [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430]


def test_gpu_that_nvml_does_not_know_is_absent_with_the_reason(driver: Path) -> None:
    sample = read_sample(driver, "GPU-ffffffff-0000-0000-0000-000000000000")
    assert sample["absent"] == dict.fromkeys(FIELDS, "not_found")
    assert sample["uuid"] == "GPU-ffffffff-0000-0000-0000-000000000000"


def test_process_that_changes_its_gpu_is_followed_at_once(driver: Path) -> None:
    script = f"sample(0)\nuuid = {QUIET!r}\nanswer(sample(1)[0][1:3])"
    assert run_script(driver, STRAINED, script) == [QUIET, "Stand-in Quiet"]


def test_our_throttle_names_are_those_of_pynvml() -> None:
    pattern = re.compile(r"nvmlClocks(?:Throttle|Event)Reason(\w+)")
    names: dict[int, set[str]] = {}
    for match in filter(None, map(pattern.fullmatch, dir(pynvml))):
        snake_case = re.sub(r"(?<!^)(?=[A-Z])", "_", match[1]).lower()
        names.setdefault(getattr(pynvml, match[0]), set()).add(snake_case)
    single_bits = {bit: found for bit, found in names.items() if bit.bit_count() == 1}
    # An older pynvml knows fewer of them.
    ours = {**THROTTLE_REASONS, GPU_IDLE: "gpu_idle", APPLICATIONS_CLOCKS_SETTING: "applications_clocks_setting"}
    assert len(single_bits) >= 9
    assert {bit: ours.get(bit) in found for bit, found in single_bits.items()} == dict.fromkeys(single_bits, True)


def test_throttle_reason_of_a_newer_driver_is_named_by_its_bit() -> None:
    assert name_throttle_reasons(0x4 | 0x1000) == ("sw_power_cap", "bit_12")


def test_missing_compiler_fails_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"gcc is not on PATH, .* install it \(apt-get install gcc"):
        compile_nvml(tmp_path)
