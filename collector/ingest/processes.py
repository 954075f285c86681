"""Whether the process of a rank on this very machine still lives: it may have ended without a word."""

from pathlib import Path


def is_gone(pid: int) -> bool:
    """Whether no such process runs any more; one that has ended and waits for its parent to notice is gone too.

    Only meaningful for a process of this machine and process namespace.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    # The name, in brackets, may hold anything; the state follows its last bracket.
    return status.rpartition(")")[2].split()[0] in ("Z", "X")
