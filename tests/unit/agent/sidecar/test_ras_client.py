"""The RAS service as NCCL offers it, and everything else that may listen at its address."""

import socket

import pytest

from rankscope.agent.config import AgentConfig
from rankscope.agent.inspection import _inspect_ras
from rankscope.agent.sidecar.ras_address import DEFAULT_ADDRESS, find_ras_address, parse_address
from rankscope.agent.sidecar.ras_client import (
    ANSWER_BYTES_MAX,
    GATHER_S,
    NothingListensError,
    is_own_address,
    read_protocol,
    read_status,
)
from rankscope.measure.errors import UnavailableError
from rankscope.measure.inspection import RasFound
from tests.ras_stand_in import HEALTHY_TEXT, MIB, Nccl, ras, refused_address, to_json

SOON_S = 0.2
"""Limit for those that never answer."""


def reason_of(address: str, total_s: float = 10.0) -> str:
    with pytest.raises(UnavailableError) as caught:
        read_status(address, SOON_S, total_s)
    return str(caught.value).replace(address, "HERE")


# -- NCCL -------------------------------------------------------------------------------------------------------------


def test_json_is_asked_for_where_nccl_knows_it() -> None:
    server = Nccl(HEALTHY_TEXT, to_json())
    with ras(server) as service:
        answer = read_status(service.address)
    assert (answer.text, answer.is_json, answer.cut) == (to_json(), True, "")
    assert server.commands == ["CLIENT PROTOCOL 2", f"TIMEOUT {GATHER_S}", "SET FORMAT json", "VERBOSE STATUS"]


def test_text_is_read_where_nccl_knows_no_json() -> None:
    with ras(Nccl(HEALTHY_TEXT)) as service:
        answer = read_status(service.address)
    assert (answer.text, answer.is_json, answer.cut) == (HEALTHY_TEXT, False, "")


def test_ipv6_address_in_brackets_is_reached() -> None:
    with ras(Nccl(HEALTHY_TEXT), "::1") as service:
        assert service.address.startswith("[::1]:")
        assert read_status(service.address).text == HEALTHY_TEXT


def test_greeting_tells_the_protocol_and_asks_nothing_else() -> None:
    server = Nccl()
    with ras(server) as service:
        assert read_protocol(service.address) == 2
    assert server.commands == ["CLIENT PROTOCOL 2"]


# -- broken answers ---------------------------------------------------------------------------------------------------


def test_half_an_answer_is_kept_with_the_reason() -> None:
    ends = []

    def send_half(connected: socket.socket, answer: bytes) -> None:
        connected.sendall(answer[: len(answer) // 2])
        ends.append(connected.recv(1))  # until the client gives up

    with ras(Nccl(HEALTHY_TEXT, sends=send_half)) as service:
        answer = read_status(service.address, total_s=SOON_S)
    assert answer.text == HEALTHY_TEXT[: len(HEALTHY_TEXT) // 2]
    assert answer.cut == "its end did not come in time"


def test_of_a_gigabyte_only_the_limit_is_read() -> None:
    sent = [0]

    def send_all(connected: socket.socket, _answer: bytes) -> None:
        for _ in range(1024):
            connected.sendall(b"x" * MIB)
            sent[0] += MIB

    with ras(Nccl(sends=send_all)) as service:
        answer = read_status(service.address)
    assert len(answer.text) == ANSWER_BYTES_MAX
    assert answer.cut == f"it is longer than {ANSWER_BYTES_MAX} bytes, and the rest was not read"
    assert sent[0] < 64 * MIB  # what the buffers of both sockets hold


def test_answer_by_single_bytes_ends_in_time() -> None:
    def drip(connected: socket.socket, _answer: bytes) -> None:
        while True:
            connected.sendall(b"x")

    with ras(Nccl(sends=drip)) as service:
        assert read_status(service.address, total_s=SOON_S).cut != ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ERROR: internal error\n", "NCCL RAS at HERE answered 'ERROR: internal error'"),
        ("\n", "NCCL RAS at HERE said nothing about the job: it closed the connection"),
    ],
)
def test_refused_status_is_a_reason(text: str, reason: str) -> None:
    with ras(Nccl(text)) as service:
        assert reason_of(service.address) == reason


# -- something else ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "what listens at HERE closed the connection without an answer"),
        (b"\xff\x00\xfe\n", "what listens at HERE is no NCCL RAS: it answered '\ufffd\\x00\ufffd'"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "what listens at HERE is no NCCL RAS: it answered 'SSH-2.0-OpenSSH_9.6'"),
        (b"SERVER PROTOCOL two\n", "what listens at HERE is no NCCL RAS: it answered 'SERVER PROTOCOL two'"),
        (b"x" * 100_000, f"what listens at HERE is no NCCL RAS: it answered {'x' * 60!r}"),
    ],
)
def test_another_program_at_the_port_is_a_reason(answer: bytes, reason: str) -> None:
    def serve(connected: socket.socket) -> None:
        connected.recv(1024)
        connected.sendall(answer)

    with ras(serve) as service:
        assert reason_of(service.address) == reason


def test_program_that_accepts_and_is_silent_is_a_reason() -> None:
    def serve(connected: socket.socket) -> None:
        while connected.recv(1024):
            pass

    with ras(serve) as service:
        assert reason_of(service.address) == "HERE did not answer in time"


def test_program_that_closes_at_once_is_a_reason() -> None:
    with ras(lambda _connected: None) as service:
        assert reason_of(service.address).startswith(("HERE cannot be reached", "what listens at HERE closed"))


def test_address_without_a_listener_is_told_apart() -> None:
    address = refused_address()
    with pytest.raises(NothingListensError, match=f"nothing listens at {address}"):
        read_status(address)


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":28028", "a:0", "a:65536", "a:1e3", "a:" + "9" * 5000])
def test_malformed_address_is_a_reason(address: str) -> None:
    with pytest.raises(UnavailableError, match="which is not HOST:PORT"):
        parse_address(address)


# -- where it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, DEFAULT_ADDRESS),
        ({"NCCL_RAS_ADDR": "10.0.0.1:9"}, "10.0.0.1:9"),
        ({"NCCL_RAS_ADDR": "a\udcff:9"}, "a?:9"),
        ({"NCCL_RAS_ENABLE": "1"}, DEFAULT_ADDRESS),
        ({"NCCL_RAS_ENABLE": "0", "NCCL_RAS_ADDR": "10.0.0.1:9"}, ""),
    ],
)
def test_address_is_that_of_the_environment(environment: dict[str, str], address: str) -> None:
    assert find_ras_address(environment) == address


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("::1", True), ("192.0.2.1", False), ("::", False), ("unknown", False), ("", False)],
)
def test_own_addresses_are_recognized(host: str, is_own: bool) -> None:
    assert is_own_address(host) is is_own


# -- what the doctor finds --------------------------------------------------------------------------------------------


def test_doctor_greets_what_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with ras(Nccl()) as service:
        monkeypatch.setenv("NCCL_RAS_ADDR", service.address)
        assert _inspect_ras(AgentConfig()) == RasFound(address=service.address, protocol=2)
        assert _inspect_ras(AgentConfig(nccl_ras="off")) == RasFound()
        assert _inspect_ras(AgentConfig(sidecar=False)) == RasFound()
    assert _inspect_ras(AgentConfig()) == RasFound(address=service.address)
    monkeypatch.setenv("NCCL_RAS_ADDR", "nowhere")
    assert _inspect_ras(AgentConfig()).problem == "NCCL_RAS_ADDR is 'nowhere', which is not HOST:PORT"
