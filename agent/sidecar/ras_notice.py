"""Asks NCCL's RAS service once, and makes the notice about its answer. Imported with the first question only."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from rankscope.agent.guard import describe
from rankscope.agent.sidecar.beacon import Descriptor
from rankscope.agent.sidecar.ras_address import DEFAULT_ADDRESS
from rankscope.agent.sidecar.ras_answer import JobStatus, RasAnswer, parse_answer
from rankscope.agent.sidecar.ras_client import NothingListensError, is_own_address, read_status
from rankscope.measure.clock import Clock
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError, UnavailableError
from rankscope.measure.nccl_ras import RasCommunicator, RasRank
from rankscope.measure.node_messages import RasAnswered

WHOLE: Final = "communicators"
"""Field of `absent`: why communicators are missing."""
TEXT_LENGTH_MAX: Final = 200
UNSENDABLE: Final = "the answer has numbers or characters that cannot be passed on"


def ask_for_notice(
    first: Descriptor,
    stalled_since_host_ns: int,
    ranks: Mapping[int, int],
    clock: Clock,
    read: Callable[[str], RasAnswer] | None = None,
) -> RasAnswered | None:
    """Return the notice about an answer, or about why there is none; None where nothing listens at the default address.

    `first` is rank 0, `ranks` are the ranks of the run on this machine by process id, ended ones included; `read` asks
    the service at an address. Never raise.
    """
    begin_ns = clock.monotonic_ns()
    try:
        status = parse_answer((read or read_status)(first.ras_address))
    except NothingListensError as error:
        # Without NCCL that is so in every run. An address that the user has set should answer.
        if first.ras_address == DEFAULT_ADDRESS:
            return None
        status = JobStatus(problem=str(error))
    except UnavailableError as error:
        status = JobStatus(problem=str(error))
    except Exception as error:  # noqa: BLE001 - the watch over the ranks goes on, and the notice has it
        status = JobStatus(problem=f"NCCL RAS could not be asked: {describe(error)}")
    host_ns = clock.monotonic_ns()
    notice = RasAnswered(
        sequence=1,
        identity=first.identity,
        host_ns=host_ns,
        stalled_since_host_ns=stalled_since_host_ns,
        address=first.ras_address[:TEXT_LENGTH_MAX],
        took_ns=max(0, host_ns - begin_ns),
        nccl_version=status.nccl_version[:TEXT_LENGTH_MAX],
    )
    return _check(_add_status(notice, status, ranks)) or _add_status(notice, JobStatus(problem=UNSENDABLE), ranks)


def _check(notice: RasAnswered) -> RasAnswered | None:
    """Return the notice if the collector can read it: an answer may hold any numbers, and half of a character."""
    try:
        return notice if decode(encode(notice)) == notice else None
    except (DecodeError, ValueError, OverflowError):
        return None


def _add_status(notice: RasAnswered, status: JobStatus, ranks: Mapping[int, int]) -> RasAnswered:
    """Return the notice with what RAS said, in which processes of this machine have their rank in the run. Of an answer
    that lists all processes of a job, and none of this run, only that is kept: jobs on one machine may share a port.
    """
    own_hosts = {host for host, pid in status.processes if pid in ranks and is_own_address(host)}
    if status.processes and status.lists_all and not own_hosts:
        reason = "none of the processes that it listed is of this run: another job on this machine answered"
        return msgspec.structs.replace(notice, is_own=False, absent={WHOLE: reason})
    return msgspec.structs.replace(
        notice,
        communicators_total=status.communicators_total,
        communicators=tuple(_name_ranks(one, ranks, own_hosts) for one in status.communicators),
        communicators_left_out=status.left_out,
        timeouts=status.timeouts,
        is_own=True if own_hosts else None,
        absent={WHOLE: status.problem[: 2 * TEXT_LENGTH_MAX]} if status.problem else {},
    )


def _name_ranks(one: RasCommunicator, ranks: Mapping[int, int], own_hosts: set[str]) -> RasCommunicator:
    def name(rank: RasRank) -> RasRank:
        number = ranks.get(rank.pid) if rank.pid is not None and rank.host in own_hosts else None
        return rank if number is None else msgspec.structs.replace(rank, rank=number)

    return msgspec.structs.replace(one, ranks=tuple(map(name, one.ranks)))
