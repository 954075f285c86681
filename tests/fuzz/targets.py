"""Define the fuzz targets: functions of bytes that must return, or refuse the bytes, whatever they are.

Any other exception is a finding. Each target checks what it can: a decoded message can be read column by column and
encoded again, admission stays within its bounds and its counts add up, and a connection gives the same result however
its bytes are chunked, and answers little to an unknown peer.
"""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rankscope.collector.ingest.admission import Admission
from rankscope.measure.codec import MAGIC, PROTOCOL, encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Message, Report
from rankscope.measure.node_messages import MESSAGE_TYPES, InspectorRead, RankEnded, RankUnresponsive, RasAnswered
from tests.received import decode_or_refuse, read_wholly

GOLDEN: Final = Path(__file__).parents[1] / "contract" / "golden" / "wire"

RUNS_MAX: Final = 2
RANKS_MAX: Final = 4
"""Bound of admission, small so that a handful of Hellos reaches it."""

_LENGTH: Final = struct.Struct(">H")
_HAS_KEY: Final = 0x80
_PEERS: Final = (b"boot-one", b"boot-two", b"boot-three")


def read_corpus() -> list[bytes]:
    """Return the seeds of mutation: every golden frame, of every kind."""
    return [bytes.fromhex(file.read_text()) for file in sorted(GOLDEN.rglob("*.hex"))]


def fuzz_codec(data: bytes) -> Message | None:
    """Decode the bytes, and read the message wholly; None: they were refused. A body alone is tried behind a good
    header of each kind, so that mutation need not find the header.
    """
    message = decode_or_refuse(data)
    if message is None and not data.startswith(MAGIC) and data:
        kind = MESSAGE_TYPES[data[0] % len(MESSAGE_TYPES)].KIND
        message = decode_or_refuse(MAGIC + bytes([0, PROTOCOL, kind]) + data[1:])
    if message is not None:
        read_wholly(message)
    return message


def fuzz_admission(data: bytes) -> Admission:
    """Feed admission with the encoded conversation: a peer's number, then a frame behind its length, and so on. A peer
    whose number has the highest bit set comes with a client key.
    """
    admission = Admission(RUNS_MAX, RANKS_MAX)
    runs: set[str] = set()
    for peer, key, message in _split(data):
        match message:
            case Hello():
                admission.hello(peer, message, key)
                runs.add(message.identity.run)
                _check_counts(admission, message.identity)
            case Report() | Goodbye():
                admission.number(peer, message.sequence, key)
                identity = admission.identity(peer, key)
                if identity is not None:
                    _check_counts(admission, identity)
            case RankEnded() | RankUnresponsive() | RasAnswered() | InspectorRead():
                admission.knows(message.identity, key)
    worlds = [size for size in map(admission.world_size, runs) if size is not None]
    assert len(worlds) <= RUNS_MAX
    assert sum(worlds) <= RANKS_MAX
    return admission


def join(frames: list[tuple[int, bytes]]) -> bytes:
    """Return the input of `fuzz_admission` for these frames, each with the number of the peer that sends it."""
    return b"".join(bytes([peer]) + _LENGTH.pack(len(frame)) + frame for peer, frame in frames)


def build_conversations() -> list[bytes]:
    """Return seeds of conversations: Hellos of several peers, then numbers in and out of order."""
    hellos = [encode(_hello(rank, boot.decode())) for rank, boot in enumerate(_PEERS)]
    reports = [encode(Report(sequence=number, host_ns=number)) for number in (1, 2, 5, 2)]
    goodbye = encode(Goodbye(sequence=3, reason="finished"))
    talk = [(peer, frame) for peer, frame in enumerate(hellos)]
    return [
        join(talk),
        join([*talk, *((0, report) for report in reports), (0, goodbye)]),
        join([(0, hellos[0]), (1, hellos[0]), (0, reports[0]), (1, reports[1])]),
        join([(0x80, hellos[0]), (0, reports[0]), (0x80, reports[0])]),
        *(join([(0, frame)]) for frame in read_corpus() if len(frame) < 2**16),
    ]


TARGETS: Final[Mapping[str, tuple[Callable[[bytes], object], Callable[[], list[bytes]]]]] = {
    "codec": (fuzz_codec, read_corpus),
    "admission": (fuzz_admission, build_conversations),
}
"""Targets by name, each with the function that builds its seeds."""


def _split(data: bytes) -> list[tuple[bytes, str, Message]]:
    heard: list[tuple[bytes, str, Message]] = []
    while len(data) > _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, 1)
        start = 1 + _LENGTH.size
        message = decode_or_refuse(data[start : start + length])
        if message is not None:
            heard.append((_PEERS[data[0] % len(_PEERS)], "key" if data[0] & _HAS_KEY else "", message))
        data = data[start + length :]
    return heard


def _check_counts(admission: Admission, identity: RankIdentity) -> None:
    counts = admission.counts(identity.boot_id)
    if counts is not None:
        assert counts.admitted + counts.missing == counts.last_sequence - counts.first_sequence + 1


def _hello(rank: int, boot_id: str) -> Hello:
    identity = RankIdentity(
        run="r", rank=rank, local_rank=rank, world_size=3, node="n", restart_count=0, boot_id=boot_id, pid=1
    )
    return Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=0)
