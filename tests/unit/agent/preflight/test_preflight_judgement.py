"""Ranks, nodes and links that are slow, in results made by hand."""

from collections.abc import Mapping

from rankscope.agent.preflight.checks import CPU, CUDA, DISK, MEMORY, PAIRS, list_checks
from rankscope.agent.preflight.judgement import (
    confirm,
    describe_unconfirmed,
    find_slow_links,
    judge,
    list_subjects,
    merge_pairs,
)
from rankscope.agent.preflight.results import Measured, PairRates, RankResults, Slow

GPU = "NVIDIA H100"
CHECKS = {check.name: check for check in list_checks(CUDA)}
NONE: dict[str, dict[str, list[float]]] = {}


def make_ranks(rates: Mapping[str, list[float]], check: str = MEMORY, device: str = GPU) -> list[RankResults]:
    """Return ranks with one rate each, by node."""
    ranks: list[RankResults] = []
    for node, of_node in rates.items():
        for local_rank, rate in enumerate(of_node):
            measured = Measured(values=(rate * 0.999, rate, rate * 1.001))
            ranks.append(
                RankResults(
                    rank=len(ranks), local_rank=local_rank, node=node, kind=CUDA, device=device,
                    checks={check: measured},
                )
            )  # fmt: skip
    return ranks


def make_pairs(rates: Mapping[tuple[str, str], float]) -> list[RankResults]:
    """Return one rank a node with the rate of each pair, as both ends have measured it."""
    nodes = sorted({node for pair in rates for node in pair})
    return [
        RankResults(
            rank=number, local_rank=0, node=node, kind=CUDA, device=GPU,
            pairs=[
                PairRates(node=node, other=a if b == node else b, values=(rate * 0.999, rate, rate * 1.001))
                for (a, b), rate in rates.items()
                if node in (a, b)
            ],
        )
        for number, node in enumerate(nodes)
    ]  # fmt: skip


def name_slow(results: list[RankResults], check: str) -> list[tuple[str, int | None]]:
    found = judge(results, [CHECKS[check]], NONE)
    return [(one.node, one.rank) for one in found.slow if not one.other]


def test_slow_gpu_of_one_node_is_named_by_rank() -> None:
    ranks = make_ranks({"a": [100, 101, 99, 100], "b": [100, 90, 101, 99]})
    assert name_slow(ranks, MEMORY) == [("b", 5)]


def test_node_on_which_every_rank_is_slow_is_named() -> None:
    ranks = make_ranks({"a": [100, 101, 99, 100], "b": [80, 81, 79, 80], "c": [99, 100, 101, 100]})
    assert name_slow(ranks, MEMORY) == [("b", 4), ("b", 5), ("b", 6), ("b", 7)]


def test_equal_nodes_are_not_named() -> None:
    assert name_slow(make_ranks({"a": [100, 101], "b": [99, 100], "c": [98, 100]}), MEMORY) == []


def test_other_devices_are_no_peers() -> None:
    ranks = make_ranks({"a": [100.0], "b": [101.0], "c": [99.0], "e": [100.0]})
    ranks += make_ranks({"d": [30.0]}, device="NVIDIA A100")
    found = judge(ranks, [CHECKS[MEMORY]], NONE)
    assert (found.slow, found.compared) == ((), ("memory bandwidth",))
    reason = found.not_compared["memory bandwidth"]
    assert reason == "3 other ranks with the same device (NVIDIA A100) are needed; there are 0"


def test_two_peers_are_too_few() -> None:
    found = judge(make_ranks({"a": [100.0], "b": [10.0], "c": [100.0]}), [CHECKS[MEMORY]], NONE)
    assert (found.slow, found.compared) == ((), ())
    assert list(found.not_compared) == ["memory bandwidth"]


def test_check_without_values_is_not_compared() -> None:
    found = judge(make_ranks({"a": [1.0]}), [CHECKS[DISK]], NONE)
    assert found.not_compared == {"disk write and fsync": "no values"}


def test_disk_of_a_node_is_compared_once_a_node() -> None:
    ranks = make_ranks({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [0.2, 0.2], "d": [1.0, 1.0]}, DISK)
    assert [subject.rank for subject in list_subjects(ranks, CHECKS[DISK])] == [None] * 4
    assert name_slow(ranks, DISK) == [("c", None)]


def test_slow_node_is_told_apart_from_its_partners() -> None:
    pairs = {
        ("a", "b"): 10.0, ("a", "c"): 4.0, ("a", "d"): 10.1, ("b", "c"): 4.1, ("b", "d"): 9.9, ("c", "d"): 3.9,
    }  # fmt: skip
    found = judge(make_pairs(pairs), [CHECKS[PAIRS]], NONE)
    assert [(one.node, one.other) for one in found.slow] == [("c", "")]
    (slow,) = found.slow
    assert (round(slow.own, 1), round(slow.against, 1), slow.peers) == (4.1, 10.1, 3)  # each with its best partner


def test_slow_link_is_told_apart_from_its_nodes() -> None:
    pairs = {
        ("a", "b"): 10.0, ("a", "c"): 4.0, ("a", "d"): 10.1, ("b", "c"): 10.1, ("b", "d"): 9.9, ("c", "d"): 9.9,
    }  # fmt: skip
    found = judge(make_pairs(pairs), [CHECKS[PAIRS]], NONE)
    assert [(one.node, one.other) for one in found.slow] == [("a", "c")]


def test_link_of_a_slow_node_is_not_named_besides() -> None:
    results = make_pairs({("a", "b"): 10.0, ("a", "c"): 4.0, ("b", "c"): 4.0, ("a", "d"): 10.0, ("b", "d"): 10.0})
    assert find_slow_links(results, CHECKS[PAIRS], {"c"}) == []


def test_both_ends_of_a_pair_count() -> None:
    merged = merge_pairs(make_pairs({("a", "b"): 10.0}))
    assert len(merged["a", "b"]) == 6


def test_node_slower_than_its_own_past_is_named() -> None:
    ranks = make_ranks({"a": [70.0, 100.0]})
    found = judge(ranks, [CHECKS[MEMORY]], {MEMORY: {"a": [99.0, 100.0, 101.0, 100.0]}})
    (slow,) = found.slow
    assert (slow.node, slow.rank, slow.is_past, slow.peers) == ("a", 0, True, 4)
    assert found.compared == ("memory bandwidth",)


def test_two_earlier_preflights_are_too_few() -> None:
    found = judge(make_ranks({"a": [70.0]}), [CHECKS[MEMORY]], {MEMORY: {"a": [100.0, 100.0]}})
    assert (found.slow, found.compared) == ((), ())


def test_small_change_since_earlier_preflights_is_not_named() -> None:
    # 7 %: more than the 5 % beside peers, less than the 10 % beside the past.
    found = judge(make_ranks({"a": [93.0]}), [CHECKS[MEMORY]], {MEMORY: {"a": [100.0] * 5}})
    assert found.slow == ()


def test_slow_beside_peers_is_not_said_again_of_the_past() -> None:
    ranks = make_ranks({"a": [100.0], "b": [101.0], "c": [50.0], "d": [99.0]})
    found = judge(ranks, [CHECKS[MEMORY]], {MEMORY: {"c": [100.0] * 5}})
    assert [(one.node, one.is_past) for one in found.slow] == [("c", False)]


def make_slow(node: str, ratio: float) -> Slow:
    return Slow(check=MEMORY, node=node, rank=1, own=ratio, against=1.0, peers=3, ratio=ratio, deviations=9.0)


def test_only_what_is_slow_twice_is_confirmed() -> None:
    kept = confirm([make_slow("a", 0.5), make_slow("b", 0.5)], [make_slow("b", 0.6), make_slow("c", 0.5)], {MEMORY})
    assert [(one.node, one.ratio) for one in kept] == [("b", 0.6)]


def test_slowness_measured_once_is_not_confirmed_without_another() -> None:
    slow = [make_slow("a", 0.5)]
    assert confirm(slow, slow, repeated=()) == ()
    checks = list_checks(CPU)
    (said,) = describe_unconfirmed(slow, checks, repeated=())
    assert said == "memory bandwidth again (slow once on a: nobody is named for it)"
    assert describe_unconfirmed(slow, checks, repeated={MEMORY}) == []


def test_cpu_and_gpu_have_checks_of_their_own() -> None:
    names = [{check.name for check in list_checks(kind)} for kind in (CPU, CUDA)]
    assert names[1] - names[0] == {"matmul_float16", "to_device", "to_host"}
