"""How the command starts: with installed modules, never with modules from the current folder.

`python -m` searches the current folder before everything else, and so would the processes that we start. A file named
numpy.py in the folder of somebody else's run would then be executed. This module may import only what Python has
already loaded: everything else could come from that folder.
"""

import os
import sys

PYTHON = (sys.executable, "-P")  # Python that does not search the current folder
PROGRAM = (*PYTHON, "-m", "fedfilt")  # the command `fedfilt`, whether or not it is on the PATH


def leave_current_folder() -> None:
    """Search only installed modules, here and in every Python process started from here."""
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        here = ["", os.getcwd()]
    except OSError:  # the folder is gone
        here = [""]
    if not sys.flags.safe_path and sys.path and sys.path[0] in here:
        del sys.path[0]
