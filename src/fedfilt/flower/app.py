"""The Flower app: `client` for devices and `server` for the edge server, unchanged in simulation and deployment.

The run config holds the experiment as TOML text. What only the edge server may decide (who the devices are, where the
run is stored) comes from the file that the environment variable FEDFILT_DEPLOYMENT names.
"""

import logging
import os
import shutil
import tempfile
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfilt._files import locked
from fedfilt.engines.flower._compat import guard_replies, is_simulated
from fedfilt.engines.flower.device import Workplace, client_app, kept_kind, kept_samples
from fedfilt.engines.flower.engine import Flower
from fedfilt.engines.flower.nodes import Nodes
from fedfilt.flower.deploy.members import Members
from fedfilt.flower.deploy.pace import pace, wait_turn
from fedfilt.flower.deploy.supervise import experiment_table
from fedfilt.flower.device import Device
from fedfilt.runs.build import Run, dealt, model_of
from fedfilt.runs.config import Config, from_table
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.tables import CheckpointTable
from fedfilt.training.work import Desk

log = logging.getLogger("fedfilt")

DEPLOYMENT = "FEDFILT_DEPLOYMENT"


def _place(context: Context) -> Workplace:
    """Where a device works: in the folder its SuperNode was started with or, in a simulation, in one made for it."""
    named, number = context.node_config.get("folder"), context.node_config.get("partition-id")
    if named is not None:
        device = Device.read(Path(str(named)).expanduser())
        if device.group:
            raise ValueError("a SuperNode runs the server's code: a device that hides its rows needs `fedfilt device`")
        return device.workplace()
    if number is None:
        raise ValueError("a SuperNode needs --node-config 'folder=\"...\"' (or, in a simulation, a partition-id)")
    config = _config(context)
    folder, key = _simulated(context) / f"device-{number}", config.hash()
    everybody = cache(lambda: dealt(config, config.graph.graph(config.seed)))  # only needed if nothing is stored yet
    data = (not config.encoder.latent and kept_kind(folder, key)) or everybody()  # encoders need to know all kinds
    how = config.training, config.seed, config.sparsifier, config.client
    desk = Desk.of(data, model_of(config, data), *how).at(int(number))
    return Workplace(desk, lambda device: kept_samples(folder, key, device, everybody), folder)


def _simulated(context: Context) -> Path:
    """The folder for all devices of a simulation; it is removed with the run."""
    return Path(tempfile.gettempdir()) / f"fedfilt-{os.getuid()}-{context.run_id}"


def _config(context: Context) -> Config:
    config = from_table(tomllib.loads(str(context.run_config["experiment"])))
    place = replace(config.engine, name="flower")
    # save every round: what a device may forget must be safe on the server
    return replace(config, engine=place, checkpoint=CheckpointTable(every=1))


client = client_app(_place)
server = ServerApp()


@server.main()
def _main(grid: Grid, context: Context) -> None:
    """Run the experiment on the devices of a grid, from the last checkpoint if there is one."""
    named = os.environ.get(DEPLOYMENT)
    if named:
        handler = logging.FileHandler(Path(named).parent / "run.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    guard_replies()
    try:
        with locked(Path(named).parent) if named else nullcontext():  # shows a supervisor that this is alive
            _play(grid, context)
    except Exception:  # log everything in run.log too, and raise it again
        log.exception("the run ends here; a new one continues from its last checkpoint")
        raise
    finally:
        if not named:
            shutil.rmtree(_simulated(context), ignore_errors=True)


def _play(grid: Grid, context: Context) -> None:
    """Play to the last round; whenever devices are added, removed or replaced, continue with the new members."""
    named = os.environ.get(DEPLOYMENT)
    if named is None and not is_simulated(grid):
        raise ValueError(f"{DEPLOYMENT} must name the file of the deployment; start the SuperLink with fedfilt deploy")
    members = None if named is None else Members(Path(named).parent)
    if named is not None:
        experiment_table(Path(named).parent)  # code that it names must be trusted, and may be in that folder
    folder = Path(str(context.run_config.get("out", "")) or "runs/flower") if members is None else members.run
    begun = False
    while True:
        config = _config(context)
        if members is not None:
            config = members.settle(config)
        made = Run(config, sealed=members is not None)
        known = () if members is None else (members.registered(), members.gone())
        nodes = Nodes(grid, made.graph.count, *known)
        with made.engine(grid=grid, nodes=nodes, begun=begun) as engine:
            if _play_on(made, engine, folder, members):
                log.info("the run is complete: %s", folder)
                return
        begun = True


def _play_on(made: Run, engine: Flower, folder: Path, members: Members | None) -> bool:
    """Play each round when it is due; True after the last one, False as soon as the members have changed."""
    rounds, place = made.config.rounds, made.config.engine
    turns = pace(place.every, place.between)
    lines = play_in_folder(made, folder, True, engine)
    while True:
        if members is not None and (played := members.played()) < rounds:
            if played and members.changed():
                lines.close()
                return False
            if not wait_turn(members.folder, turns, members.last()):
                continue
        line = next(lines, None)
        if line is None:
            return True
        said = [f"device {device} {why}" for device, why in line.get("absent", {}).items()]
        said += [f"{event['what']}: device {event['device']}" for event in line.get("events", ())]
        words = "; ".join(said) or "all took part"
        log.info("round %d of %d took %.1f s; %s", line["round"], rounds, line["seconds"], words)
        if members is not None:
            members.report(line, engine.seen)
