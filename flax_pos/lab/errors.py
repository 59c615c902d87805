"""What goes wrong because of what the user gave, told in one line."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: shown as one line, exit code 2, no traceback."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'rope'?` where something known is close to `name`, else what is known."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
