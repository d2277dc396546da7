"""The one exception that means: the user can mend this, and here is how."""


class PenumbraError(Exception):
    """A mistake in the input or the surroundings, told in one line: what, where, what to do.

    The command line prints the message and exits with code 2; everything else that is raised
    is a defect of Penumbra's own and keeps its traceback.
    """
