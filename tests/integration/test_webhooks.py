"""Webhooks to a real receiver: what it gets, whose signature is checked by openssl, and receivers that misbehave."""

import base64
import hmac
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.notifications.channel import DELIVERED, FAILED, RETRIED, TryResult
from rankscope.collector.notifications.webhook import ANSWER_BYTES_MAX, Webhook, make_webhook, parse_retry_after
from rankscope.measure.errors import SettingError
from tests.certificates import make_certificate
from tests.integration.receivers import (
    OK,
    Behavior,
    Request,
    WebhookReceiver,
    answering,
    receiving,
    saying,
    saying_forever,
    saying_nothing,
)
from tests.integration.serving import can_listen, find_fixed_port, wait_for
from tests.programs import find_program
from tests.unit.collector.notifications.worlds import NEVER_CANCELLED, an_event

SECRET = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of this test
WALL_S = 1_800_000_000.25
PATIENT_S = 60.0
DOCS = Path(__file__).parents[2] / "docs" / "notifications.md"
IMPATIENT_S = 0.3
"""Limit of a try where the receiver never comes to an end."""


def send(
    url: str,
    *,
    tls: ssl.SSLContext | None = None,
    try_s_max: float = PATIENT_S,
    key: str = SECRET,
    at_s: float = WALL_S,
) -> TryResult:
    """Send one event at a time of the wall clock."""
    webhook = Webhook(url, key.encode(), tls, read_wall_s=lambda: at_s, try_s_max=try_s_max)
    return webhook(an_event(), NEVER_CANCELLED)


def send_to(*behaviors: Behavior, try_s_max: float = PATIENT_S) -> tuple[TryResult, WebhookReceiver]:
    """Send one event to a receiver that behaves so."""
    with receiving(*behaviors) as receiver:
        return send(receiver.url, try_s_max=try_s_max), receiver


def write_secret(folder: Path, text: str, mode: int = 0o600) -> str:
    """A file with a secret."""
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.fixture(scope="module")
def request_seen() -> Request:
    """A request as a receiver gets it."""
    delivery, receiver = send_to(OK)
    assert delivery == TryResult(DELIVERED)
    (seen,) = receiver.requests
    return seen


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_event_is_a_post_of_json(request_seen: Request) -> None:
    assert request_seen.line == "POST /hook?team=ml HTTP/1.1"
    assert request_seen.headers["content-type"] == "application/json"
    assert request_seen.headers["webhook-id"] == an_event().id
    assert request_seen.headers["webhook-timestamp"] == "1800000000"
    body: dict[str, Any] = msgspec.json.decode(request_seen.body)
    assert (body["kind"], body["incident"]["ranks"]) == ("opened", [2])


def test_openssl_comes_to_the_same_signature(request_seen: Request) -> None:
    signed = f"{request_seen.headers['webhook-id']}.1800000000.".encode() + request_seen.body
    command = [find_program("openssl"), "dgst", "-sha256", "-hmac", SECRET, "-binary"]
    digest = subprocess.run(command, input=signed, capture_output=True, check=True).stdout
    assert request_seen.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize("changed", ["id", "timestamp", "body"])
def test_signature_holds_for_no_other_id_time_or_body(request_seen: Request, changed: str) -> None:
    parts = {"id": request_seen.headers["webhook-id"], "timestamp": "1800000000", "body": request_seen.body.decode()}
    parts[changed] += "0"
    signed = f"{parts['id']}.{parts['timestamp']}.{parts['body']}".encode()
    other = base64.b64encode(hmac.digest(SECRET.encode(), signed, "sha256")).decode()
    assert request_seen.headers["webhook-signature"] != f"v1,{other}"


def test_receiver_of_the_docs_accepts_our_messages_and_no_others(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(import base64.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "receiver.py").write_text(program)
    port, secret = find_fixed_port(), write_secret(tmp_path, f"{SECRET}\n")
    child = subprocess.Popen(
        [sys.executable, str(tmp_path / "receiver.py"), str(port), secret],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    times_s = [time.time(), time.time(), time.time() - 301.0]
    keys = [SECRET, "another secret..", SECRET]
    with child:
        wait_for(lambda: None if can_listen(port) else True, lambda: "it does not listen")
        answers = [
            send(f"http://127.0.0.1:{port}/", key=key, at_s=at_s) for key, at_s in zip(keys, times_s, strict=True)
        ]
        child.terminate()
        assert child.stdout is not None
        assert child.stdout.read().decode() == "incident 1 of run bert is opened (warning): Rank 2 is slow.\n"
    assert [answer.outcome for answer in answers] == [DELIVERED, FAILED, FAILED]


# -- receivers that misbehave -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_success_is_a_delivery(status: int) -> None:
    assert send_to(answering(status))[0] == TryResult(DELIVERED)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
def test_refusal_is_not_tried_again(status: int) -> None:
    delivery, receiver = send_to(answering(status))
    assert delivery == TryResult(FAILED, f"the receiver at 127.0.0.1:{receiver.port} answers {status}")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_busy_receiver_is_tried_again(status: int) -> None:
    delivery, receiver = send_to(answering(status, "Retry-After: 7"))
    assert delivery == TryResult(RETRIED, f"the receiver at 127.0.0.1:{receiver.port} answers {status}", 7.0)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_is_not_followed(status: int) -> None:
    with receiving() as other:
        delivery, _ = send_to(answering(status, f"Location: {other.url}"))
        assert (delivery.outcome, other.requests) == (FAILED, [])
    assert delivery.problem.endswith(
        f"answers {status}: redirects are not followed, set notify_webhook_url to the final address"
    )


def test_receiver_that_is_gone_is_tried_again() -> None:
    port = find_fixed_port()
    assert can_listen(port)
    delivery = send(f"http://127.0.0.1:{port}/")
    assert delivery == TryResult(RETRIED, f"the receiver at 127.0.0.1:{port} cannot be reached: Connection refused")


@pytest.mark.parametrize(
    "data",
    [b"", b"HTTP/1.1 2", b"SSH-2.0-OpenSSH_9.6\r\n", b"\0" * 100_000],
    ids=["nothing", "half a line", "other protocol", "zeros"],
)
def test_answer_that_is_none_is_tried_again(data: bytes) -> None:
    delivery, _ = send_to(saying(data))
    assert delivery.outcome == RETRIED


@pytest.mark.parametrize("rest", [b"Content-", b"Content-Length: 1000\r\n\r\nhalf of"])
def test_answer_that_is_cut_off_after_a_success_is_a_delivery(rest: bytes) -> None:
    assert send_to(saying(b"HTTP/1.1 200 OK\r\n" + rest))[0] == TryResult(DELIVERED)


def test_answer_without_an_end_is_read_to_a_limit() -> None:
    flood = saying_forever(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * ANSWER_BYTES_MAX)
    assert send_to(flood)[0] == TryResult(DELIVERED)


@pytest.mark.parametrize(
    "behavior",
    [
        saying_nothing,
        saying_forever(b"", b"H", pause_s=0.05),
        saying_forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.01),
    ],
    ids=["silence", "a letter at a time", "continue"],
)
def test_try_ends_however_slowly_the_receiver_sends(behavior: Behavior) -> None:
    delivery, receiver = send_to(behavior, try_s_max=IMPATIENT_S)
    assert delivery == TryResult(RETRIED, f"the receiver at 127.0.0.1:{receiver.port} took longer than 0.3 s")


def test_headers_without_an_end_hold_nothing_up() -> None:
    drip = saying_forever(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", pause_s=0.05)
    assert send_to(drip, try_s_max=IMPATIENT_S)[0] == TryResult(DELIVERED)  # the status has come


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("120", 120.0), ("-5", 0.0), ("9" * 5_000, 999_999_999.0), ("Fri, 31 Dec 9999 23:59:59 GMT", None)],
)
def test_any_retry_after_is_a_number_of_seconds(text: str, seconds: float | None) -> None:
    found = parse_retry_after(text, WALL_S)
    assert found == seconds or (seconds is None and found > 1e9)


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1, and a server's context with it."""
    folder = tmp_path_factory.mktemp("tls")
    path, key = folder / "certificate.pem", folder / "key.pem"
    make_certificate(path, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return path, context


def test_receiver_with_a_trusted_certificate_gets_the_event(certificate: tuple[Path, ssl.SSLContext]) -> None:
    path, server = certificate
    with receiving(tls=server) as receiver:
        delivery = send(receiver.url, tls=ssl.create_default_context(cafile=path))
        assert (delivery, len(receiver.requests)) == (TryResult(DELIVERED), 1)


def test_receiver_with_an_unknown_certificate_gets_nothing(certificate: tuple[Path, ssl.SSLContext]) -> None:
    _, server = certificate
    with receiving(tls=server) as receiver:
        delivery = send(receiver.url, tls=ssl.create_default_context())
        assert (delivery.outcome, receiver.requests) == (RETRIED, [])
    assert "has a certificate that is not trusted: " in delivery.problem


def test_certificate_for_another_name_is_not_trusted(certificate: tuple[Path, ssl.SSLContext]) -> None:
    path, server = certificate
    with receiving(tls=server) as receiver:
        url = receiver.url.replace("127.0.0.1", "localhost")
        delivery = send(url, tls=ssl.create_default_context(cafile=path))
        assert (delivery.outcome, receiver.requests) == (RETRIED, [])
    assert "has a certificate that is not trusted: " in delivery.problem


def test_receiver_that_does_not_speak_tls_is_tried_again() -> None:
    with receiving() as receiver:
        delivery = send(receiver.url.replace("http:", "https:"), tls=ssl.create_default_context())
        assert (delivery.outcome, receiver.requests) == (RETRIED, [])


# -- the settings -----------------------------------------------------------------------------------------------------


def make(secret_file: str, ca_file: str = "", url: str = "https://hooks.example/a") -> Webhook:
    config = CollectorConfig(
        notify_webhook_url=url,
        notify_webhook_secret_file=secret_file,
        notify_webhook_ca_file=ca_file,
    )
    return make_webhook(config, lambda: WALL_S)


@pytest.mark.parametrize("text", [SECRET, f"{SECRET}\n", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"])
def test_secret_is_a_word_or_base64(tmp_path: Path, text: str) -> None:
    make(write_secret(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("short", "it must be one word of at least 16 characters of ASCII"),
        ("two words of a secret", "it must be one word"),
        ("whsec_#################", "after whsec_ it must be Base64"),
        ("whsec_c2hvcnQ=aaaa", "after whsec_ it must be Base64"),
        ("whsec_c2hvcnQsIGZhcg==", "after whsec_ it must be Base64 of at least 16 bytes"),
    ],
)
def test_text_that_is_no_secret_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingError, match=reason) as raised:
        make(write_secret(tmp_path, text))
    assert text not in str(raised.value)


def test_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"notify_webhook_secret_file is .* has the mode 0644: others"):
        make(write_secret(tmp_path, SECRET, 0o644))


def test_missing_secret_and_missing_ca_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="notify_webhook_secret_file is empty: a receiver could not tell"):
        make("")
    with pytest.raises(SettingError, match="notify_webhook_ca_file is '/nowhere', which cannot be used"):
        make(write_secret(tmp_path, SECRET), "/nowhere")


@pytest.mark.parametrize(
    ("url", "is_warned"),
    [("http://hooks.example/a", True), ("https://hooks.example/a", False), ("http://127.0.0.1:8080/a", False)],
)
def test_plain_http_to_another_machine_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str, is_warned: bool
) -> None:
    make(write_secret(tmp_path, SECRET), url=url)
    assert ("everybody on the way to hooks.example can read the notifications" in caplog.text) == is_warned
