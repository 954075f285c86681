"""Lay out a finding, or an incident, as lines of text: its headline, and below it what each of its fields says.

Terminal and report have the fields in this order, the page begins with the cost; what they say is written in
`detect/finding_words.py`.
"""

from rankscope.collector.detect.finding import Finding, write_whole_cost
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.reports.trace_cells import printable


def list_facts(found: Finding | Incident) -> list[tuple[str, str]]:
    """Return what is said of a finding below its headline, each with its name; nothing that is not known.

    >>> found = Finding(kind="straggler", ranks=(2,), cause="host_cpu", what="than its 3 peers", slowdown_ratio=3.39,
    ...     why="its training thread computing longer", run_slowdown_ratio=3.25, world_size=4, suggestion="Profile it.")
    >>> found.headline
    'Rank 2: 3.4x slower than its 3 peers'
    >>> for name, text in list_facts(found): print(f"{name}: {text}")
    why: host_cpu: its training thread computing longer
    cost: run 3.2x slower, 2.8 of 4 ranks wasted
    do: Profile it.
    """
    facts = (
        ("times", found.figures),
        ("why", found.reason if found.why else ""),
        ("cost", write_whole_cost(found)),
        *(("also", text) for text in found.also),
        ("line", "" if found.lines is None else found.lines.sentence),
        ("do", found.suggestion),
    )
    return [(name, printable(text)) for name, text in facts if text]


def render_facts(found: Finding | Incident, indent: str = "") -> list[str]:
    """Return the facts of a finding, a line each."""
    return [f"{indent}{name}: {text}" for name, text in list_facts(found)]
