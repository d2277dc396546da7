"""The exception for errors that the user can fix."""


class PenumbraError(Exception):
    """An error in the input or the environment, in one line: what, where, what to do.

    The command line prints the message and exits with code 2. Any other exception is a defect of
    Penumbra and keeps its traceback.
    """
