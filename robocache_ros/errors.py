"""The error that a user's mistake raises, and how text from outside and numbers of things are shown in one."""


class RoboCacheError(ValueError):
    """A mistake in a spec, a recording or a call; `<where>: <what is wrong>; <what to do>`."""


class SeveralErrors(RoboCacheError):  # noqa: N818 - the name says what it adds
    """Several mistakes, one per line."""


def printable(value: object, limit: int = 80) -> str:
    """Text from a file, a message or a user, safe to print: control characters escaped, the middle of long text cut.

    Args:
        value: anything; its `str` is shown.
        limit: maximum number of characters in the result, at least 8.
    """
    text = str(value)
    if (
        len(text) <= limit and text.isprintable()
    ):  # the common case is fast: in a flood of bad messages, each one creates an error
        return text
    if len(text) > 2 * limit:  # escaping makes text longer, never shorter
        text = text[:limit] + text[-limit:]
        cut = True
    else:
        cut = False
    shown = text
    if not text.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    if len(shown) <= limit and not cut:
        return shown
    half = (limit - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"


def number_of(count: int, what: str, plural: str = "s") -> str:
    """Return a number with what is counted: `1 recording`, `2 recordings`.

    Args:
        count: the number.
        what: one of what is counted.
        plural: the end of the word for several.
    """
    return f"{count:,} {what}{plural if count != 1 else ''}"
