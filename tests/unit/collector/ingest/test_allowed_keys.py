"""The folder of allowed keys, which is read again while the collector runs."""

import logging
from pathlib import Path

import pytest

from rankscope.collector.ingest.curve import AllowedKeys
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import KEY_LENGTH, format_key_file
from rankscope.measure.units import NS_PER_S, HostNs, WallNs

A, B = "a" * KEY_LENGTH, "b" * KEY_LENGTH


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_ns)

    def wall_ns(self) -> WallNs:
        return WallNs(self.now_ns)


def write(folder: Path, name: str, key: str) -> None:
    """A public key."""
    (folder / name).write_text(format_key_file(key))


@pytest.fixture
def clock() -> Clock:
    """A clock at 0."""
    return Clock()


def test_only_keys_in_the_folder_are_allowed(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path, "a.pub", A)
    write(tmp_path, "b.key", B)  # not a public key's name
    write(tmp_path, ".b.pub", B)  # a file that is being written
    allowed = AllowedKeys(str(tmp_path), clock)
    assert (allowed.is_allowed(A), allowed.is_allowed(B), allowed.is_allowed("")) == (True, False, False)


def test_added_and_removed_keys_count_after_a_second(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path, "a.pub", A)
    allowed = AllowedKeys(str(tmp_path), clock)
    write(tmp_path, "b.pub", B)
    (tmp_path / "a.pub").unlink()
    assert (allowed.is_allowed(A), allowed.is_allowed(B)) == (True, False)
    clock.now_ns += NS_PER_S
    assert (allowed.is_allowed(A), allowed.is_allowed(B)) == (False, True)


def test_folder_unreadable_later_keeps_the_previous_keys(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "a.pub", A)
    allowed = AllowedKeys(str(tmp_path), clock)
    (tmp_path / "broken.pub").write_text("no key")
    with caplog.at_level(logging.ERROR, "rankscope.collector"):
        for _ in range(3):
            clock.now_ns += NS_PER_S
            assert allowed.is_allowed(A)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("Keeping the previous allowed keys.")


@pytest.mark.parametrize("missing", [True, False])
def test_folder_without_keys_is_refused_at_the_start(tmp_path: Path, clock: Clock, missing: bool) -> None:
    folder = tmp_path / "none" if missing else tmp_path
    with pytest.raises(
        SettingError, match=r"allowed_keys is '.*', (which cannot be read|in which 0 files end in .pub)"
    ):
        AllowedKeys(str(folder), clock)


def test_only_keys_in_the_relays_folder_may_relay(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path, "agent.pub", A)
    (tmp_path / "relays").mkdir()
    write(tmp_path / "relays", "node.pub", B)
    allowed = AllowedKeys(str(tmp_path), clock)
    assert (allowed.is_allowed(A), allowed.is_allowed(B), allowed.is_allowed("")) == (True, True, False)
    assert (allowed.may_relay(A), allowed.may_relay(B), allowed.may_relay("")) == (False, True, False)


def test_folder_with_only_relay_keys_is_enough(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "relays").mkdir()
    write(tmp_path / "relays", "node.pub", B)
    assert AllowedKeys(str(tmp_path), clock).is_allowed(B)
