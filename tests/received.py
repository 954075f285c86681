"""Read a decoded message completely, for the laws of the codec and for fuzzing it."""

from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError
from rankscope.measure.messages import Message, Report
from rankscope.measure.table import MISSING


def decode_or_refuse(frame: bytes) -> Message | None:
    """Return the message, None where it is refused; any other error is a fault."""
    try:
        return decode(frame)
    except DecodeError:
        return None


def read_wholly(message: Message) -> None:
    """Read every column of a message and encode it again, as the collector does."""
    if isinstance(message, Report):
        for table in (message.steps, message.collectives.table):
            for column in (*table.columns().values(), table.column("no such column")):
                assert column.shape == (table.row_count,)
            assert (table.column("no such column") == MISSING).all()
    encode(message)
