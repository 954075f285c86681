"""Slow links as findings. Ten ms a step are a healthy transfer, in steps of 100 ms; two machines of four ranks."""

import dataclasses

import msgspec
import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain, Finding, close_finding
from rankscope.collector.detect.finding_memory import FindingMemory, recall, remember
from rankscope.collector.detect.links.detector import SlowLinks
from rankscope.collector.detect.stragglers.detector import is_explained_by_links
from rankscope.collector.detect.view import Candidate, RunView, Samples
from rankscope.collector.steps.step_series import Floats
from rankscope.measure.records import DeviceSample
from tests.unit.collector.detect.machines import port_growing
from tests.unit.collector.steps.group_transfers import LINKS, MB, Groups, draw, mesh, noisy, view_with
from tests.unit.collector.steps.step_series import slow_of

MESH = mesh(2, 4)
"""Tensor parallel pairs 0-1, 2-3, 4-5, 6-7, and the data parallel groups of the even and of the odd ranks."""
NODES = {rank: "ab"[rank // 4] for rank in range(8)}
PAIR, ODD = "mesh_tp/4,5", "mesh_dp/1,3,5,7"
BEGIN = 60
DETECTOR = SlowLinks(LINKS)


def flat(groups: Groups, steps: int = 120) -> dict[str, Floats]:
    """Transfers of exactly ten ms."""
    return {group: np.full(steps, 10.0) for group in groups}


def view_of(*slow: str, ratio: float = 2.0, flawless: bool = False, **changed: object) -> RunView:
    """These groups are slow from BEGIN on, and so are the steps."""
    transfers = flat(MESH) if flawless else draw(MESH, 120)
    for group in slow:
        transfers[group][BEGIN:] *= ratio
    fields = {"step_ms": grown(40.0), **changed}  # more than the transfers of two groups of twice the time
    return view_with(MESH, transfers, nodes=NODES, **fields)  # type: ignore[arg-type]


def grown(by_ms: float) -> Floats:
    """Steps of 100 ms since BEGIN, and shorter ones before."""
    return np.where(np.arange(120) < BEGIN, 100.0 - by_ms, 100.0)


def candidates(view: RunView, *known: Finding) -> list[Candidate]:
    found = DETECTOR.find(view, known)
    assert not isinstance(found, Abstain)
    return list(found)


def only(view: RunView, *known: Finding) -> Finding:
    (candidate,) = candidates(view, *known)
    return candidate.finding


# -- the finding ------------------------------------------------------------------------------------------------------


def test_finding_names_the_group_its_members_and_their_machines() -> None:
    finding = only(view_of(ODD))
    assert (finding.kind, finding.cause, finding.group) == ("slow_link", "slow_link", ODD)
    assert (finding.ranks, finding.nodes) == ((1, 3, 5, 7), ("a", "b"))
    assert abs((finding.since_step or 0) - BEGIN) <= 2
    assert finding.details == {}


def test_link_with_unknown_exposure_is_found_without_a_cost() -> None:
    view = view_of(ODD)
    unknown = {group: np.full(len(ns), np.nan) for group, ns in view.transfers.exposed_ns.items()}
    finding = only(dataclasses.replace(view, transfers=view.transfers._replace(exposed_ns=unknown)))
    assert (finding.group, finding.severity, finding.run_slowdown_ratio) == (ODD, "info", 1.0)
    assert finding.figures == "Transfer 20.1 ms per step, compared with 10.0 ms"
    assert finding.cost == "", "and no sentence about the run"


def test_sentence_states_ratio_comparison_and_cost() -> None:
    # 20 ms instead of 10 in steps of 100: the step would take 90. Ten of 100 parts of eight ranks are lost.
    finding = only(view_of(PAIR, flawless=True))
    assert (
        finding.headline == "Links of group mesh_tp/4,5 (node b): 2.0x slower than their 3 sibling groups since step 60"
    )
    assert finding.figures == "Transfer 20.0 ms per step, compared with 10.0 ms"
    assert finding.cost == "run 1.11x slower"


def test_sentence_of_a_group_without_siblings_names_its_past() -> None:
    headline = only(view_of(ODD, flawless=True)).headline
    assert headline == "Links of group mesh_dp/1,3,5,7 (nodes a, b): 2.0x slower than before since step 60"


@pytest.mark.parametrize("slow", [PAIR, ODD], ids=["beside siblings", "beside its past"])
def test_range_of_the_begin_of_a_slow_link_holds_it(slow: str) -> None:
    # Transfers with noise of 20 % of each group, and twice as long since step 60: the begin is known to 20 steps.
    transfers = {group: noisy(120, 0.2, seed=number) for number, group in enumerate(MESH)}
    transfers[slow][BEGIN:] *= 2.0
    finding = only(view_with(MESH, transfers, nodes=NODES))
    earliest, latest = finding.since_range or (0, 0)
    assert 40 <= earliest <= BEGIN <= latest <= 80


def test_slow_link_whose_begin_is_not_sure_states_the_range() -> None:
    sure = only(view_of(ODD, flawless=True))
    assert sure.since_range == (BEGIN, BEGIN)
    # The steps before are kept no more: what was known of the begin stays.
    known = msgspec.structs.replace(sure, since_step_min=41, since_step_max=66)
    view = view_of(ODD, flawless=True)
    for ns in view.transfers.ns.values():
        ns[:BEGIN] = np.nan
    finding = only(view, known)
    assert (finding.since_step, finding.since_range) == (BEGIN, (41, 66))
    assert finding.headline.endswith(": 2.0x slower than before since about step 60 (41-66)")
    closed = close_finding(finding, until_step=80, lasted_s=60.0)
    assert closed.headline.endswith(": 2.0x slower than before, steps 60-80 (1.0 min; began at 41-66)")


def test_recovered_link_without_siblings_has_its_period() -> None:
    closed = close_finding(only(view_of(ODD, flawless=True)), until_step=80, lasted_s=60.0)
    assert closed.headline == (
        "Links of group mesh_dp/1,3,5,7 (nodes a, b): 2.0x slower than before, steps 60-80 (1.0 min)"
    )


def test_evidence_has_the_bandwidths_in_bytes_per_second() -> None:
    # A megabyte in 20 ms is 50 MB/s; the bus bandwidth counts twice as much.
    view = view_of(PAIR, flawless=True)
    view.transfers.bus_bytes[PAIR][:] = 2 * MB
    evidence = only(view).evidence
    assert evidence["transfer_ns"] == pytest.approx(20e6)
    assert evidence["peers_transfer_ns"] == pytest.approx(10e6)
    assert evidence["algbw_bytes_per_s"] == pytest.approx(50e6)
    assert evidence["busbw_bytes_per_s"] == pytest.approx(100e6)


def test_bandwidth_of_data_whose_size_is_not_told_is_left_out() -> None:
    unknown = {group: np.full(120, np.nan) for group in MESH}
    assert not {"algbw_bytes_per_s", "busbw_bytes_per_s"} & only(view_of(PAIR, size_bytes=unknown)).evidence.keys()


# -- cost -------------------------------------------------------------------------------------------------------------


def test_step_loses_the_excess_of_the_slow_transfer() -> None:
    (candidate,) = candidates(view_of(PAIR, flawless=True))
    assert candidate.lost_ns is not None
    assert candidate.lost_ns == pytest.approx(np.repeat([0.0, 10e6], 60))


def test_step_loses_at_most_the_exposed_part_of_the_transfer() -> None:
    (candidate,) = candidates(view_of(PAIR, flawless=True, exposed_ms=3.0))
    assert candidate.lost_ns == pytest.approx(np.repeat([0.0, 3e6], 60))


def test_link_of_some_ranks_costs_at_most_the_growth_of_steps() -> None:
    # The transfer of one pair takes 10 ms longer, of which the other ranks have computed for 7: 93 ms have become 100.
    view = view_of(PAIR, flawless=True, step_ms=grown(7.0))
    (candidate,) = candidates(view)
    assert candidate.lost_ns == pytest.approx(np.repeat([0.0, 7e6], 60))
    assert candidate.finding.run_slowdown_ratio == pytest.approx(100 / 93)
    # Later, when no step before is kept.
    later = dataclasses.replace(view, series=dataclasses.replace(view.series, step_ns=np.full((120, 8), 100e6)))
    assert only(later, candidate.finding).run_slowdown_ratio == pytest.approx(100 / 93)
    # Where the steps before the begin are not known, what was exposed is the cost.
    without = msgspec.structs.replace(recall(candidate.finding), step_before_ns=None)
    unbound = only(later, remember(candidate.finding, without))
    assert unbound.run_slowdown_ratio == pytest.approx(100 / 90)


def test_link_of_all_ranks_costs_its_exposed_transfer() -> None:
    # Nobody computes beside it: that the steps have grown by less is for another reason.
    groups = {"fsdp/all": tuple(range(8))}
    transfers = {"fsdp/all": np.repeat([10.0, 20.0], 60)}
    finding = only(view_with(groups, transfers, nodes=NODES, step_ms=grown(7.0)))
    assert finding.run_slowdown_ratio == pytest.approx(100 / 90)


def test_slow_link_behind_compute_is_only_to_be_known() -> None:
    finding = only(view_of(PAIR, exposed_ms=0.0))
    assert (finding.severity, finding.run_slowdown_ratio) == ("info", 1.0)
    assert finding.cost == ""


def test_finding_that_was_a_warning_stays_one() -> None:
    warned = only(view_of(PAIR))
    assert warned.severity == "warning"
    assert only(view_of(PAIR, exposed_ms=0.0), warned).severity == "warning"


def test_step_that_two_slow_links_made_longer_is_charged_once() -> None:
    transfers = flat(MESH)
    transfers["mesh_tp/0,1"][BEGIN:] = 30.0
    transfers[PAIR][BEGIN:] = 20.0
    one, other = candidates(view_with(MESH, transfers, nodes=NODES, step_ms=grown(40.0)))
    assert (one.finding.group, other.finding.group) == ("mesh_tp/0,1", PAIR)
    assert one.lost_ns == pytest.approx(np.repeat([0.0, 20e6], 60))
    assert other.lost_ns == pytest.approx(np.zeros(120))


def test_step_with_unknown_transfer_has_unknown_cost() -> None:
    view = view_of(PAIR, flawless=True)
    view.transfers.ns[PAIR][80] = np.nan
    (candidate,) = candidates(view)
    assert candidate.lost_ns is not None
    assert np.flatnonzero(np.isnan(candidate.lost_ns)).tolist() == [80]


def test_link_of_steps_with_unknown_length_has_no_cost_yet() -> None:
    view = view_of(PAIR)
    view.series.step_ns[:] = np.nan
    assert only(view).run_slowdown_ratio == 1.0


# -- several slow groups ----------------------------------------------------------------------------------------------


def test_slow_groups_sharing_one_rank_are_one_finding_about_it() -> None:
    view = view_of(PAIR, ODD, flawless=True)
    view.transfers.ns[ODD][BEGIN:] = 30e6  # the group that loses most leads
    finding = only(view)
    assert (finding.ranks, finding.nodes) == ((5,), ())
    assert finding.details == {"suspected rank": "5", "groups": f"{ODD}; {PAIR}"}
    assert finding.headline == "Links of rank 5 (node b): 3.0x slower than before since step 60"
    assert finding.also == (f"measured in {ODD}; {PAIR} slow too, on the same links",)


def test_rank_with_slow_groups_costs_the_sum_of_their_excess() -> None:
    (candidate,) = candidates(view_of(PAIR, ODD, flawless=True))
    assert candidate.lost_ns == pytest.approx(np.repeat([0.0, 20e6], 60))


def test_slow_groups_of_one_machine_are_one_finding_about_it() -> None:
    groups = mesh(2, 8)
    transfers = draw(groups, 120)
    for group in ("mesh_tp/4,5", "mesh_tp/6,7"):
        transfers[group][BEGIN:] *= 2
    finding = only(view_with(groups, transfers, nodes={rank: "abcd"[rank // 4] for rank in range(16)}))
    assert (finding.ranks, finding.nodes) == ((4, 5, 6, 7), ("b",))
    assert finding.details["suspected node"] == "b"
    assert finding.headline.startswith("Links of node b: ")


def test_slow_groups_between_two_nodes_are_one_finding() -> None:
    groups = {f"pair/{one},{other}": (one, other) for one, other in [(0, 4), (1, 5), (8, 12), (9, 13), (0, 8)][:4]}
    groups |= {"pair/2,10": (2, 10), "pair/6,14": (6, 14)}
    transfers = draw(groups, 120)
    for group in ("pair/0,4", "pair/1,5"):
        transfers[group][BEGIN:] *= 2
    finding = only(view_with(groups, transfers, nodes={rank: "abcd"[rank // 4] for rank in range(16)}))
    assert finding.details["suspected node pair"] == "a, b"
    assert finding.headline.startswith("Links between nodes a, b: ")


def test_siblings_slow_together_are_one_finding() -> None:
    transfers = flat(MESH)
    for group in transfers:
        if group.startswith("mesh_tp"):
            transfers[group][BEGIN:] = 20.0
    view = view_with(MESH, transfers, nodes={rank: f"node{rank}" for rank in range(8)}, exposed_ms=4.0)
    (candidate,) = candidates(view)
    assert (candidate.finding.group, candidate.finding.ranks) == ("mesh_tp/*0", tuple(range(8)))
    assert candidate.finding.headline == (
        "Links of most of the 4 groups mesh_tp/*0 (nodes node0, node1, node2, node3 and 4 more): 2.0x slower than "
        "before since step 60"
    )
    assert candidate.lost_ns == pytest.approx(np.repeat([0.0, 4e6], 60))
    assert not DETECTOR.has_passed(view, candidate.finding, ())
    assert DETECTOR.has_passed(view_with(MESH, flat(MESH)), candidate.finding, ())


# -- over time --------------------------------------------------------------------------------------------------------


def test_unrecovered_group_still_locates_the_link() -> None:
    known = only(view_of(PAIR, ODD))
    transfers = draw(MESH, 120)
    transfers[PAIR] *= 2
    transfers[ODD] *= 1.2  # too little to be called slow, too much to have passed
    finding = only(view_with(MESH, transfers, nodes=NODES), known)
    assert (finding.ranks, finding.group) == ((5,), PAIR)
    assert finding.is_about_the_same(known)


def test_group_that_alone_has_not_recovered_is_not_found_again() -> None:
    known = only(view_of(PAIR))
    assert candidates(view_of(PAIR, ratio=1.2), known) == []
    assert not DETECTOR.has_passed(view_of(PAIR, ratio=1.2), known, ())


def test_open_link_finding_keeps_its_first_step_and_past() -> None:
    known = only(view_of(ODD))
    later = draw(MESH, 120, seed=2)
    later[ODD] *= 2
    view = view_with(MESH, later, nodes=NODES, first_step=1_000)
    assert candidates(view) == []
    finding = only(view, known)
    assert finding.since_step == known.since_step
    assert finding.slowdown_ratio == pytest.approx(2.0, rel=0.05)
    assert not DETECTOR.has_passed(view, known, ())


def test_open_findings_begin_moves_back_over_slow_steps_only() -> None:
    view = view_of(PAIR, flawless=True)
    known = only(view)
    for ns in view.transfers.ns.values():
        ns[: BEGIN - 2] = np.nan  # of the steps before two are kept
    assert (known.since_step, only(view).since_step) == (BEGIN, BEGIN - 2)
    assert only(view, known).since_step == BEGIN
    later = msgspec.structs.replace(known, since_step=BEGIN + 20)
    assert only(view_of(PAIR, flawless=True), later).since_step == BEGIN


@pytest.mark.parametrize("slow", [PAIR, ODD])
def test_finding_has_passed_when_every_group_has_recovered(slow: str) -> None:
    known = only(view_of(PAIR, ODD))
    healthy = view_with(MESH, draw(MESH, 120, seed=2), nodes=NODES, first_step=1_000)
    assert DETECTOR.has_passed(healthy, known, ())
    assert not DETECTOR.has_passed(view_of(slow), known, ())


def test_unused_link_is_not_known_to_have_recovered() -> None:
    known = only(view_of(PAIR))
    assert not DETECTOR.has_passed(view_with({"mesh_dp": (0, 1)}, {"mesh_dp": noisy(50)}), known, ())


def test_no_verdict_without_transfers() -> None:
    assert DETECTOR.find(view_with({}, {"mesh_dp": noisy(50)}), ()) == Abstain(
        "no transfer of any process group is known"
    )


# -- ranks that are held up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "excess_ms", "explained"),
    [(4, 10.0, True), (4, 14.0, False), (5, 19.0, True), (5, 26.0, False), (3, 10.0, True), (2, 1.0, False)],
)
def test_rank_slower_by_its_transfers_is_held_up_by_links(rank: int, excess_ms: float, explained: bool) -> None:
    # Ten ms in the pair 4-5 and ten in the group of the odd ranks: rank 5 is in both, rank 2 in neither.
    view = view_of(PAIR, ODD, flawless=True)
    others = tuple(other for other in range(8) if other != rank)
    slow = slow_of(rank, others, own_ms=100.0 + excess_ms, peers_ms=100.0)
    assert is_explained_by_links(slow, view, [only(view)]) is explained


def test_link_explains_no_rank_whose_peers_use_it_too() -> None:
    view = view_of(ODD, flawless=True)
    slow = slow_of(5, (1, 3, 7, 0), own_ms=110.0, peers_ms=100.0)
    assert not is_explained_by_links(slow, view, [only(view)])


@pytest.mark.parametrize("own_is_measured", [True, False])
def test_link_explains_no_own_time_without_transfers(own_is_measured: bool) -> None:
    # Phases, which stand in where no window is known, hold the transfers.
    view = view_of(PAIR, flawless=True)
    series = dataclasses.replace(view.series, own_has_transfers=False, own_is_measured=own_is_measured)
    slow = slow_of(4, (0, 1, 2, 3), own_ms=110.0, peers_ms=100.0)
    assert is_explained_by_links(slow, dataclasses.replace(view, series=series), [only(view)]) is not own_is_measured


def test_other_findings_explain_no_rank_by_links() -> None:
    other = remember(Finding(kind="imbalance", cause="more_work"), FindingMemory(transfer_excesses_ns={PAIR: 1e9}))
    slow = slow_of(4, (0, 1, 2, 3), own_ms=110.0, peers_ms=100.0)
    assert not is_explained_by_links(slow, view_of(PAIR), [other])


# -- signs ------------------------------------------------------------------------------------------------------------


def sampled(rates: dict[int, float | None], xids: dict[int, int | None]) -> Samples:
    devices = {
        rank: (DeviceSample(host_ns=0, uuid="", nvlink_tx_bytes_per_s=rates.get(rank), xid_last=xids.get(rank)),)
        for rank in range(8)
    }
    return Samples({}, {}, devices)


def test_nvlink_traffic_of_members_and_others_is_evidence() -> None:
    rates: dict[int, float | None] = {4: 1e9, 5: 2e9, 0: 9e9, 1: 8e9, 2: 7e9, 3: None}
    evidence = only(view_of(PAIR, samples=sampled(rates, {}))).evidence
    assert (evidence["nvlink_tx_bytes_per_s"], evidence["peers_nvlink_tx_bytes_per_s"]) == (1.5e9, 8e9)


@pytest.mark.parametrize(
    ("xids", "told"),
    [
        ({}, None),
        ({5: 74}, "Xid 74 (NVLink) on rank 5"),
        ({4: 74, 5: 74, 0: 74}, "Xid 74 (NVLink) on ranks 4-5"),
        ({5: 63, 0: 74}, None),
    ],
)
def test_nvlink_error_of_a_member_is_reported(xids: dict[int, int | None], told: str | None) -> None:
    assert only(view_of(PAIR, samples=sampled({}, xids))).details.get("link errors") == told


def test_group_of_one_machine_without_gpus_has_no_link() -> None:
    def judged(nodes: dict[int, str], samples: Samples) -> int:
        transfers = flat(MESH)
        transfers[PAIR][BEGIN:] *= 2
        return len(candidates(view_with(MESH, transfers, nodes=nodes, samples=samples)))

    one, several, none = dict.fromkeys(range(8), "a"), {rank: f"n{rank}" for rank in range(8)}, Samples({}, {}, {})
    assert isinstance(DETECTOR.find(view_with(MESH, flat(MESH), nodes=one, samples=none), ()), Abstain)
    assert judged(several, none) == 1


# -- counters of ports ------------------------------------------------------------------------------------------------


def with_errors(**growths: int) -> Samples:
    """Machines a and b, read by ranks 0 and 4 from the first slow step on."""
    gpus = {rank: [DeviceSample(host_ns=0, uuid="", model="")] for rank in range(8)}
    machines = {"ab".index(node) * 4: port_growing(n, "symbol_errors", first_step=80) for node, n in growths.items()}
    return Samples({}, {}, gpus, machines=machines)


def test_errors_of_the_accused_machine_stand_in_the_finding() -> None:
    finding = only(view_of(ODD, samples=with_errors(a=0, b=40)))
    assert finding.cause == "slow_link"
    assert finding.details["link_errors"] == (
        "40 symbol errors on port mlx5_0/1 of node b in 20 steps (the same port on the other node: 0)"
    )
    assert finding.also == (f"sign of link errors: {finding.details['link_errors']}",)
    assert finding.evidence["symbol_errors/b/mlx5_0/1"] == 40


@pytest.mark.parametrize("growths", [{"a": 40, "b": 40}, {"b": 40}])
def test_errors_that_do_not_single_out_the_machine_are_not_named(growths: dict[str, int]) -> None:
    assert only(view_of(ODD, samples=with_errors(**growths))).details.keys() & {"link_errors", "congestion"} == set()


def test_ports_do_not_explain_slow_links_within_a_machine() -> None:
    finding = only(view_of(PAIR, samples=with_errors(a=0, b=40)))
    assert finding.nodes == ("b",)
    assert "link_errors" not in finding.details
    assert finding.also == ()
