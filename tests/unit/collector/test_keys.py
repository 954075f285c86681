"""Making keys."""

import os
import stat
from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.keys import complete_keys, make_keys
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.key_files import read_key_pair, read_public_key


def mode_of(path: Path) -> int:
    """Its permissions."""
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_call_makes_a_pair_for_each_side(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    written = make_keys(folder, [], force=False)
    assert [str(path.relative_to(folder)) for path in written] == [
        "agent.key", "allowed/agent.pub", "collector.key", "collector.pub",
    ]  # fmt: skip
    for name, public in (("agent", "allowed/agent.pub"), ("collector", "collector.pub")):
        pair = read_key_pair(str(folder / f"{name}.key"), "key_file")
        assert pair.public == read_public_key(str(folder / public), "collector_key_file")


def test_secret_keys_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_keys(tmp_path / "keys", [], force=False)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "keys") == 0o711
    assert mode_of(tmp_path / "keys" / "allowed") == 0o755
    assert {mode_of(path) for path in (tmp_path / "keys").glob("*.key")} == {0o600}
    assert mode_of(tmp_path / "keys" / "collector.pub") == 0o644


@pytest.mark.parametrize(("before", "after"), [(0o1777, 0o1777), (0o755, 0o755), (0o700, 0o711), (0o2775, 0o2755)])
def test_existing_folder_keeps_readers_and_loses_writers(tmp_path: Path, before: int, after: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(before)
    make_keys(folder, [], force=False)
    assert mode_of(folder) == after
    assert {mode_of(path) for path in folder.glob("*.key")} == {0o600}


def test_existing_keys_are_not_overwritten(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    before = {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    cures = "--keep makes only missing keys, --force replaces them, --client NAME adds another client"
    with pytest.raises(SettingError, match=f"exists already; {cures}"):
        make_keys(tmp_path, [], force=False)
    assert {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()} == before


def test_another_client_keeps_all_other_keys(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    before = {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    written = make_keys(tmp_path, ["team-b"], force=False)
    assert written == [tmp_path / "allowed" / "team-b.pub", tmp_path / "team-b.key"]
    assert {path: path.read_text() for path in before} == before


def test_force_for_a_client_replaces_only_its_keys(tmp_path: Path) -> None:
    make_keys(tmp_path, ["a", "b"], force=False)
    before = {path.name: path.read_text() for path in tmp_path.glob("*.key")}
    make_keys(tmp_path, ["b"], force=True)
    changed = {path.name for path in tmp_path.glob("*.key") if path.read_text() != before[path.name]}
    assert changed == {"b.key"}


def test_force_without_a_client_replaces_the_collector_keys(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    before = (tmp_path / "collector.key").read_text()
    make_keys(tmp_path, [], force=True)
    assert (tmp_path / "collector.key").read_text() != before
    assert mode_of(tmp_path / "collector.key") == 0o600


@pytest.mark.parametrize("name", ["", "../x", "a b", "collector", "-x", "x" * 65])
def test_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match=r"--client is .*; it must be letters, digits, - and _"):
        make_keys(tmp_path, [name], force=False)


def test_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"keys cannot be written to .*Name a folder of your own"):
        make_keys(tmp_path / "file", [], force=False)


def test_command_prints_where_each_key_belongs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(tmp_path), "--client", "bob"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"collector:  rankscope serve --key-file {tmp_path}/collector.key --allowed-keys {tmp_path}/allowed",
        f"agents:     RANKSCOPE_KEY_FILE={tmp_path}/bob.key RANKSCOPE_COLLECTOR_KEY_FILE={tmp_path}/collector.pub",
    ]
    assert main(["keys", str(tmp_path), "--client", "bob"]) == 2


def test_public_key_of_a_relay_is_in_the_relays_folder(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    written = make_keys(tmp_path, ["team"], relays=["node"], force=False)
    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "allowed/relays/node.pub", "allowed/team.pub", "node.key", "team.key",
    ]  # fmt: skip


def test_name_is_not_both_client_and_relay(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"--client is 'node'; it must be .* not the name of a client and of a relay"
    ):
        make_keys(tmp_path, ["node"], relays=["node"], force=False)
    assert list(tmp_path.iterdir()) == []


def test_keep_does_not_change_existing_keys(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    before = {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert complete_keys(tmp_path, []) == []
    assert {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()} == before


def test_keep_makes_all_missing_keys(tmp_path: Path) -> None:
    written = complete_keys(tmp_path / "keys", ["team-b"])
    assert [path.name for path in written] == ["team-b.pub", "collector.key", "collector.pub", "team-b.key"]
    assert mode_of(tmp_path / "keys") == 0o711


def test_keep_makes_a_missing_public_key(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    public = tmp_path / "allowed" / "agent.pub"
    before = public.read_text()
    public.unlink()
    assert complete_keys(tmp_path, []) == [public]
    assert public.read_text() == before


def test_public_key_without_its_secret_one_is_not_replaced(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    secret, public = tmp_path / "agent.key", tmp_path / "allowed" / "agent.pub"
    secret.unlink()
    with pytest.raises(SettingError) as raised:
        complete_keys(tmp_path, [])
    assert str(raised.value) == f"{public} exists and {secret} does not: restore it, or remove agent.pub as well"


def test_public_key_of_another_pair_is_an_error(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    (tmp_path / "collector.pub").write_text((tmp_path / "allowed" / "agent.pub").read_text())
    with pytest.raises(
        SettingError, match=r"collector\.pub is not the public key of .*collector\.key: remove the wrong"
    ):
        complete_keys(tmp_path, [])


def test_kept_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    (tmp_path / "agent.key").chmod(0o644)
    with pytest.raises(
        SettingError, match=r"agent's key file is .* has the mode 0644: others could read it. chmod 600"
    ):
        complete_keys(tmp_path, [])


def test_command_reports_that_all_keys_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [main(["keys", str(tmp_path), "--keep"]) for _ in range(2)] == [0, 0]
    said = capsys.readouterr().out
    assert said.count("wrote ") == 4
    assert f"kept the keys in {tmp_path}\n" in said
