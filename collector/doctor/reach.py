"""Check that the collector can be reached: over the agents' connection, with the agent's keys, and over HTTP."""

from typing import Final
from urllib.parse import quote

import zmq
from zmq.utils.monitor import recv_monitor_message

from rankscope.collector.client import Credentials, fetch, fetch_bytes, fetch_runs
from rankscope.collector.doctor.check import Check, ok, problem
from rankscope.collector.runs.run_status import RunStatus
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from rankscope.measure.shards import parse_collectors
from rankscope.uplink.curve_client import set_keys

WAIT_MS: Final = 5_000
"""A handshake has three round trips: 0.6 s at 200 ms each."""
RUNS_READ_MAX: Final = 16
"""Runs of a collector whose windows are described."""
_EVENTS: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_COSTS: Final = "no run is reported; the agents keep their last reports and retry"


def check_connections(collector: str, key_file: str, collector_key_file: str) -> list[Check]:
    """Return a check for each endpoint of the setting `collector`: that it accepts an agent of this machine."""
    try:
        endpoints = parse_collectors(collector)
        keys = _read_keys(key_file, collector_key_file)
    except SettingError as error:
        return [problem("connection", str(error), _COSTS, "The error names the setting and the cure.")]
    return [_check_endpoint(endpoint, keys) for endpoint in endpoints]


def check_http(url: str, credentials: Credentials) -> Check:
    """Check that a collector answers at `url` and is ready."""
    try:
        fetch_bytes(f"{url}/readyz", credentials)
        fetch_runs(url, credentials)
    except UnavailableError as error:
        costs = "status, top, incidents and Prometheus get no data from there"
        return problem("http", str(error), costs, "Check --url, the firewall, and --token-file where it has a token.")
    return ok("http", f"{url} is ready")


def check_window_effects(url: str, credentials: Credentials) -> list[Check]:
    """Return what full windows, and torch's timing of collectives, have done to the steps of each run that goes on;
    nothing where nothing was measured.
    """
    try:
        run_ids = fetch_runs(url, credentials)
    except UnavailableError:
        return []  # check_http says it
    return [check for run_id in run_ids[-RUNS_READ_MAX:] for check in _check_window_effect(url, run_id, credentials)]


def _check_window_effect(url: str, run_id: str, credentials: Credentials) -> list[Check]:
    try:
        found = fetch(f"{url}/api/v1/runs/{quote(run_id, safe='')}/status?worst=0", RunStatus, credentials)
    except UnavailableError:
        return []  # forgotten meanwhile, or of another version; the other runs are still read
    if found.run.end is not None:
        return []
    effects = {"windows": found.window_effect, "NCCL timing": found.timing_effect}
    return [ok(f"{what} of {found.run.run_id}", effect) for what, effect in effects.items() if effect is not None]


def _read_keys(key_file: str, collector_key_file: str) -> ClientKeys | None:
    if not key_file or not collector_key_file:
        return None
    public = read_public_key(collector_key_file, "collector_key_file")
    return ClientKeys(public, read_key_pair(key_file, "key_file"))


def _check_endpoint(endpoint: str, keys: ClientKeys | None) -> Check:
    name = f"connection {endpoint}"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        set_keys(dealer, keys)
        monitor = dealer.get_monitor_socket(_EVENTS)
        dealer.connect(endpoint)
        return _judge(name, _collect_events(monitor), keys)
    except zmq.ZMQError as error:
        return problem(name, f"not an endpoint: {error}", _COSTS, "An endpoint is tcp://HOST:PORT.")
    finally:
        context.destroy(linger=0)


def _collect_events(monitor: "zmq.Socket[bytes]") -> list[int]:
    """Return the events of the connection until it is established or refused, or until WAIT_MS without one."""
    seen: list[int] = []
    while monitor.poll(WAIT_MS):
        event = int(recv_monitor_message(monitor)["event"])
        seen.append(event)
        if event != zmq.EVENT_CONNECTED:
            break
    return seen


def _judge(name: str, seen: list[int], keys: ClientKeys | None) -> Check:
    if zmq.EVENT_HANDSHAKE_SUCCEEDED in seen:
        return ok(name, "accepts this agent" + ("" if keys is None else ", with its key"))
    if zmq.EVENT_HANDSHAKE_FAILED_AUTH in seen:
        cure = "Put its public key into the collector's folder of allowed keys."
        return problem(name, "this agent's key is not allowed", _COSTS, cure)
    if seen and keys is None:
        cure = "Set key_file and collector_key_file (docs/keys.md), or start it with --insecure."
        return problem(name, "something listens there and refuses agents without keys", _COSTS, cure)
    if seen:
        cure = "collector_key_file must be the collector.pub of this very collector, and the collector must have keys."
        return problem(name, "something listens there and refuses this key", _COSTS, cure)
    cure = "Start it (`rankscope serve`), and check the address, firewalls and network policies."
    return problem(name, f"no answer within {WAIT_MS / 1000:.0f} s", _COSTS, cure)
