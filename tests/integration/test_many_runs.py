"""More runs than a collector may know, each with a name of its own, over real connections: none is refused."""

from rankscope.measure.messages import Ack, Goodbye
from tests.integration.serving import have_ended, serving
from tests.integration.wire_peer import connected, identity_of

RUNS_MAX = 64


def run_once(endpoint: str, name: str) -> None:
    """A run of one rank, which is welcomed and ends at once."""
    with connected(endpoint, f"boot-{name}") as peer:
        peer.identity = identity_of(f"boot-{name}", run=name)
        peer.join()  # fails where it is refused
        peer.send(Goodbye(sequence=1, reason="finished", exit_code=0))
        peer.await_answer(Ack)


def test_the_runs_that_ended_first_make_room_for_new_ones() -> None:
    with serving() as served:
        for number in range(RUNS_MAX):
            run_once(served.endpoint, f"sweep-{number}")
        served.wait_for_run(f"sweep-{RUNS_MAX - 1}", have_ended)
        for number in range(RUNS_MAX, RUNS_MAX + 10):
            run_once(served.endpoint, f"sweep-{number}")
        served.wait_for_run(f"sweep-{RUNS_MAX + 9}", have_ended)
        assert sorted(served.read_run_names()) == sorted(f"sweep-{number}" for number in range(10, RUNS_MAX + 10))
