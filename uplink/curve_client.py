"""CURVE on the side of those who connect."""

from typing import Any

from rankscope.measure.key_files import ClientKeys


def set_keys(dealer: Any, keys: ClientKeys | None) -> None:
    """Make a ZeroMQ socket that is not connected yet speak with these keys. Raises zmq.ZMQError for what is no key."""
    if keys is None:
        return
    import zmq  # noqa: PLC0415 - a sidecar seldom needs it

    dealer.setsockopt(zmq.CURVE_SERVERKEY, keys.collector.encode())
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public.encode())
    dealer.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret.encode())
