"""Stop and resume a run from the page.

Stopping leaves a file in the run's folder. The run looks for it after each round, saves a checkpoint and ends.
Resuming starts `fedfilt run` on that folder with its own saved config. Nothing from the page gets into a command.
"""

import subprocess
from pathlib import Path

from fedfilt._files import STOP, regular
from fedfilt._reading import read
from fedfilt._start import PROGRAM
from fedfilt._trust import code_in, without_trust
from fedfilt.runs.folder import check_plain
from fedfilt.runs.records import Records

LOG = "run.log"  # output of a resumed run, in its folder
MOST_LOG = 10 << 20  # bytes of it
_started: dict[Path, "subprocess.Popen[bytes]"] = {}


def stop(run: Records) -> str:
    """Ask a run to end after its round; returns what happens."""
    run.refresh()
    if run.status not in ("running", "stopping"):
        return f"{run.name} is not running"
    try:
        with regular(run.folder / STOP, links=False, mode="ab"):
            pass
    except OSError as error:
        return f"{run.name} cannot be stopped from here ({error})"
    return f"{run.name} will stop after this round"


def resume(run: Records) -> str:
    """Resume a stopped run from its checkpoint; returns what happens."""
    run.refresh()
    if run.status in ("running", "stopping") or _alive(run.folder):
        return f"{run.name} is already running"
    if run.status == "finished":
        return f"{run.name} is finished"
    if run.status != "stopped":
        return f"{run.name} cannot be resumed: {'; '.join(run.notes)}"
    config = run.folder / "config.toml"
    words = ["run", str(config), "--out", str(run.folder), "--resume"]
    if code_in(run.config):
        return (
            f"{run.name} uses code from outside fedfilt; if you trust it, resume it in a terminal: "
            f"fedfilt {' '.join(words)} --trust-code"
        )
    try:
        check_plain(run.folder)
        with regular(run.folder / LOG, links=False, mode="ab") as log:
            _started[run.folder] = subprocess.Popen(
                [*PROGRAM, *words],
                env=without_trust(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it continues when the dashboard ends
            )
    except (OSError, ValueError) as error:
        return f"{run.name} cannot be resumed ({error})"
    return f"{run.name} is being resumed"


def complaint(run: Records) -> str:
    """Why a run that was resumed here ended at once, or "" if it did not."""
    process = _started.get(run.folder)
    if process is None or process.poll() in (None, 0, 130):  # still on, finished, stopped
        return ""
    try:
        last = read(run.folder / LOG, MOST_LOG).decode(errors="replace").strip().splitlines()[-1]
    except (OSError, IndexError):
        last = f"it ended with code {process.returncode}"
    return f"{run.name} could not be resumed: {last[:300]}"


def _alive(folder: Path) -> bool:
    process = _started.get(folder)
    return process is not None and process.poll() is None
