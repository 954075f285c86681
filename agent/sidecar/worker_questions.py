"""Asks the worker server of a rank (worker_server.py): about its flight recorder, and about waits in progress."""

import contextlib
import json
import socket
import time
from typing import Any, Final

from rankscope.agent.guard import describe
from rankscope.measure.units import NS_PER_MS

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest response; the recorder's default of 2,000 entries is under 1 MB."""
STATUS_QUESTIONS: Final = ("fr_trace_json", "dump_nccl_trace_json?includecollectives=true&onlyactive=true")
WAITS_QUESTION: Final = "wait_counter_values"


class AnswerTooLargeError(ValueError):
    """A response has more than ANSWER_BYTES_MAX."""


class NoHandlerError(ValueError):
    """The server has no handler of that name."""


def ask(path: str, question: str, seconds: float) -> Any:
    """Return the server's JSON response within `seconds`. Raise OSError, or ValueError if it is invalid."""
    return json.loads(ask_text(path, question, seconds))


def ask_text(path: str, question: str, seconds: float) -> bytes:
    """Return the text of the server's response within `seconds`. Raise OSError (TimeoutError if it is late),
    AnswerTooLargeError, NoHandlerError, or another ValueError if the question is refused.
    """
    deadline_s = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        head_lines = (
            f"POST /handler/{question} HTTP/1.1",
            "Host: rank",
            "Connection: close",
            "Content-Length: 0",
            "",
            "",
        )
        connection.sendall("\r\n".join(head_lines).encode())
        answer = bytearray()
        while True:
            connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            part = connection.recv(1 << 16)
            if not part:
                break
            answer += part
            if len(answer) > ANSWER_BYTES_MAX:
                raise AnswerTooLargeError(f"the response to {question} has more than {ANSWER_BYTES_MAX} bytes")
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        error = NoHandlerError if status == [b"404"] else ValueError
        raise error(f"the response to {question} was {head[:60]!r}")
    return body


def ask_dumps(path: str, seconds: float, absent: dict[str, str]) -> list[dict[str, Any]]:
    """Return the dumps of the flight recorders; add the reason to `absent` if there is none."""
    dumps, refusals = [], []
    deadline_ns = time.monotonic_ns() + round(seconds * 1000) * NS_PER_MS
    for question in STATUS_QUESTIONS:
        left_ns = deadline_ns - time.monotonic_ns()
        try:
            answer = ask(path, question, max(0.05, left_ns / (1000 * NS_PER_MS)))
        except ValueError as error:  # builds without NCCL lack one of the handlers, torch 2.8 the other
            refusals.append(error)
        except OSError as error:
            absent["pending"] = describe(error)[:200]
        else:
            dumps += [answer] if isinstance(answer, dict) else []
    if refusals and not dumps:
        absent.setdefault("pending", describe(refusals[0])[:200])
    return dumps


def ask_waits(path: str, seconds: float) -> dict[str, int]:
    """Return the number of active waits by kind (for example `TCPStore__wait`), from torch's wait counters."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        counters = ask(path, WAITS_QUESTION, seconds)
        active = {name.rpartition(".")[2][:128]: int(found.get("active_count", 0)) for name, found in counters.items()}
        return {name: count for name, count in active.items() if count}
    return {}
