"""Ask a collector for the past of the nodes, and let it keep what this pre-flight says of them.

Rank 0 does so, over a connection as the agents have (uplink/connection.py), for a few seconds at most: a collector that
does not answer leaves a pre-flight with the comparison of peers. No Hello is sent, since a pre-flight is no run.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple, TypeVar

import zmq

from rankscope.agent.collector_address import CollectorAddress, read_address
from rankscope.agent.config import read_launch_config
from rankscope.agent.preflight.files import PreflightLine
from rankscope.agent.preflight.judgement import Past
from rankscope.agent.preflight.results import PreflightReport
from rankscope.measure.clock import SystemClock
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError, SettingError, UnavailableError
from rankscope.measure.identity import LABEL_LENGTH_MAX
from rankscope.measure.node_messages import PreflightAnswer, PreflightEnded, PreflightPastWanted
from rankscope.measure.preflights import (
    COLLECTOR_KEY,
    DEVICE_LENGTH_MAX,
    NAMED,
    NODES_MAX,
    NOT_JUDGED,
    NOT_NAMED,
    REASON_LENGTH_MAX,
    REASONS_MAX,
    NodeDevice,
    NodeOutcome,
)
from rankscope.measure.text import to_line, to_unicode
from rankscope.uplink.connection import Connection

ANSWER_S: Final = 5.0
"""Longest time for all answers to a question; they usually take milliseconds."""
RESEND_S: Final = 1.0
"""Time after which what was not answered is sent again."""
POLL_MS: Final = 50
ANSWER_BYTES_MAX: Final = 2**20
"""Largest answer that is accepted: 32 nodes with 20 pre-flights of 16 checks, whose names have 64 bytes, are 0.8 MB."""
PROBLEM_LENGTH_MAX: Final = 512
PEERS_ONLY: Final = "Nodes are compared with their peers only, and nothing of this pre-flight is kept there."

Question = PreflightPastWanted | PreflightEnded
T = TypeVar("T")


def find_collector(environment: Mapping[str, str], given: str | None) -> CollectorAddress | None:
    """Return the collector that the agents of these settings use; of several, the one that has all pre-flights. `given`
    is the option --collector, which overrides the setting; empty or not set: there is no collector. Raise
    UnavailableError for settings of it that cannot be used.
    """
    found = read_launch_config(environment, {} if given is None else {"collector": given})
    if not found.is_usable:
        raise UnavailableError(f"{' '.join(found.mistakes)} No collector is used.")
    try:
        return read_address(found.config, COLLECTOR_KEY)
    except SettingError as error:
        raise UnavailableError(f"{error} No collector is used.") from error


class CollectorHistory:
    """The past of the nodes at a collector, which is waited for for `wait_s` s at most. Errors are for the user."""

    def __init__(self, address: CollectorAddress, wait_s: float = ANSWER_S) -> None:
        self._address = address
        self._wait_s = wait_s
        self._numbers = count(1)

    @property
    def endpoint(self) -> str:
        """Where the collector is."""
        return self._address.endpoint

    def read_past(self, nodes: Mapping[str, str]) -> Past:
        """Return the rates of earlier pre-flights by check and node, the latest last. `nodes` are the devices by node.
        Raise UnavailableError.
        """
        devices = [NodeDevice(_cut(node, LABEL_LENGTH_MAX), _cut(device)) for node, device in nodes.items()]
        names = {_cut(node, LABEL_LENGTH_MAX): node for node in nodes}
        asked = [PreflightPastWanted(number=next(self._numbers), nodes=part) for part in _split(devices)]
        past: dict[str, dict[str, list[float]]] = {}
        for answer in self._ask(asked, "did not send the past of the nodes", PEERS_ONLY):
            for one in answer.past:
                for check, rate in ((check, rate) for rates in one.rates for check, rate in rates.items()):
                    if rate > 0 and one.node in names:
                        past.setdefault(check, {}).setdefault(names[one.node], []).append(rate)
        return past

    def keep(self, report: PreflightReport, line: PreflightLine, *, forgets_past: bool = False) -> None:
        """Let the collector keep what a pre-flight says of its nodes, and return when that is in its store.
        `forgets_past` lets it delete what it has of them so far. Raise UnavailableError.
        """
        preflight = secrets.token_hex(8)
        outcomes = list_outcomes(report, line)
        said = [
            PreflightEnded(number=next(self._numbers), preflight=preflight, outcomes=part, forgets_past=forgets_past)
            for part in _split(outcomes)
        ]
        self._ask(
            said, "did not confirm that it has kept this pre-flight", "Later pre-flights may not be compared with it."
        )

    def _ask(self, questions: Sequence[Question], failure: str, consequence: str) -> list[PreflightAnswer]:
        """Return the answers to all questions; raise UnavailableError where one is missing or is a problem."""
        where = f"the collector at {self._address.endpoint}"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        try:
            answers = _exchange(context, self._address, questions, self._wait_s)
        except zmq.ZMQError as error:
            raise UnavailableError(
                f"{where} cannot be used: {error.strerror}. Write its address as tcp://HOST:PORT. {consequence}"
            ) from error
        finally:
            context.destroy(linger=0)
        problem = answers.refusal or next((one.problem for one in answers.answered.values() if one.problem), "")
        if not problem and len(answers.answered) < len(questions):
            problem = (
                f"no answer within {self._wait_s:g} s. Check that it runs there, and that it is not of an earlier "
                "release than this pre-flight"
            )
        if problem:
            raise UnavailableError(
                f"{where} {failure}: {to_line(problem, PROBLEM_LENGTH_MAX).rstrip('.')}. {consequence}"
            )
        return list(answers.answered.values())


class _Answers(NamedTuple):
    """The answers by number, and why there is no connection; empty: not known."""

    answered: dict[int, PreflightAnswer]
    refusal: str


def _exchange(
    context: "zmq.Context[zmq.Socket[bytes]]", address: CollectorAddress, questions: Sequence[Question], wait_s: float
) -> _Answers:
    """Send the questions until each is answered, the connection is refused, or the time is over."""
    poller = zmq.Poller()
    connection = Connection(
        context, poller, SystemClock(), address.endpoint,
        keys=address.keys, name=f"preflight-{secrets.token_hex(8)}", frame_in_bytes_max=ANSWER_BYTES_MAX,
    )  # fmt: skip
    try:
        answered = _converse(connection, poller, questions, time.monotonic() + wait_s)
        return _Answers(answered, "" if connection.refusal is None else connection.refusal.detail)
    finally:
        connection.close()


def _converse(
    connection: Connection, poller: zmq.Poller, questions: Sequence[Question], end_s: float
) -> dict[int, PreflightAnswer]:
    waiting = {one.number: encode(one) for one in questions}
    answered: dict[int, PreflightAnswer] = {}
    sent_s: dict[int, float] = {}
    while waiting and time.monotonic() < end_s and connection.refusal is None:
        for number, frame in waiting.items():
            now_s = time.monotonic()
            if now_s - sent_s.get(number, -RESEND_S) >= RESEND_S and connection.try_send(frame):
                sent_s[number] = now_s
        ready = dict(poller.poll(POLL_MS))
        if connection.handshakes.socket in ready:
            connection.handle_failure()
        for answer in _receive(connection):
            if waiting.pop(answer.number, None) is not None:
                answered[answer.number] = answer
    return answered


def _receive(connection: Connection) -> Iterator[PreflightAnswer]:
    """Iterate over the answers that have arrived; whatever else has is skipped."""
    while (frame := connection.receive()) is not None:
        try:
            message = decode(frame)
        except DecodeError:
            continue
        if isinstance(message, PreflightAnswer):
            yield message


def list_outcomes(report: PreflightReport, line: PreflightLine) -> list[NodeOutcome]:
    """Return what a pre-flight says of each of its nodes; `line` has their rates and devices."""
    reasons = {one.node: one.reasons for one in report.named}
    not_named = NOT_JUDGED if report.status == "not_judged" else NOT_NAMED
    return [
        NodeOutcome(
            node=_cut(node, LABEL_LENGTH_MAX),
            device=_cut(device),
            status=NAMED if node in reasons else not_named,
            rates=line.rates.get(node, {}),
            reasons=tuple(_cut(why, REASON_LENGTH_MAX) for why in reasons.get(node, ())[:REASONS_MAX]),
        )
        for node, device in line.devices.items()
    ]


def _cut(text: str, length_max: int = DEVICE_LENGTH_MAX) -> str:
    return to_line(to_unicode(text), length_max)


def _split(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    for begin in range(0, len(items), NODES_MAX):
        yield tuple(items[begin : begin + NODES_MAX])
