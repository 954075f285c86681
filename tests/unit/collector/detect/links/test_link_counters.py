"""What counters of ports say about a slow link. Machines are sampled at steps 0, 10 and 20."""

import math

import pytest

from rankscope.collector.detect.links.link_counters import ACCUSED_MAX, NAMED_MAX, OTHERS_MAX, PORT_COUNTERS, find_signs
from rankscope.measure.records import InterfaceSample, PortSample
from tests.unit.collector.detect.machines import PORT, growing, machine, port_growing

OTHERS = "the same port of the other nodes, at the median,"


def test_errors_of_an_accused_port_that_others_do_not_count() -> None:
    machines = {"a": port_growing(40, "symbol_errors"), "b": port_growing(0, "symbol_errors")}
    (sign,) = find_signs(["a"], machines, 0)["link_errors"]
    assert sign.sentence == f"port {PORT} of node a counted 40 symbol errors within 20 steps, {OTHERS} 0"
    assert sign.evidence == {f"symbol_errors/a/{PORT}": 40}


@pytest.mark.parametrize("field", PORT_COUNTERS)
def test_each_counter_speaks_from_its_least_growth_on(field: str) -> None:
    counter = PORT_COUNTERS[field]
    healthy = port_growing(0, field)
    assert find_signs(["a"], {"a": port_growing(counter.growth_min, field), "b": healthy}, 0).keys() == {counter.kind}
    assert find_signs(["a"], {"a": port_growing(counter.growth_min - 1, field), "b": healthy}, 0) == {}


@pytest.mark.parametrize(("others", "is_sign"), [(400, True), (402, False)])
def test_others_that_count_the_same_make_it_no_sign(others: int, *, is_sign: bool) -> None:
    machines = {"a": port_growing(4000, "cnps_handled")} | dict.fromkeys("bcd", port_growing(others, "cnps_handled"))
    assert bool(find_signs(["a"], machines, 0)) == is_sign


def test_growth_of_others_over_more_steps_counts_by_the_step() -> None:
    # 2000 in 20 steps, against 3000 in 200: 300 in 20.
    long = [one._replace(steps=10 * one.steps) for one in port_growing(3000, "cnps_sent")]
    assert find_signs(["a"], {"a": port_growing(2000, "cnps_sent"), "b": long}, 0) == {}
    assert find_signs(["a"], {"a": port_growing(3000, "cnps_sent"), "b": long}, 0).keys() == {"congestion"}


def test_ports_are_compared_with_those_of_their_own_name() -> None:
    machines = {"a": port_growing(40, "symbol_errors"), "b": port_growing(0, "symbol_errors", port="mlx5_9/1")}
    assert find_signs(["a"], machines, 0) == {}


def test_counter_that_was_reset_counts_from_zero() -> None:
    counts = [{"ports": (PortSample(name=PORT, link_downs=count),)} for count in (5, 5, 1)]
    machines = {"a": machine(*counts), "b": port_growing(0, "link_downs")}
    (sign,) = find_signs(["a"], machines, 0)["link_errors"]
    assert sign.evidence == {f"link_downs/a/{PORT}": 1}


def test_segments_sent_again_are_those_of_the_machine() -> None:
    machines = {name: growing(total, "tcp_segments_retransmitted") for name, total in (("a", 500), ("b", 4), ("c", 6))}
    (sign,) = find_signs(["a"], machines, 0)["congestion"]
    assert sign.sentence == (
        "node a counted 500 TCP segments sent again within 20 steps, the other nodes, at the median, 5"
    )
    assert sign.evidence == {"tcp_segments_retransmitted/a": 500}


def test_interface_has_errors_and_drops() -> None:
    def card(errors: int, drops: int) -> dict[str, object]:
        return {"interfaces": (InterfaceSample(name="eth0", bytes=0, errors=errors, drops=drops),)}

    machines = {"a": machine(card(0, 0), card(10, 100)), "b": machine(card(0, 0), card(0, 0))}
    signs = find_signs(["a"], machines, 0)
    assert [sign.evidence for sign in signs["link_errors"]] == [{"errors/a/eth0": 10}]
    assert [sign.evidence for sign in signs["congestion"]] == [{"drops/a/eth0": 100}]


def test_port_at_a_lower_rate_than_the_others_comes_first() -> None:
    def port(rate: int, errors: int) -> dict[str, object]:
        return {"ports": (PortSample(name=PORT, rate_bits_per_s=rate * 10**9, receive_errors=errors),)}

    machines = {"a": machine(port(100, 0), port(100, 99)), "b": machine(port(400, 0), port(400, 0))}
    first, second = find_signs(["a", "b"], machines, 0)["link_errors"]
    assert first.sentence == f"port {PORT} of node a ran at 100 Gb/s, {OTHERS} at 400"
    assert (first.evidence, first.ratio) == ({f"rate_bits_per_s/a/{PORT}": 100 * 10**9}, math.inf)
    assert second.evidence == {f"receive_errors/a/{PORT}": 99}


def test_port_that_no_other_machine_has_is_not_judged_by_its_rate() -> None:
    lone = {"ports": (PortSample(name="mlx5_7/1", rate_bits_per_s=10**9),)}
    assert find_signs(["a"], {"a": machine(lone, lone), "b": port_growing(0, "cnps_sent")}, 0) == {}


def test_only_the_clearest_signs_are_named() -> None:
    def ports(errors: int) -> dict[str, object]:
        return {"ports": tuple(PortSample(name=f"p{n}", symbol_errors=n * errors) for n in range(NAMED_MAX + 2))}

    found = find_signs(["a"], {"a": machine(ports(0), ports(10)), "b": machine(ports(0), ports(0))}, 0)
    assert [next(iter(sign.evidence)) for sign in found["link_errors"]] == [
        f"symbol_errors/a/p{n}" for n in (5, 4, 3, 2)
    ]


@pytest.mark.parametrize("accused", ["a", "z"])
def test_machines_without_two_samples_are_not_judged(accused: str) -> None:
    machines = {"a": port_growing(40, "symbol_errors")[:1], "b": port_growing(0, "symbol_errors")}
    assert find_signs([accused], machines, 0) == {}
    late = {"a": port_growing(40, "symbol_errors"), "b": port_growing(0, "symbol_errors")}
    assert find_signs([accused], late, 11) == {}


def test_few_machines_of_a_large_run_are_read() -> None:
    read: set[str] = set()

    class Watched(dict[str, object]):
        def get(self, node: str, default: object = None) -> object:
            read.add(node)
            return super().get(node, default)

    names = [f"node{number:04}" for number in range(500)]
    machines = Watched(
        dict.fromkeys(names, port_growing(0, "symbol_errors")) | {"node0007": port_growing(40, "symbol_errors")}
    )
    found = find_signs(names[:200], machines, 0)  # type: ignore[arg-type]
    assert [sign.evidence for sign in found["link_errors"]] == [{f"symbol_errors/node0007/{PORT}": 40}]
    assert len(read) == ACCUSED_MAX + OTHERS_MAX
