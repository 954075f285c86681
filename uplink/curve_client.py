"""Sets the CURVE keys of a connecting ZeroMQ socket."""

from typing import Any

from rankscope.measure.key_files import ClientKeys


def set_keys(dealer: Any, keys: ClientKeys | None) -> None:
    """Set the keys of a socket before it connects. Raise zmq.ZMQError for a malformed key."""
    if keys is None:
        return
    import zmq  # noqa: PLC0415 - a sidecar seldom needs it

    dealer.setsockopt(zmq.CURVE_SERVERKEY, keys.collector.encode())
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public.encode())
    dealer.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret.encode())
