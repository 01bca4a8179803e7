"""Errors that a user can act on."""


class UsageError(Exception):
    """Input that cannot be used: a flag, a file or a value.

    The message is one sentence naming the option or line, the value, the rule it breaks and the
    next step. The command line prints it without a traceback and exits with code 2.
    """


FAILURES = (Exception, SystemExit)
"""What may end a point without ending the others: a policy from outside may raise anything."""


def told(error: BaseException) -> str:
    """Say what ended a point: our own sentence, or what a policy from outside raised."""
    return str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
