"""Make untrusted text fit to be shown to users."""

CUT = "..."


def to_line(text: str, length_max: int = 512) -> str:
    r"""Return the text as one line of at most `length_max` characters, without control characters.

    Unprintable characters (line ends, escape sequences, bidirectional marks) are spelled out.

    >>> to_line("start\x1b[2J\nrankscope: all is well")
    'start\\x1b[2J\\nrankscope: all is well'
    >>> to_line("0123456789", 8)
    '01234...'
    """
    head = text[: length_max + 1]  # escapes only make it longer, so no more of it is needed
    line = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in head)
    return line if len(line) <= length_max else line[: max(0, length_max - len(CUT))] + CUT


def to_unicode(text: str) -> str:
    r"""Return the text as it can be sent: half a surrogate pair, as in a file name that is not UTF-8, becomes a `?`.

    >>> to_unicode("a\udcff.py")
    'a?.py'
    """
    return text.encode(errors="replace").decode()
