"""Who may read over HTTP: tokens, and the files they and certificates come from."""

import base64
from pathlib import Path

import pytest

from rankscope.collector.publish.http_auth import OPEN, HttpAuth, read_http_auth
from rankscope.measure.errors import SettingError

TOKEN = "0123456789abcdef"  # noqa: S105 - as long as one must be
GUARDED = HttpAuth(TOKEN)


def basic(user: str, password: str) -> str:
    """The header of basic authentication."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def write(path: Path, text: str, mode: int = 0o600) -> str:
    """A file of a secret."""
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    "authorization",
    [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic("anybody", TOKEN), basic("", TOKEN)],
)
def test_the_token_is_taken_as_a_bearer_s_or_as_a_password(authorization: str) -> None:
    assert GUARDED.admits("/metrics", authorization)


def test_token_of_an_address_is_taken_from_it_and_never_answered() -> None:
    access = HttpAuth(TOKEN, is_in_address=True)
    assert access.take_token(f"/metrics/ranks?shard=1/2&token={TOKEN}") == ("/metrics/ranks?shard=1/2", TOKEN)
    assert access.admits("/metrics", "", TOKEN)
    assert access.admits("/metrics", f"Bearer {TOKEN}")
    assert not any(access.admits("/metrics", "", wrong) for wrong in ("", TOKEN[1:], f"{TOKEN}x", "ü\udcff"))


def test_token_of_the_settings_is_not_taken_from_an_address() -> None:
    assert GUARDED.take_token(f"/metrics?token={TOKEN}") == (f"/metrics?token={TOKEN}", "")


@pytest.mark.parametrize(
    "authorization",
    [
        "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Digest {TOKEN}", "Basic",
        "Basic !!!", f"Basic {TOKEN}", basic(TOKEN, ""), basic("anybody", TOKEN + ":"), "Bearer ü\udcff",
    ],
)  # fmt: skip
def test_everything_else_is_not(authorization: str) -> None:
    assert not GUARDED.admits("/metrics", authorization)


@pytest.mark.parametrize(
    ("path", "is_open"),
    [("/healthz", True), ("/readyz", True), ("/", False), ("/healthz/", False), ("/metrics", False), ("", False)],
)
def test_only_what_an_orchestrator_asks_is_open_to_all(path: str, is_open: bool) -> None:
    assert GUARDED.admits(path, "") is is_open


def test_without_a_token_everything_is_open() -> None:
    assert OPEN.admits("/metrics", "")
    assert read_http_auth(token_file="", certificate_file="", key_file="") == OPEN


def test_token_is_the_text_of_the_file_without_its_newline(tmp_path: Path) -> None:
    path = write(tmp_path / "token", f"{TOKEN}\n")
    assert read_http_auth(token_file=path, certificate_file="", key_file="").token == TOKEN


@pytest.mark.parametrize("text", ["", "short", f"{TOKEN} {TOKEN}", f"{TOKEN}\n{TOKEN}", "ü" * 16, TOKEN[1:]])
def test_a_text_that_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingError, match=r"whose text is no token: it must be one word of at least 16 characters"):
        read_http_auth(token_file=write(tmp_path / "token", text), certificate_file="", key_file="")


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"http_token_file is .*has the mode 0644"):
        read_http_auth(token_file=write(tmp_path / "token", TOKEN, 0o644), certificate_file="", key_file="")


@pytest.mark.parametrize(("certificate", "key"), [("c", ""), ("", "k")])
def test_a_certificate_needs_its_key_and_the_other_way_round(certificate: str, key: str) -> None:
    with pytest.raises(SettingError, match="HTTPS needs both"):
        read_http_auth(token_file="", certificate_file=certificate, key_file=key)


def test_a_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    key = write(tmp_path / "key.pem", "no key")
    with pytest.raises(SettingError, match=r"which cannot be used: .*Give a certificate and its key as PEM"):
        read_http_auth(token_file="", certificate_file=key, key_file=key)
