"""Explains failed handshakes, so that a wrong key does not look like an unreachable collector.

ZeroMQ reports failed handshakes to a monitor socket. After some failures it does not retry, not even once the
collector's list of keys has been corrected: then the owner has to make a new socket.
"""

import itertools
import struct
from typing import Final, NamedTuple

import zmq

from rankscope.measure.key_files import ClientKeys
from rankscope.uplink.delivery import Refusal

KEYS_WANTED: Final = "keys_wanted"
KEYS_UNWANTED: Final = "keys_unwanted"
KEY_NOT_ALLOWED: Final = "key_not_allowed"
WRONG_COLLECTOR_KEY: Final = "wrong_collector_key"

BROKEN_MAX: Final = 3
"""Number of broken handshakes that indicate a wrong key. A collector that ends during a handshake breaks only one."""

_EVENT: Final = struct.Struct("=HI")
_ENDPOINT: Final = "inproc://rankscope-handshake"
_NUMBERS: Final = itertools.count()
_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class HandshakeFailure(NamedTuple):
    """The reason of a failed handshake, if known, and whether ZeroMQ has given up."""

    refusal: Refusal | None
    gave_up: bool


class HandshakeWatch:
    """The monitor of one socket. Create it before the socket connects, and close it before the socket."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        guarded: "zmq.Socket[bytes]",
        endpoint: str,
        keys: ClientKeys | None,
    ) -> None:
        self._guarded = guarded
        self._endpoint = endpoint
        self._keys = keys
        self._broken = 0
        self.socket = context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.LINGER, 0)
        # A new name each time, since ZeroMQ releases the previous one with a delay.
        name = f"{_ENDPOINT}-{next(_NUMBERS)}"
        guarded.monitor(name, _FAILURES)
        self.socket.connect(name)

    def read(self) -> HandshakeFailure:
        """Return the reason of the next failed handshake. Call it when `socket` is readable."""
        event, value = _EVENT.unpack(self.socket.recv_multipart(zmq.NOBLOCK)[0])
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return HandshakeFailure(self._describe_not_allowed(), gave_up=True)
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            is_mismatch = value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
            return HandshakeFailure(self._describe_mismatch() if is_mismatch else None, gave_up=True)
        self._broken += 1
        is_sure = self._keys is not None and self._broken >= BROKEN_MAX
        return HandshakeFailure(self._describe_wrong_key() if is_sure else None, gave_up=False)

    def close(self) -> None:
        """Stop watching."""
        self._guarded.disable_monitor()
        self.socket.close(linger=0)

    def _describe_mismatch(self) -> Refusal:
        if self._keys is None:
            return Refusal(
                KEYS_WANTED,
                f"{self._endpoint} admits only agents with keys, and this one has none. Set key_file "
                "(RANKSCOPE_KEY_FILE) and collector_key_file (RANKSCOPE_COLLECTOR_KEY_FILE); `rankscope keys` has made "
                "them where the collector was set up.",
            )
        return Refusal(
            KEYS_UNWANTED,
            f"{self._endpoint} uses no keys, but this agent has keys and sends nothing to a collector that it cannot "
            "authenticate. Start the collector with key_file and allowed_keys, or unset key_file here.",
        )

    def _describe_not_allowed(self) -> Refusal:
        public = "" if self._keys is None else self._keys.own.public
        return Refusal(
            KEY_NOT_ALLOWED,
            f"{self._endpoint} does not allow the key {public}. Put its .pub file into the collector's folder "
            "allowed_keys; the connection is retried automatically.",
        )

    def _describe_wrong_key(self) -> Refusal:
        return Refusal(
            WRONG_COLLECTOR_KEY,
            f"the collector at {self._endpoint} has another key than the one in collector_key_file. Give this agent "
            "the collector.pub of that collector, or the address of the right one.",
        )
