"""Send a test alert to an Alertmanager, and say whether it accepted it.

The alert has the labels of RankscopeStragglerRank (deploy/prometheus/rules/alerts.yml), and the Alertmanager is asked
what became of it (API v2: `POST` and `GET /api/v2/alerts`, prometheus/alertmanager `api/v2/openapi.yaml`). The
sentence, the run and the name of the alert say that it is a test.
"""

import json
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from rankscope.measure.errors import SettingError, UnavailableError

RUN: Final = "rankscope-test"
ALERT: Final = "RankscopeTest"
SENTENCE: Final = "This is a test by `rankscope notify`, and no incident: rank 2 of a run that does not exist."
HTTP_S_MAX: Final = 10.0
LASTS_S: Final = 300
"""An alert ends by itself after so long: longer than the usual `group_wait`, before which nobody is notified."""
ASKED_S_MAX: Final = 10.0
"""How long the Alertmanager may take to show the alert that it has accepted."""
POLL_S: Final = 0.5


class AlertResult(NamedTuple):
    """What an Alertmanager did with the alert: whether it accepted it, and what else is known."""

    is_accepted: bool
    text: str


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
                return AlertResult(*_describe_shown(shown))
            wait(POLL_S)
    except (OSError, ValueError, UnavailableError) as error:
        why = getattr(error, "reason", None) or error
        return _fail(f"{base} did not accept the alert: {why}")
    return _fail(f"{base} answered, and did not show the alert within {ASKED_S_MAX:g} s")


def _fail(text: str) -> AlertResult:
    return AlertResult(is_accepted=False, text=text)


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
