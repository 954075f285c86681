"""What a pre-flight says of its nodes to a collector, and which collector that is."""

import pytest

from rankscope.agent.preflight.checks import CPU, MEMORY, list_checks
from rankscope.agent.preflight.collector_history import ANSWER_BYTES_MAX, find_collector, list_outcomes
from rankscope.agent.preflight.files import build_line
from rankscope.agent.preflight.results import Measured, NamedNode, PreflightReport, RankResults, Status
from rankscope.measure.bounds import SHORT_NAME_LENGTH_MAX
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import UnavailableError
from rankscope.measure.identity import LABEL_LENGTH_MAX
from rankscope.measure.node_messages import PreflightAnswer, PreflightEnded
from rankscope.measure.preflights import CHECKS_MAX, COLLECTOR_KEY, NODES_MAX, PAST_MAX, NodeOutcome, NodePast
from rankscope.measure.shards import choose_collector


def outcomes_of(
    status: Status, *named: NamedNode, device: str = "EPYC", nodes: tuple[str, ...] = ("a", "b")
) -> list[NodeOutcome]:
    results = tuple(
        RankResults(
            rank=rank, local_rank=0, node=node, kind=CPU, device=device, checks={MEMORY: Measured(values=(4.0,))}
        )
        for rank, node in enumerate(nodes)
    )
    report = PreflightReport(
        wall_s=1.0, took_s=2.0, status=status, sentence="", ranks=len(nodes), nodes=nodes, named=named, results=results
    )
    return list_outcomes(report, build_line(report, list_checks(CPU)))


def test_outcome_of_a_named_node_has_its_reasons() -> None:
    assert outcomes_of("named", NamedNode(node="b", reasons=("memory: slow", "disk: slow"))) == [
        NodeOutcome(node="a", device="EPYC", status="not_named", rates={MEMORY: 4.0}),
        NodeOutcome(
            node="b", device="EPYC", status="named", rates={MEMORY: 4.0}, reasons=("memory: slow", "disk: slow")
        ),
    ]


def test_nodes_that_nothing_was_compared_of_are_not_judged() -> None:
    assert [one.status for one in outcomes_of("not_judged")] == ["not_judged"] * 2


def test_longest_texts_of_as_many_nodes_as_a_message_has_fit() -> None:
    nodes = tuple(f"{number:0200}" for number in range(NODES_MAX))
    named = [NamedNode(node=node, reasons=("why " * 500,) * 9) for node in nodes]
    message = PreflightEnded(
        number=1, preflight="p1", outcomes=tuple(outcomes_of("named", *named, device="x" * 999, nodes=nodes))
    )
    frame = encode(message)
    assert decode(frame) == message
    assert len(frame) < 64 * 1024  # the smallest message_bytes_max of a collector


def test_largest_answer_is_accepted() -> None:
    rates = {f"{number:0{SHORT_NAME_LENGTH_MAX}}": 1.0 for number in range(CHECKS_MAX)}
    past = tuple(NodePast(f"{number:0{LABEL_LENGTH_MAX}}", (rates,) * PAST_MAX) for number in range(NODES_MAX))
    answer = PreflightAnswer(number=1, past=past)
    frame = encode(answer)
    assert decode(frame) == answer
    assert len(frame) < ANSWER_BYTES_MAX


@pytest.mark.parametrize(
    ("environment", "given", "endpoint"),
    [
        ({}, None, None),
        ({"RANKSCOPE_COLLECTOR": "tcp://a:1"}, None, "tcp://a:1"),
        ({"RANKSCOPE_COLLECTOR": "tcp://a:1"}, "tcp://b:1", "tcp://b:1"),
        ({"RANKSCOPE_COLLECTOR": "tcp://a:1"}, "", None),
        ({"RANKSCOPE": "0", "RANKSCOPE_COLLECTOR": "tcp://a:1"}, None, "tcp://a:1"),
    ],
)
def test_collector_is_that_of_the_agents_or_the_option(
    environment: dict[str, str], given: str | None, endpoint: str | None
) -> None:
    found = find_collector(environment, given)
    assert (None if found is None else found.endpoint) == endpoint


@pytest.mark.parametrize("run", ["bert", "gpt"])
def test_one_of_several_collectors_has_all_preflights(run: str) -> None:
    found = find_collector({"RANKSCOPE_COLLECTOR": "tcp://a:1,tcp://b:1", "RANKSCOPE_RUN": run}, None)
    assert found is not None
    assert found.endpoint == choose_collector(COLLECTOR_KEY, ["tcp://a:1", "tcp://b:1"])


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"RANKSCOPE_COLLECTOR": "nowhere"}, "collector is 'nowhere'"),
        ({"RANKSCOPE_COLLECTOR": "tcp://a:1", "RANKSCOPE_KEY_FILE": "k"}, "an encrypted connection needs both"),
    ],
)
def test_setting_that_cannot_be_used_is_said_with_the_cure(environment: dict[str, str], text: str) -> None:
    with pytest.raises(UnavailableError, match=text) as raised:
        find_collector(environment, None)
    assert str(raised.value).endswith(" No collector is used.")
