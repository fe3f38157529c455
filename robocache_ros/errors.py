"""The one error a user's mistake raises."""


class RoboCacheError(ValueError):
    """A mistake in a spec, a recording or a call; the message names the thing, the value and the way out."""
