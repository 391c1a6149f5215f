"""The one kind of error that a person caused and can correct."""


class UsageError(ValueError):
    """A setting, file or argument that cannot work; its text is one sentence that says what to do.

    The scripts end with exit status 2 on it, without a traceback.
    """
