"""Send a synthetic incident to the receivers of a collector and to an Alertmanager, and say whether each accepted it.

It goes the way of a real one from the incident on: the webhook, command, hooks and OTLP of a collector's settings get
the events `opened` and `resolved`, signed and formed as always; an Alertmanager gets an alert with the labels of
RankscopeStragglerRank (deploy/prometheus/rules/alerts.yml), and is asked what became of it (API v2: `POST` and
`GET /api/v2/alerts`, prometheus/alertmanager `api/v2/openapi.yaml`). The sentence, the run and the name of the alert
say that it is a test.
"""

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.incidents.incident import Incident, begin, resolve
from rankscope.collector.notifications.channel import DELIVERED, Deliver
from rankscope.collector.notifications.event import OPENED, RESOLVED, Nodes, build_event
from rankscope.measure.errors import SettingError, UnavailableError

RUN: Final = "rankscope-selftest"
ALERT: Final = "RankscopeSelftest"
SENTENCE: Final = (
    "This is a test by `rankscope selftest --alert`, and no incident: rank 2 of a run that does not exist."
)
REASON: Final = "the test is over"
HTTP_S_MAX: Final = 10.0
LASTS_S: Final = 300
"""An alert ends by itself after so long: longer than the usual `group_wait`, before which nobody is notified."""
ASKED_S_MAX: Final = 10.0
"""How long the Alertmanager may take to show the alert that it has accepted."""
POLL_S: Final = 0.5


class AlertResult(NamedTuple):
    """What a receiver did with the synthetic incident: its name, whether it accepted it, and what else is known."""

    receiver: str
    is_accepted: bool
    text: str


def send_to_receivers(receivers: Mapping[str, Deliver], wall_s: float) -> list[AlertResult]:
    """Send `opened` and `resolved` to each receiver of the settings, each once."""
    opened = build_incident(wall_s)
    resolved = resolve(opened, REASON, wall_s, lost_rank_seconds=None)
    events = [build_event(opened, OPENED, 1, wall_s, Nodes()), build_event(resolved, RESOLVED, 2, wall_s, Nodes())]
    results = []
    for name, deliver in receivers.items():
        deliver.prepare()
        deliveries = [deliver(event, threading.Event()) for event in events]
        problems = [one.problem or one.outcome for one in deliveries if one.outcome != DELIVERED]
        text = problems[0] if problems else "accepted the events opened and resolved"
        results.append(AlertResult(name, not problems, text))
    return results


def build_incident(wall_s: float) -> Incident:
    """Return an incident about a rank of a run that does not exist, opened now.

    >>> incident = build_incident(0.0)
    >>> incident.run, incident.kind, incident.severity, incident.subject
    ('rankscope-selftest', 'straggler', 'warning', 'rank 2')
    """
    return begin(0, RUN, Finding(kind=STRAGGLER, ranks=(2,), cause="selftest", sentence=SENTENCE), wall_s)


def send_to_alertmanager(
    url: str, wall_s: float, *, wait: Callable[[float], object] = time.sleep, asks: int = int(ASKED_S_MAX / POLL_S)
) -> AlertResult:
    """Send an alert to an Alertmanager, and ask it for that alert until it is shown, `asks` times. Raises SettingError
    for an address that is none.
    """
    base = check_url(url)
    alert = build_alert(wall_s)
    try:
        _ask(f"{base}/api/v2/alerts", [alert])
        for _ in range(asks):
            shown = _find_shown(_ask(f"{base}/api/v2/alerts?filter={quote(_build_filter(alert))}"))
            if shown is not None:
                return AlertResult("alertmanager", *_describe_shown(shown))
            wait(POLL_S)
    except (OSError, ValueError, UnavailableError) as error:
        why = getattr(error, "reason", None) or error
        return _fail(f"{base} did not accept the alert: {why}")
    return _fail(f"{base} answered, and did not show the alert within {ASKED_S_MAX:g} s")


def _fail(text: str) -> AlertResult:
    return AlertResult("alertmanager", is_accepted=False, text=text)


def check_url(url: str) -> str:
    """Return the address of an Alertmanager without a slash at its end. Raises SettingError."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingError(f"--alertmanager is {url!r}; give its address, as in http://alertmanager:9093.")
    return url.rstrip("/")


def build_alert(wall_s: float) -> dict[str, Any]:
    """Return an alert of the form that Prometheus sends, from now for LASTS_S."""
    begin_at = datetime.fromtimestamp(wall_s, timezone.utc)
    return {
        "labels": {
            "alertname": ALERT, "run": f"{RUN}-{int(wall_s)}", "rank": "2", "severity": "warning", "level": "rank",
            "role": "cause",
        },
        "annotations": {"summary": "A test of the alerts of rankscope", "description": SENTENCE},
        "startsAt": begin_at.isoformat(),
        "endsAt": (begin_at + timedelta(seconds=LASTS_S)).isoformat(),
    }  # fmt: skip


def _build_filter(alert: dict[str, Any]) -> str:
    return f'run="{alert["labels"]["run"]}"'


def _ask(url: str, body: object = None) -> Any:
    """Send a request and return the answer's JSON; None where it has none. Raises OSError, ValueError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - checked
    with urllib.request.urlopen(request, timeout=HTTP_S_MAX) as answer:  # noqa: S310 - as above
        text = answer.read()
    return json.loads(text) if text else None


def _find_shown(answered: Any) -> dict[str, Any] | None:
    """Return the alert of an answer; None where it is not in it yet. Raises UnavailableError for another answer."""
    if not isinstance(answered, list) or not all(isinstance(one, dict) for one in answered):
        raise UnavailableError("the answer is none of an Alertmanager with API v2")
    return answered[0] if answered else None


def _describe_shown(shown: dict[str, Any]) -> tuple[bool, str]:
    names = [str(one.get("name")) for one in shown.get("receivers", ()) if isinstance(one, dict)]
    to = f"for the receiver{'s' * (len(names) != 1)} {', '.join(names)}" if names else "for no receiver"
    state = shown.get("status", {}).get("state")
    held = "" if state != "suppressed" else "; it is silenced or inhibited, so nobody is notified"
    return bool(names) and not held, f"accepted the alert {ALERT} {to}{held}; it ends after {LASTS_S // 60} minutes"


def describe_results(results: Sequence[AlertResult]) -> str:
    """Return a line for each receiver.

    >>> describe_results([AlertResult("webhook", False, "the receiver at pager:443 answers 401")])
    'WRONG  webhook             the receiver at pager:443 answers 401'
    """
    return "\n".join(f"{'right' if one.is_accepted else 'WRONG'}  {one.receiver:<18}  {one.text}" for one in results)
