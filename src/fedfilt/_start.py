"""How the command starts: with modules from where they are installed, never from the folder it is used in.

`python -m` puts the current folder before everything else, and so would the processes that we start. A file called
numpy.py in the folder of somebody else's run would then be ours. This module may import nothing but what Python has
loaded by then: everything else could come from there.
"""

import os
import sys

PYTHON = (sys.executable, "-P")  # a Python that does not look into the current folder
PROGRAM = (*PYTHON, "-m", "fedfilt")  # the command `fedfilt`, whether or not it is on the PATH


def leave_current_folder() -> None:
    """Look for modules only where they are installed, here and in every Python that is started from here."""
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        here = ["", os.getcwd()]
    except OSError:  # the folder is gone
        here = [""]
    if not sys.flags.safe_path and sys.path and sys.path[0] in here:
        del sys.path[0]
