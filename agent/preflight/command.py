"""The pre-flight as a program: meet the other ranks, run the checks, print and write what rank 0 concluded, and end."""

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NoReturn

import msgspec

from rankscope.agent.guard import describe, log_line, print_traceback
from rankscope.agent.identity import read_identity
from rankscope.agent.preflight.ending import DeadlineWatch, block_sigterm, leave
from rankscope.agent.preflight.files import find_hosts
from rankscope.agent.preflight.meeting import IncompleteError, Meeting
from rankscope.agent.preflight.options import parse_options
from rankscope.agent.preflight.past import NodesPast
from rankscope.agent.preflight.results import EXIT_STATUS, NamedNode, PreflightReport, Status
from rankscope.agent.preflight.text import build_sentence, collect_reasons, describe_slow, render
from rankscope.measure.errors import UnavailableError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.output_files import check_place, write_whole

JOIN_S: Final = 120.0
"""How long the ranks may need to meet: nodes start at different times."""
LIMIT_RATIO: Final = 1.5
"""Share of the budget after which a pre-flight is ended from outside, with the waiting time in addition."""
USAGE_ERROR: Final = 2
INCOMPLETE: Final = EXIT_STATUS["incomplete"]
NO_LAUNCHER: Final = (
    "RANK and WORLD_SIZE are not set. Start it as the training is started, for example: "
    "torchrun --nproc-per-node 8 -m rankscope.agent.preflight"
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the pre-flight of this rank and end the process with its exit status."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        log_line(NO_LAUNCHER)
        sys.exit(USAGE_ERROR)
    if os.environ["RANK"] == "0":
        _check_outputs(options)
    block_sigterm()
    os.environ["RANKSCOPE"] = "0"  # a pre-flight is no training to be measured
    identity = read_identity(os.environ, "preflight", os.environ.get("RANKSCOPE_NODE", ""))
    say = _Speaker(identity)
    watch = DeadlineWatch(say, JOIN_S + options.wait_s, INCOMPLETE)
    try:
        watch.start()
        status = _run(options, identity, watch)
    except IncompleteError as error:
        say(f"incomplete: {error}. No node is named; nothing was written")
        status = INCOMPLETE
    except Exception as error:  # noqa: BLE001 - as a sentence, and the others learn it by the missing answer
        say(f"incomplete: failed at {watch.stage} ({describe(error)}). No node is named; nothing was written")
        print_traceback("preflight", error)
        status = INCOMPLETE
    leave(status)


def _check_outputs(options: Namespace) -> None:
    """End the process where a file that rank 0 is to write cannot be: before a minute of checks, not after it."""
    try:
        for path, option in ((options.json_file, "--json-file"), (options.exclude_file, "--exclude-file")):
            if path:
                check_place(path, option)
    except UnavailableError as error:
        log_line(f"preflight: {error}")
        sys.exit(USAGE_ERROR)


class _Speaker:
    """Say a line on stderr, once a node: the ranks of a node have the same to say."""

    def __init__(self, identity: RankIdentity) -> None:
        self._identity = identity

    def __call__(self, text: str) -> None:
        if self._identity.local_rank == 0 or self._identity.rank == 0:
            log_line(f"preflight: rank {self._identity.rank} ({self._identity.node}): {text}")


def _run(options: Namespace, identity: RankIdentity, watch: DeadlineWatch) -> int:
    """Return the exit status, the same at all ranks."""
    import torch.distributed  # noqa: PLC0415 - SIGTERM is blocked before torch starts threads

    dist: Any = torch.distributed  # not all of it is exported for type checkers
    from rankscope.agent.preflight.local_checks import CheckedDevice  # noqa: PLC0415
    from rankscope.agent.preflight.runner import Member, Runner  # noqa: PLC0415

    past = NodesPast(options.history, options.collector, options.wait_s, forgets=options.forget_past)
    device = CheckedDevice(identity.local_rank)
    watch.stage = "meeting the other ranks"
    store = _open_store(dist)
    meeting = Meeting(store, identity.rank, identity.world_size, options.wait_s)
    own = msgspec.json.encode(Member(identity.node, identity.local_rank, device.kind, device.name)).decode()
    everybody = meeting.exchange("join", own, lambda bodies: f"[{','.join(bodies)}]", planned_s=JOIN_S)
    members = msgspec.json.decode(everybody, type=list[Member])
    meeting.names = [f"rank {rank} ({member.node})" for rank, member in enumerate(members)]
    watch.set_limit(LIMIT_RATIO * options.budget_s + 2 * options.wait_s)
    if identity.rank == 0:
        watch.stage = "reading the past of the nodes"
        past.read({member.node: member.device for member in members})
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("gloo", store),
        rank=identity.rank,
        world_size=identity.world_size,
        timeout=timedelta(seconds=options.wait_s + options.budget_s),
    )
    runner = Runner(meeting, watch, device, rank=identity.rank, members=members, budget_s=options.budget_s)
    results = runner.run(options.disk_folder, options.wait_s, past.find)
    watch.stage = "the end"
    status = EXIT_STATUS["incomplete"]
    if results is not None:
        report = build_report(results, runner.took_s, past.mistakes, past.describe(results.ranks))
        content = json.dumps(msgspec.to_builtins(report), indent=2)
        print(content if options.json else render(report, runner.checks), flush=True)
        _write(options, report, f"{content}\n")
        past.keep(report, runner.checks)
        status = EXIT_STATUS[report.status]
    status = int(meeting.exchange("end", "", lambda _: str(status)))
    watch.status = status  # torchrun sends SIGTERM to the others as soon as the first has ended with it
    meeting.leave()
    return status


def _open_store(dist: Any) -> Any:
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=JOIN_S)))
    except (RuntimeError, ValueError, OSError) as error:
        where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        raise IncompleteError(
            f"the store of torch.distributed at {where} cannot be reached ({describe(error)})"
        ) from error
    return dist.PrefixStore("rankscope_preflight", store)


def build_report(results: Any, took_s: float, mistakes: Sequence[str], past: str = "") -> PreflightReport:
    """Return what is concluded from the results of all ranks; `mistakes` become its first notes. `past` is as in
    PreflightReport.
    """
    ranks, found = results.ranks, results.judgement
    checks = {check.name: check for check in results.checks}
    reasons = collect_reasons(found.slow, checks, ranks)
    nodes = tuple(dict.fromkeys(one.node for one in ranks))
    links = tuple(describe_slow(one, checks[one.check], ranks) for one in found.slow if one.other)
    status: Status = "named" if reasons or links else "none_named" if found.compared else "not_judged"
    absent = _collect_absent(ranks, checks)
    return PreflightReport(
        wall_s=time.time(),
        took_s=took_s,
        status=status,
        sentence=build_sentence(list(reasons), len(links), len(nodes), found.compared),
        ranks=len(ranks),
        nodes=nodes,
        named=tuple(NamedNode(node=node, reasons=tuple(why)) for node, why in reasons.items()),
        links=links,
        compared=found.compared,
        not_compared={**found.not_compared, **absent},
        left_out=results.left_out,
        notes=(*mistakes, *dict.fromkeys(f"{one.node}: {note}" for one in ranks for note in one.notes)),
        slow=found.slow,
        past=past,
        results=tuple(ranks),
    )


def _collect_absent(ranks: Sequence[Any], checks: Mapping[str, Any]) -> dict[str, str]:
    """Return the reason of a rank by the title of each check that some rank has no values of."""
    absent: dict[str, str] = {}
    for one in ranks:
        for name, measured in one.checks.items():
            if measured.absent:
                absent.setdefault(checks[name].title, f"{measured.absent} (rank {one.rank}, {one.node})")
    return absent


def _write(options: Namespace, report: PreflightReport, text: str) -> None:
    """Write the files that were asked for; `text` is the report as JSON. One that cannot be written costs a line on
    stderr, and not the others.
    """
    hosts, no_hosts = find_hosts(report)
    for name in no_hosts:
        log_line(f"preflight: left out {name!a} of the hosts to exclude, which is no host name")
    writing = (
        (options.json_file, "--json-file", text),
        (options.exclude_file, "--exclude-file", "".join(f"{host}\n" for host in hosts)),
    )
    for path, option, content in writing:
        try:
            if path:
                write_whole(path, option, content)
        except UnavailableError as error:
            log_line(f"preflight: {error}")
