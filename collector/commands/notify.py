"""`rankscope notify`: send a test event to the receivers of a collector's settings, and an alert to an Alertmanager."""

import argparse
import logging
import os
import threading
import time
from typing import Final

import msgspec

from rankscope.collector.commands.command import add_json, add_settings, give_json, read_overrides
from rankscope.collector.commands.serve import FIRST_SETTINGS, SERVE_GROUPS
from rankscope.collector.config import CollectorConfig, read_config
from rankscope.collector.incidents.incident import OPENED, Change, Incident
from rankscope.collector.log_lines import start_logging
from rankscope.collector.notifications.alertmanager import send_to_alertmanager
from rankscope.collector.notifications.channel import DELIVERED, Deliver, TryResult
from rankscope.collector.notifications.event import TEST, IncidentEvent, IncidentNodes, build_event
from rankscope.collector.notifications.notifier import Receivers, read_receivers
from rankscope.collector.notifications.otlp_logs import OTLP, make_otlp_logs
from rankscope.collector.publish.http_listener import read_port
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import SettingError

TEST_RUN: Final = "rankscope-test"
SENTENCE: Final = "This is a test of the notifications, and no incident."


class Notify:
    """Send an event of the kind `test` to each receiver, once, an alert to an Alertmanager, and print what became of
    both.
    """

    name = "notify"
    summary = "send a test to those who are notified of incidents: webhook, OTLP, Alertmanager"
    example = """\
rankscope notify --config /etc/rankscope/collector.toml      with the settings of `rankscope serve`
rankscope notify --alertmanager http://alertmanager:9093"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of `serve`."""
        parser.usage = "rankscope notify [--config FILE] [--OPTION VALUE ...]"
        parser.add_argument("--config", default="", metavar="FILE", help="TOML file, see configs/collector.toml")
        parser.add_argument("--alertmanager", default="", metavar="URL", help="send an alert to this Alertmanager, too")
        add_json(parser, "what each receiver has answered")
        add_settings(parser, CollectorConfig, SERVE_GROUPS, FIRST_SETTINGS)

    def run(self, options: argparse.Namespace) -> int:
        """Return 0 if every receiver has got it. Raises SettingError for settings that `serve` would refuse."""
        start_logging(logging.WARNING, options.verbose)
        overrides = read_overrides(options, CollectorConfig)
        config = read_config(os.environ, file_name=options.config, overrides=overrides)
        receivers = read_all_receivers(config)
        if not receivers and not options.alertmanager:
            raise SettingError(
                "no receiver of notifications is set: give notify_webhook_url or otlp, "
                "for example in the file that --config names, or an Alertmanager by --alertmanager URL."
            )
        event = build_test_event(time.time())
        deliveries = {name: _deliver(receiver, event) for name, receiver in receivers.items()}
        answers = [
            ReceiverAnswer(receiver=name, is_accepted=one.outcome == DELIVERED, said=one.problem or DELIVERED)
            for name, one in deliveries.items()
        ]
        if options.alertmanager:
            alert = send_to_alertmanager(options.alertmanager, time.time())
            answers.append(ReceiverAnswer(receiver="alertmanager", is_accepted=alert.is_accepted, said=alert.text))
        if give_json(options, answers):
            for one in answers:
                print(f"{one.receiver}: {one.said}")
        return 0 if all(one.is_accepted for one in answers) else 1


class ReceiverAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one receiver has said to the test."""

    receiver: str
    is_accepted: bool
    said: str


def read_all_receivers(config: CollectorConfig) -> Receivers:
    """Return the receivers of the settings, with that of OTLP, by the names of their channels. Raises SettingError for
    those that cannot be used.
    """
    receivers = read_receivers(config, SystemClock())
    if not (config.otlp and config.otlp_incidents):
        return receivers
    return {**receivers, OTLP: make_otlp_logs(config, read_port(config.http_listen))}


def build_test_event(wall_s: float) -> IncidentEvent:
    """Return an event about an incident that there is not.

    >>> build_test_event(0.0).text
    'This is a test of the notifications, and no incident.'
    """
    incident = Incident(
        id=0, run=TEST_RUN, severity="info", severity_found="info", kind=TEST, subject="the run", cause=TEST,
        sentence=SENTENCE, opened_wall_s=wall_s, updated_wall_s=wall_s, changes=(Change(wall_s, OPENED, SENTENCE),),
    )  # fmt: skip
    return build_event(incident, TEST, 1, wall_s, IncidentNodes())


def _deliver(receiver: Deliver, event: IncidentEvent) -> TryResult:
    receiver.prepare()
    return receiver(event, threading.Event())
