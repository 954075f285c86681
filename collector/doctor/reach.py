"""Whether the collector can be reached: the agents' wire, with the keys an agent would use, and HTTP."""

from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from rankscope.collector.client import Credentials, ask, fetch_runs
from rankscope.collector.doctor.check import Check, ok, problem
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from rankscope.measure.shards import parse_collectors
from rankscope.uplink.curve_client import set_keys

WAIT_MS: Final = 5_000
"""A handshake takes three ways there and back; with 200 ms of delay that is 0.6 s."""
_WATCHED: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_COSTS: Final = "nothing of a job is seen; the agents keep their last reports and try again"


def check_wire(collector: str, key_file: str, collector_key_file: str) -> list[Check]:
    """One check for each collector that the settings name: whether an agent of this machine would be let in."""
    try:
        endpoints = parse_collectors(collector)
        keys = _read_keys(key_file, collector_key_file)
    except SettingError as error:
        return [problem("wire", str(error), _COSTS, "The sentence says what to do.")]
    return [_check_endpoint(endpoint, keys) for endpoint in endpoints]


def check_http(url: str, credentials: Credentials) -> Check:
    """Whether a collector answers there, and is ready."""
    try:
        ask(f"{url}/readyz", credentials)
        fetch_runs(url, credentials)
    except UnavailableError as error:
        costs = "status, top, incidents and Prometheus get nothing from there"
        return problem("http", str(error), costs, "Check --url, the firewall, and --token-file where it has a token.")
    return ok("http", f"{url} is ready")


def _read_keys(key_file: str, collector_key_file: str) -> ClientKeys | None:
    if not key_file or not collector_key_file:
        return None
    public = read_public_key(collector_key_file, "collector_key_file")
    return ClientKeys(public, read_key_pair(key_file, "key_file"))


def _check_endpoint(endpoint: str, keys: ClientKeys | None) -> Check:
    name = f"wire {endpoint}"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        set_keys(dealer, keys)
        monitor = dealer.get_monitor_socket(_WATCHED)
        dealer.connect(endpoint)
        return _judge(name, _watch(monitor), keys)
    except zmq.ZMQError as error:
        return problem(name, f"no endpoint: {error}", _COSTS, "An endpoint is tcp://HOST:PORT.")
    finally:
        context.destroy(linger=0)


def _watch(monitor: "zmq.Socket[bytes]") -> list[int]:
    """What happens to the connection until it is made, refused, or too much time has passed."""
    seen: list[int] = []
    while monitor.poll(WAIT_MS):
        event = int(recv_monitor_message(monitor)["event"])
        seen.append(event)
        if event != zmq.EVENT_CONNECTED:
            break
    return seen


def _judge(name: str, seen: list[int], keys: ClientKeys | None) -> Check:
    if zmq.EVENT_HANDSHAKE_SUCCEEDED in seen:
        return ok(name, "lets this agent in" + ("" if keys is None else ", with its key"))
    if zmq.EVENT_HANDSHAKE_FAILED_AUTH in seen:
        cure = "Put its public key into the collector's folder of allowed keys."
        return problem(name, "this agent's key is not allowed", _COSTS, cure)
    if seen and keys is None:
        cure = "Set key_file and collector_key_file (docs/keys.md), or start it with --insecure."
        return problem(name, "somebody listens and does not take agents without keys", _COSTS, cure)
    if seen:
        cure = "collector_key_file must be the collector.pub of this very collector, and the collector must have keys."
        return problem(name, "somebody listens and does not speak with this key", _COSTS, cure)
    cure = "Start it (`rankscope serve`), and check the address and what is between: firewalls, network policies."
    return problem(name, f"nobody answers within {WAIT_MS / 1000:.0f} s", _COSTS, cure)
