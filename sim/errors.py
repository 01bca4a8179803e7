"""Errors that a user can act on."""


class UsageError(Exception):
    """Input that cannot be used: a flag, a file or a value.

    The message is one sentence naming the option or line, the value, the rule it breaks and the
    next step. The command line prints it without a traceback and exits with code 2.
    """
