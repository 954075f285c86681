"""Notifications of a real collector: an incident of a run reaches a webhook, also over a kill."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.integration.receivers import OK, answering, receiving, saying_nothing
from tests.integration.serving import serving
from tests.integration.torchrun import Ended, python, run
from tests.integration.wire_ranks import telling
from tests.unit.collector.runs.run_stories import Story

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "incident-event.schema.json").read_text())
SLOW_RANK = 2
PATIENT = ("--rank-silent-s", "3600")
"""On a slow machine the ranks of the story are silent for long: that would be an incident of its own."""
COUNTED = (
    'rankscope_notifications_total{channel="webhook",outcome="retried"} 1.0\n',
    'rankscope_notifications_total{channel="webhook",outcome="delivered"} 2.0\n',
)
"""What the collector counts of a run with a slow rank, whose first event is refused once."""

Event = dict[str, Any]


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """A file with a secret."""
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    return str(path)


def hold_up(story: Story) -> None:
    """Let a rank be slow until that is found."""
    story.train(40).train(60, forward={SLOW_RANK: 30.0})


def end(story: Story) -> None:
    for rank in range(4):
        story.say_goodbye(rank)


@dataclass
class Told:
    """What the receiver of one collector got, and what it said of that."""

    events: list[Event]
    stderr: str


@pytest.fixture
def told(tmp_path: Path, secret: str) -> Told:
    """A run with a slow rank, from its first step to its end."""
    with receiving(answering(503), OK) as receiver:
        arguments = (
            "--store", str(tmp_path / "runs.db"), "--notify-webhook-url", receiver.url,
            "--notify-webhook-secret-file", secret, "--notify-interval-s", "0",
        )  # fmt: skip
        with serving(*arguments, *PATIENT) as served, telling(Story(4), served.endpoint) as story:
            hold_up(story)
            receiver.wait_for(2)
            end(story)
            requests = receiver.wait_for(3)
            for line in COUNTED:
                served.wait_for_metrics(line)
            served.end(signal.SIGTERM)
            stderr = served.read_stderr()
    return Told([json.loads(one.body) for one in requests], stderr)


def test_receiver_gets_opened_then_resolved(told: Told) -> None:
    assert [event["kind"] for event in told.events] == ["opened", "opened", "resolved"]
    first, again, last = told.events
    assert first["id"] == again["id"] != last["id"]  # the first try was answered with 503
    # The event: documented, and about the node.
    for event in told.events:
        jsonschema.validate(event, SCHEMA)
    assert first["incident"]["ranks"] == [SLOW_RANK]
    assert [node["node"] for node in first["nodes"]] == ["node-a"]
    assert last["incident"]["resolved_reason"] == "the run is over"
    assert "Traceback" not in told.stderr


def test_kill_between_opening_and_end_delivers_neither_twice(tmp_path: Path, secret: str) -> None:
    story = Story(4)
    with receiving() as receiver:
        arguments = (
            "--store", str(tmp_path / "runs.db"), "--notify-webhook-url", receiver.url,
            "--notify-webhook-secret-file", secret, "--notify-interval-s", "0", *PATIENT,
        )  # fmt: skip
        with serving(*arguments) as first, telling(story, first.endpoint):
            hold_up(story)
            receiver.wait_for(1)
            first.wait_for_metrics('rankscope_notifications_total{channel="webhook",outcome="delivered"} 1.0\n')
            first.kill()
        with serving(*arguments) as second, telling(story, second.endpoint, again=True):
            story.train(60, forward={SLOW_RANK: 30.0})
            end(story)
            receiver.wait_for(2)
            second.end(signal.SIGTERM)
        events = [json.loads(request.body) for request in receiver.requests]
    assert [(event["kind"], event["number"]) for event in events] == [("opened", 1), ("resolved", 2)]


def test_end_of_a_collector_does_not_wait_for_a_silent_receiver(secret: str) -> None:
    with receiving(saying_nothing) as receiver:
        arguments = ("--notify-webhook-url", receiver.url, "--notify-webhook-secret-file", secret, *PATIENT)
        with serving(*arguments) as served, telling(Story(4), served.endpoint) as story:
            hold_up(story)
            receiver.wait_for(1)
            assert served.end(signal.SIGTERM) == 0
            stderr = served.read_stderr()
    assert "webhook: 1 events are not delivered; they are lost" in stderr


# -- mistakes in the settings -----------------------------------------------------------------------------------------


def serve(*arguments: str) -> Ended:
    """Start a collector, and wait for its end."""
    addresses = ("--listen", "tcp://127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    return run(python("-m", "rankscope.collector", "serve", *addresses, *arguments))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--notify-webhook-url", "https://hooks.example/"), "notify_webhook_secret_file is empty"),
        (("--notify-webhook-url", "hooks.example"), "it must be https://HOST[:PORT]/PATH"),
    ],
)
def test_mistake_is_named_before_the_collector_listens(arguments: tuple[str, ...], text: str) -> None:
    ended = serve(*arguments)
    assert ended.exit_code != 0
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr


# -- a test event -----------------------------------------------------------------------------------------------------


def notify(*arguments: str) -> Ended:
    """Send a test event, and wait for the end of the command."""
    return run(python("-m", "rankscope.collector", "notify", *arguments))


def test_test_event_reaches_the_receivers_of_the_settings(tmp_path: Path, secret: str) -> None:
    config = tmp_path / "collector.toml"
    with receiving() as receiver:
        config.write_text(f'notify_webhook_url = "{receiver.url}"\nnotify_webhook_secret_file = "{secret}"\n')
        ended = notify("--config", str(config))
        (request,) = receiver.requests
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "webhook: delivered\n", "")
    event = json.loads(request.body)
    jsonschema.validate(event, SCHEMA)
    assert (event["kind"], event["incident"]["run"]) == ("test", "rankscope-test")
    assert event["text"] == "This is a test of the notifications, and no incident."


def test_receiver_that_refuses_the_test_event_is_a_failure(secret: str) -> None:
    with receiving(answering(403)) as receiver:
        ended = notify("--notify-webhook-url", receiver.url, "--notify-webhook-secret-file", secret)
    text = f"webhook: the receiver at 127.0.0.1:{receiver.port} answers 403\n"
    assert (ended.exit_code, ended.stdout, ended.stderr) == (1, text, "")


def test_test_without_a_receiver_names_the_settings() -> None:
    ended = notify()
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("rankscope: no receiver of notifications is set: give notify_webhook_url or otlp, ")
