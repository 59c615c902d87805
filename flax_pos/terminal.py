"""Text that others wrote, made safe to show."""

import unicodedata


def printable(text: str) -> str:
    r"""The text with the control characters that would steer a terminal written out; newlines and
    tabs stay.

    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    kept = lambda c: c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs")
    return "".join(c if kept(c) else ascii(c)[1:-1] for c in text)
