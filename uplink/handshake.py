"""Why a connection to the collector does not come about: without this a wrong key would look like a collector that is
not there, for ever and in silence.

ZeroMQ tells a socket inside the process about each handshake that fails (its "monitor"). After some of them it does not
try again by itself, not even once the collector's list of keys has been mended: the sender has to make a new socket.
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
"""A collector that ends while a rank connects breaks a handshake too, once. One that cannot read it does each time."""

_EVENT: Final = struct.Struct("=HI")
_ENDPOINT: Final = "inproc://rankscope-handshake"
_NUMBERS: Final = itertools.count()
_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Failure(NamedTuple):
    """What is wrong, once that is known, and whether ZeroMQ has given up."""

    refusal: Refusal | None
    gave_up: bool


class HandshakeWatch:
    """Watches the connections of one socket; to be made before it connects, and closed before it is closed."""

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
        # A name of its own each time: ZeroMQ lets go of the one before some time after it was told to.
        name = f"{_ENDPOINT}-{next(_NUMBERS)}"
        guarded.monitor(name, _FAILURES)
        self.socket.connect(name)

    def read(self) -> Failure:
        """What the next failed handshake tells; to be called when `socket` is readable."""
        event, value = _EVENT.unpack(self.socket.recv_multipart(zmq.NOBLOCK)[0])
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return Failure(self._say_not_allowed(), gave_up=True)
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            is_mismatch = value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
            return Failure(self._say_mismatch() if is_mismatch else None, gave_up=True)
        self._broken += 1
        is_sure = self._keys is not None and self._broken >= BROKEN_MAX
        return Failure(self._say_wrong_key() if is_sure else None, gave_up=False)

    def close(self) -> None:
        """Stop watching."""
        self._guarded.disable_monitor()
        self.socket.close(linger=0)

    def _say_mismatch(self) -> Refusal:
        if self._keys is None:
            return Refusal(
                KEYS_WANTED,
                f"{self._endpoint} lets in only agents with keys, and this one has none. Set key_file "
                "(RANKSCOPE_KEY_FILE) and collector_key_file (RANKSCOPE_COLLECTOR_KEY_FILE); `rankscope keys` has made "
                "them where the collector was set up.",
            )
        return Refusal(
            KEYS_UNWANTED,
            f"{self._endpoint} has no keys, and this agent has: it tells nothing to a collector that it cannot know. "
            "Start the collector with key_file and allowed_keys, or unset key_file here.",
        )

    def _say_not_allowed(self) -> Refusal:
        public = "" if self._keys is None else self._keys.own.public
        return Refusal(
            KEY_NOT_ALLOWED,
            f"{self._endpoint} does not allow the key {public}. Put its .pub file into the folder that allowed_keys of "
            "the collector names; this rank asks again by itself.",
        )

    def _say_wrong_key(self) -> Refusal:
        return Refusal(
            WRONG_COLLECTOR_KEY,
            f"what listens at {self._endpoint} does not have the key in collector_key_file. Give this agent the "
            "collector.pub of that collector, or the address of the right one.",
        )
