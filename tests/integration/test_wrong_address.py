"""Errors of the commands for a wrong address, a wrong token or an untrusted certificate."""

import contextlib
import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rankscope.collector.commands.main import main
from tests.certificates import make_certificate
from tests.integration.serving import Served, serving

TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of this test only
WHERE = "--url (RANKSCOPE_URL) must name the collector's HTTP address"


class Secured(NamedTuple):
    """A collector with a token and a certificate of its own making, and their files."""

    served: Served
    token: Path
    certificate: Path


@pytest.fixture(scope="module")
def plain() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    certificate, key, token = (folder / name for name in ("cert.pem", "key.pem", "token"))
    make_certificate(certificate, key)
    token.write_text(TOKEN)
    for private in (key, token):
        private.chmod(0o600)
    files = ("--http-token-file", token, "--http-certificate-file", certificate, "--http-key-file", key)
    with serving(*map(str, files)) as served:
        yield Secured(served, token, certificate)


@pytest.fixture(autouse=True)
def only_these_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without what whoever runs the tests has set for himself."""
    for name in [name for name in os.environ if name.startswith("RANKSCOPE") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str]) -> "AskStatus":
    return AskStatus(capsys)


class AskStatus:
    """Runs `rankscope status` that must fail; gives its one line."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, url: str, *options: str) -> str:
        assert main(["status", "--url", url, *options]) == 1
        shown = self._capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        return shown.err.removeprefix("rankscope: ").removesuffix("\n")


def test_agents_port_is_recognized_by_its_greeting(plain: Served, error_of: AskStatus) -> None:
    url = f"http://127.0.0.1:{plain.ports[0]}"
    assert error_of(url) == (
        f"what answers at {url}/api/v1/runs is a ZeroMQ socket, perhaps the port for agents. The HTTP port is another "
        f"one: 18491 unless http_listen says otherwise; {WHERE}."
    )


def test_agents_port_is_recognized_with_https(plain: Served, error_of: AskStatus) -> None:
    assert "is a ZeroMQ socket" in error_of(f"https://127.0.0.1:{plain.ports[0]}")


def test_http_at_a_collector_with_tls_suggests_https(secured: Secured, error_of: AskStatus) -> None:
    address = f"127.0.0.1:{secured.served.ports[1]}"
    assert error_of(f"http://{address}") == (
        f"what answers at http://{address}/api/v1/runs speaks TLS: ask at https://{address}."
    )


def test_https_at_a_collector_without_tls_suggests_http(plain: Served, error_of: AskStatus) -> None:
    address = f"127.0.0.1:{plain.ports[1]}"
    assert error_of(f"https://{address}") == (
        f"what answers at https://{address}/api/v1/runs speaks no TLS: ask at http://{address}."
    )


def test_self_signed_certificate_is_an_error_with_its_cure(secured: Secured, error_of: AskStatus) -> None:
    url = secured.served.url
    assert error_of(url) == (
        f"the certificate at {url}/api/v1/runs is not trusted: self-signed certificate. If it is the collector's own, "
        "name a copy of it with --ca-file (RANKSCOPE_CA_FILE)."
    )


def test_certificate_of_another_name_is_an_error_with_its_cure(secured: Secured, error_of: AskStatus) -> None:
    url = f"https://localhost:{secured.served.ports[1]}"
    error = error_of(url, "--ca-file", str(secured.certificate))
    assert "Hostname mismatch, certificate is not valid for 'localhost'" in error
    assert error.endswith("Ask under a name that is in the certificate, or give the collector one that has this name.")


def test_missing_token_is_an_error_that_names_the_option(secured: Secured, error_of: AskStatus) -> None:
    url = secured.served.url
    assert error_of(url, "--ca-file", str(secured.certificate)) == (
        f"the collector at {url}/api/v1/runs answers 401: it requires its token. Name the file that holds it with "
        "--token-file (RANKSCOPE_TOKEN_FILE), or give the whole address that rank 0 has printed."
    )


def test_wrong_token_is_an_error_that_names_its_file(
    secured: Secured, error_of: AskStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(TOKEN[::-1])
    wrong.chmod(0o600)
    monkeypatch.setenv("RANKSCOPE_TOKEN_FILE", str(wrong))
    assert error_of(secured.served.url, "--ca-file", str(secured.certificate)) == (
        f"the collector at {secured.served.url}/api/v1/runs answers 401: the token in {wrong} (from "
        "RANKSCOPE_TOKEN_FILE) is not its token. It uses the one that the file named by its http_token_file held when "
        "the collector was started."
    )


@pytest.mark.parametrize("text", ["", "first-line\nsecond-line", "token-of-\u20ac"], ids=["empty", "two lines", "euro"])
def test_invalid_token_is_named_by_its_file_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(0o600)
    assert main(["status", "--url", "http://127.0.0.1:9", "--token-file", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"rankscope: token_file is '{file}' (from the command line), which holds no token: that is one word of ASCII "
        "characters. Name a copy of the file that the collector's http_token_file names.\n"
    )


def test_variables_configure_every_command(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKSCOPE_URL", secured.served.url)
    monkeypatch.setenv("RANKSCOPE_TOKEN_FILE", str(secured.token))
    monkeypatch.setenv("RANKSCOPE_CA_FILE", str(secured.certificate))
    assert [main([command]) for command in ("status", "incidents")] == [0, 0]
    assert main(["report", "bert"]) == 1
    assert main(["top", "--once"]) == 0
    shown = capsys.readouterr()
    assert "no run has reported to this collector\nno incident\n" in shown.out
    assert shown.err.startswith(
        f"rankscope: the collector at {secured.served.url}/api/v1/runs/bert/report answers 404: "
    )


def test_client_file_configures_commands(secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rankscope").mkdir()
    (tmp_path / "rankscope" / "client.toml").write_text(
        f'url = "{secured.served.url}"\ntoken_file = "{secured.token}"\nca_file = "{secured.certificate}"\n'
    )
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "no run has reported to this collector\n"


def test_closed_port_is_named(error_of: AskStatus) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert error_of(f"http://{address}") == (
            f"no collector answers at http://{address}/api/v1/runs: nothing listens at {address} (connection refused). "
            f"`rankscope serve` starts one; {WHERE}."
        )


def test_name_that_does_not_resolve_is_named(error_of: AskStatus) -> None:
    assert error_of("http://no-such-host.invalid:18491") == (
        "no collector answers at http://no-such-host.invalid:18491/api/v1/runs: the name no-such-host.invalid does not "
        f"resolve. Check it; {WHERE}."
    )


def test_proxy_on_the_way_is_named(error_of: AskStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy = f"127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("http_proxy", f"http://me:secret@{proxy}")
        error = error_of("http://collector.invalid:18491")
    assert f", asked through the proxy {proxy} (http_proxy): " in error
    assert error.endswith(f"Put the host into no_proxy if no proxy is needed; {WHERE}.")


class _AnotherServer(http.server.BaseHTTPRequestHandler):
    """Serves something else."""

    status = 404

    def do_GET(self) -> None:
        self.send_response(self.status)
        if self.status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="Grafana"')
        self.end_headers()
        self.wfile.write(b"<!doctype html>")

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving_something_else(status: int) -> Iterator[str]:
    handler = type("Handler", (_AnotherServer,), {"status": status})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "said"),
    [(404, "is no rankscope collector: HTTP 404, Not Found."), (401, "asks for a login and is no rankscope collector")],
)
def test_other_web_server_is_not_a_collector(error_of: AskStatus, status: int, said: str) -> None:
    with serving_something_else(status) as url:
        error = error_of(url)
    assert error.startswith(f"what answers at {url}/api/v1/runs {said}")
    assert error.endswith(f"{WHERE}.")


def test_misspelt_command_suggests_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["staus"]) == 2
    assert capsys.readouterr().err == (
        "rankscope: 'staus' is not a command. Did you mean `rankscope status`? `rankscope --help` says what each "
        "does.\n"
    )


def test_unknown_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "'xyzzy' is not a command. The commands are top, status, incidents, " in capsys.readouterr().err
