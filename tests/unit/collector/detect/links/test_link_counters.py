"""What counters of ports say about a slow link. Machines are sampled at steps 0, 10 and 20."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from rankscope.collector.detect.links.link_counters import (
    ACCUSED_MAX,
    LOCATIONS_MAX,
    NAMED_MAX,
    OTHERS_MAX,
    PORT_COUNTERS,
    LinkCounters,
    Sign,
)
from rankscope.collector.detect.machine_growth import Machines, NodeCounts
from rankscope.measure.records import InterfaceSample, PortSample
from tests.unit.collector.detect.machines import PORT, growing, machine, port_growing

OTHERS = "median of the same port on other nodes"


def find_signs(
    accused: Iterable[str], machines: Mapping[str, Sequence[NodeCounts]], from_step: int
) -> dict[str, list[Sign]]:
    return LinkCounters(lambda: Machines({}, machines)).find_signs(accused, from_step)


def test_errors_of_an_accused_port_that_others_do_not_count() -> None:
    machines = {"a": port_growing(40, "symbol_errors"), "b": port_growing(0, "symbol_errors")}
    (sign,) = find_signs(["a"], machines, 0)["link_errors"]
    text = f"40 symbol errors on port {PORT} of node a in 20 steps (the same port on the other node: 0)"
    assert sign.write() == f"sign of link errors: {text}"
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


def counting(*counts: int, field: str = "link_downs") -> Sequence[NodeCounts]:
    return machine(*({"ports": (PortSample(name=PORT, is_active=True, **{field: count}),)} for count in counts))


def port(*, name: str = PORT, is_active: bool | None = True, **counts: Any) -> dict[str, object]:
    return {"ports": (PortSample(name=name, is_active=is_active, **counts),)}


@pytest.mark.parametrize(("last", "growth"), [(2, 2), (3, None), (19, None)])
def test_counter_that_shows_a_tenth_or_less_has_begun_again(last: int, growth: int | None) -> None:
    machines = {"a": counting(20, 20, last), "b": counting(20, 20, 20)}
    found = [sign.evidence for sign in find_signs(["a"], machines, 0).get("link_errors", [])]
    assert found == ([] if growth is None else [{f"link_downs/a/{PORT}": growth}])


def test_one_of_a_counter_is_singular_and_a_part_is_not_zero() -> None:
    # One in 200 steps is 0.1 in 20.
    rare = [one._replace(steps=10 * one.steps) for one in counting(0, 0, 1)]
    machines = {"a": counting(0, 0, 1), "b": rare, "c": rare}
    (sign,) = find_signs(["a"], machines, 0)["link_errors"]
    assert sign.text == f"1 loss of its link on port {PORT} of node a in 20 steps ({OTHERS}: 0.1)"


@pytest.mark.parametrize(("before", "is_sign"), [(20, True), (21, False)])
def test_counter_must_grow_twice_as_fast_as_before(before: int, *, is_sign: bool) -> None:
    # From step 20 on 40 in 20 steps.
    counts = counting(0, 10, before, before + 20, before + 40, field="symbol_errors")
    healthy = counting(0, 0, 0, 0, 0, field="symbol_errors")
    assert bool(find_signs(["a"], {"a": counts, "b": healthy}, 20)) == is_sign


def test_past_of_a_counter_that_was_missing_then_is_not_known() -> None:
    late = machine(port(), port(), *(port(symbol_errors=count) for count in (0, 20, 40)))
    healthy = counting(0, 0, 0, 0, 0, field="symbol_errors")
    assert find_signs(["a"], {"a": late, "b": healthy}, 20).keys() == {"link_errors"}


@pytest.mark.parametrize("is_active", [False, None])
def test_port_that_is_not_active_gives_no_sign(*, is_active: bool | None) -> None:
    down = [port(is_active=is_active, rate_bits_per_s=10**9, symbol_errors=40 * n) for n in range(3)]
    fast = [port(rate_bits_per_s=400 * 10**9, symbol_errors=0)] * 3
    machines = {"a": machine(*down), "b": machine(*fast)}
    assert find_signs(["a"], machines, 0) == {}
    # Nor is one compared with it.
    assert find_signs(["b"], {"a": machine(*fast), "b": machine(*down)}, 0) == {}


@pytest.mark.parametrize("rate", [0, -1])
def test_port_without_a_rate_is_not_slow(rate: int) -> None:
    machines = {
        "a": machine(*[port(rate_bits_per_s=rate)] * 2),
        "b": machine(*[port(rate_bits_per_s=400 * 10**9)] * 2),
    }
    assert find_signs(["a"], machines, 0) == {}


def test_active_port_keeps_interfaces_and_tcp_from_being_judged() -> None:
    def both(count: int, *, is_active: bool) -> dict[str, object]:
        card = InterfaceSample(name="eth0", bytes=1, errors=count, drops=count)
        return {**port(is_active=is_active), "interfaces": (card,), "tcp_segments_retransmitted": count}

    for is_active, kinds in ((True, set()), (False, {"link_errors", "congestion"})):
        grown, still = (machine(both(0, is_active=is_active), both(n, is_active=is_active)) for n in (500, 0))
        assert find_signs(["a"], {"a": grown, "b": still}, 0).keys() == kinds


def test_receiver_that_is_not_ready_is_no_congestion() -> None:
    grown, still = (counting(0, count, field="receiver_not_ready") for count in (10**6, 0))
    assert find_signs(["a"], {"a": grown, "b": still}, 0) == {}


def test_ports_of_further_slow_links_are_not_looked_at() -> None:
    machines = {"a": port_growing(40, "symbol_errors"), "b": port_growing(0, "symbol_errors")}
    counters = LinkCounters(lambda: Machines({}, machines))
    found = [counters.find_signs(["a"], 0).keys() for _ in range(LOCATIONS_MAX + 1)]
    assert found == [{"link_errors"}] * LOCATIONS_MAX + [set()]


def test_segments_sent_again_are_those_of_the_machine() -> None:
    machines = {name: growing(total, "tcp_segments_retransmitted") for name, total in (("a", 500), ("b", 4), ("c", 6))}
    (sign,) = find_signs(["a"], machines, 0)["congestion"]
    assert sign.text == "500 TCP segments sent again on node a in 20 steps (median of other nodes: 5)"
    assert sign.evidence == {"tcp_segments_retransmitted/a": 500}


def test_interface_has_errors_and_drops() -> None:
    def card(errors: int, drops: int) -> dict[str, object]:
        return {"interfaces": (InterfaceSample(name="eth0", bytes=0, errors=errors, drops=drops),)}

    machines = {"a": machine(card(0, 0), card(10, 100)), "b": machine(card(0, 0), card(0, 0))}
    signs = find_signs(["a"], machines, 0)
    assert [sign.evidence for sign in signs["link_errors"]] == [{"errors/a/eth0": 10}]
    assert [sign.evidence for sign in signs["congestion"]] == [{"drops/a/eth0": 100}]
    assert signs["congestion"][0].text == (
        "100 dropped packets on interface eth0 of node a in 10 steps (the same interface on the other node: 0)"
    )


def test_port_at_a_lower_rate_than_the_others_is_a_fact() -> None:
    machines = {name: machine(*[port(rate_bits_per_s=rate * 10**9)] * 2) for name, rate in (("a", 100), ("b", 400))}
    found = find_signs(["a", "b"], machines, 0)
    assert found.keys() == {"link_rate"}
    (sign,) = found["link_rate"]
    text = "at 100 Gb/s (the same port on the other node: 400)"
    assert sign.write() == f"port {PORT} of node a {text}"
    assert (sign.evidence, sign.ratio) == ({f"rate_bits_per_s/a/{PORT}": 100 * 10**9}, math.inf)


def test_port_of_no_other_machine_is_not_judged_by_its_rate() -> None:
    lone = port(name="mlx5_7/1", rate_bits_per_s=10**9)
    assert find_signs(["a"], {"a": machine(lone, lone), "b": port_growing(0, "cnps_sent")}, 0) == {}


def test_only_the_clearest_signs_are_named() -> None:
    def ports(errors: int) -> dict[str, object]:
        return {
            "ports": tuple(
                PortSample(name=f"p{n}", is_active=True, symbol_errors=n * errors) for n in range(NAMED_MAX + 2)
            )
        }

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
