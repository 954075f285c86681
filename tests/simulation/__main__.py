"""Simulate one run and print the collector's findings and how they are judged.

python -m tests.simulation --list python -m tests.simulation --scenario two_at_once --seed 7 python -m tests.simulation
--ranks 32 --kind tp --noise bursts --faults host_cpu:5:1.3 gpu_compute:node1:1.1:60
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from tests.simulation.claims import find_wrongs
from tests.simulation.clocks import CLOCKS
from tests.simulation.collector_end import Opened
from tests.simulation.cost_truth import compare_costs
from tests.simulation.network import NETWORKS
from tests.simulation.noise import NOISES
from tests.simulation.scenarios import BEGIN, BUILDERS, SCENARIOS, STEPS, build_layout, parse_fault
from tests.simulation.scoring import FaultJudged, judge
from tests.simulation.world import Outcome, Scenario, run


def main(arguments: Sequence[str] | None = None) -> None:
    """Carry out the command."""
    parser = _build_parser()
    options = parser.parse_args(arguments)
    if options.list:
        for name, named in SCENARIOS.items():
            print(f"{name:22} {named.about}")
        return
    try:
        scenario = _read_scenario(options)
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(describe(run(scenario))))


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the scenarios there are")
    parser.add_argument("--scenario", metavar="NAME", help="one of them; what else is given changes it")
    parser.add_argument("--ranks", type=int, help="how many ranks (16)")
    parser.add_argument("--kind", help=f"what they train by: {', '.join(BUILDERS)} (fsdp)")
    parser.add_argument("--noise", help=f"what no two steps share: {', '.join(NOISES)} (usual)")
    parser.add_argument("--network", help=f"what happens to messages: {', '.join(NETWORKS)} (nothing)")
    parser.add_argument("--clocks", help=f"what is wrong with the ranks' clocks: {', '.join(CLOCKS)} (an offset)")
    parser.add_argument(
        "--faults",
        nargs="+",
        metavar="FAULT",
        help=f"cause:who:ratio[:begin[:pattern]]; who is a rank, nodeN, stageN or all; begin is {BEGIN} if not given",
    )
    parser.add_argument("--steps", type=int, help=f"how many steps ({STEPS})")
    parser.add_argument("--seed", type=int, default=0, help="decides everything that is left to chance (0)")
    return parser


def _read_scenario(options: argparse.Namespace) -> Scenario:
    """Return the scenario asked for; ValueError where there is none such."""
    if options.scenario is not None:
        if options.scenario not in SCENARIOS:
            raise ValueError(f"scenario is {options.scenario!r}; --list names those there are")
        if options.ranks is not None or options.kind is not None:
            raise ValueError("--scenario has its own --ranks and --kind; give it without them")
        scenario = SCENARIOS[options.scenario].scenario
    else:
        scenario = build_layout(options.kind or "fsdp", 16 if options.ranks is None else options.ranks).scenario()
    for name, known in (("noise", NOISES), ("network", NETWORKS), ("clocks", CLOCKS)):
        given = getattr(options, name)
        if given is not None and given not in known:
            raise ValueError(f"{name} is {given!r}; known are {', '.join(known)}")
    if options.steps is not None and options.steps < 1:
        raise ValueError(f"steps is {options.steps}; a run has at least 1")
    if options.seed < 0:
        raise ValueError(f"seed is {options.seed}; it counts from 0")
    faults = tuple(parse_fault(text, scenario.topology) for text in options.faults or ()) or scenario.faults
    steps = options.steps or scenario.steps
    for fault in faults:
        if fault.begin >= steps:
            raise ValueError(f"a fault begins at step {fault.begin} and the run has {steps}; give more --steps")
    return replace(
        scenario,
        noise=NOISES.get(options.noise, scenario.noise),
        network=NETWORKS.get(options.network, scenario.network),
        clocks=CLOCKS.get(options.clocks, scenario.clocks),
        faults=faults,
        steps=steps,
        seed=options.seed,
    )


def describe(outcome: Outcome) -> list[str]:
    """Return the collector's findings and the judgement as lines."""
    scenario, judged = outcome.scenario, judge(outcome)
    lines = [f"{scenario.topology.world_size} ranks, {scenario.kind}, {scenario.steps} steps, seed {scenario.seed}"]
    lines += ["", "findings of the collector:"]
    lines += [_describe_finding(opened) for opened in outcome.opened] or ["  nothing"]
    if outcome.abstained is not None:
        lines.append(f"  no verdict: {outcome.abstained}")
    lines += ["", "the truth:"]
    for fault, verdict in zip(scenario.faults, judged.faults, strict=True):
        ranks = ", ".join(map(str, fault.ranks[:8])) + (", ..." if len(fault.ranks) > 8 else "")
        lines.append(f"  {fault.cause}, {fault.ratio:g} x, {fault.pattern}, from step {fault.begin}, ranks {ranks}")
        lines.append(f"    {_describe_verdict(verdict)}")
    if scenario.death is not None:
        lines.append(f"  rank {scenario.death.rank} is gone before step {scenario.death.step}")
    elif not scenario.faults:
        lines.append("  nothing is wrong")
    lines.append(f"  false findings: {judged.false_findings}")
    return [*lines, *(f"  {wrong.kind}: {wrong.text}" for wrong in find_wrongs(outcome, compare_costs(outcome)))]


def _describe_finding(opened: Opened) -> str:
    closed = "" if opened.closed_step is None else f", closed at {opened.closed_step}"
    return f"  [{opened.finding.kind}, opened at step {opened.opened_step}{closed}] {opened.finding.sentence}"


def _describe_verdict(verdict: FaultJudged) -> str:
    if not verdict.found:
        return "not found"
    words = {True: "right", False: "wrong", None: "not known"}
    since = "not known" if verdict.since_error_steps is None else f"{verdict.since_error_steps} off"
    return (
        f"found after {verdict.delay_steps} steps; ranks {words[verdict.right_rank]}, "
        f"cause {words[verdict.right_cause]}, pattern {words[verdict.right_pattern]}, since {since}"
    )


if __name__ == "__main__":
    main()
