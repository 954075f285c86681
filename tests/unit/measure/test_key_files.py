"""Key files: what is read from them, and what is refused."""

from pathlib import Path

import pytest

from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import (
    FILE_BYTES_MAX,
    KEY_LENGTH,
    KeyPair,
    format_key_file,
    is_key,
    read_key_pair,
    read_private_text,
    read_public_key,
)

PUBLIC = "0123456789abcdefghijABCDEFGHIJ.-:+=^!/*?"
SECRET = "&<>()[]{}@%$#klmnopqrstKLMNOPQRST.-:+=^!"  # noqa: S105 - no key, only characters that one may have


def write(folder: Path, text: str, mode: int = 0o600) -> str:
    """A key file."""
    path = folder / "some.key"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_pair_that_was_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, format_key_file(PUBLIC, SECRET))
    assert read_key_pair(path, "key_file") == KeyPair(PUBLIC, SECRET)
    assert read_public_key(path, "key_file") == PUBLIC


def test_a_certificate_of_another_tool_is_read(tmp_path: Path) -> None:
    text = f'#  ZeroMQ CURVE Public Certificate\nmetadata\n    name = "b"\ncurve\n    public-key = "{PUBLIC}"\n'
    assert read_public_key(write(tmp_path, text, 0o644), "collector_key_file") == PUBLIC


def test_a_pair_does_not_show_its_secret() -> None:
    assert SECRET not in repr(KeyPair(PUBLIC, SECRET))
    assert PUBLIC in repr(KeyPair(PUBLIC, SECRET))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o610, 0o644, 0o777])
def test_a_secret_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, format_key_file(PUBLIC, SECRET), mode)
    with pytest.raises(SettingError) as raised:
        read_key_pair(path, "key_file")
    assert str(raised.value) == (
        f"key_file is {path!r}, which holds a secret and has the mode {mode:04o}: others could read it. "
        f"chmod 600 {path}"
    )


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640])
def test_a_secret_of_its_owner_and_group_is_read(tmp_path: Path, mode: int) -> None:
    assert read_private_text(write(tmp_path, "secret", mode), "http_token_file") == "secret"


def test_a_file_without_the_secret_key_is_no_pair(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"in which there is no pair of keys. Name a file that `rankscope keys`"):
        read_key_pair(write(tmp_path, format_key_file(PUBLIC)), "key_file")


@pytest.mark.parametrize("text", ["", "public-key = unquoted", f'public-key = "{PUBLIC[:-1]}"', 'public-key = "\n"'])
def test_a_file_without_a_key_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingError, match=r"collector_key_file is .*, in which there is no public key"):
        read_public_key(write(tmp_path, text), "collector_key_file")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"key_file is '.*none', which cannot be read: .*No such file"):
        read_key_pair(str(tmp_path / "none"), "key_file")


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "some.key"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="which cannot be read"):
        read_public_key(str(path), "collector_key_file")


def test_a_file_too_large_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"has more than {FILE_BYTES_MAX} bytes: it is another file"):
        read_public_key(write(tmp_path, "x" * (FILE_BYTES_MAX + 1)), "collector_key_file")


@pytest.mark.parametrize(("text", "is_one"), [(PUBLIC, True), (PUBLIC[1:], False), ("~" * KEY_LENGTH, False)])
def test_a_key_is_forty_characters_of_z85(text: str, is_one: bool) -> None:
    assert is_key(text) is is_one
