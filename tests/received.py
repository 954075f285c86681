"""What is done first with bytes that came from anywhere, for the laws of the codec and for fuzzing it."""

from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError
from rankscope.measure.messages import Message, Report
from rankscope.measure.table import MISSING


def decode_or_refuse(frame: bytes) -> Message | None:
    """The message, None where it is refused; any other error is a fault."""
    try:
        return decode(frame)
    except DecodeError:
        return None


def read_wholly(message: Message) -> None:
    """What the collector does with a message first: every column can be read, and it can be written down again."""
    if isinstance(message, Report):
        for table in (message.steps, message.collectives.table):
            for column in (*table.columns().values(), table.column("no such column")):
                assert column.shape == (table.row_count,)
            assert (table.column("no such column") == MISSING).all()
    encode(message)
