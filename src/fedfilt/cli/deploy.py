"""The commands `fedfilt device` and `fedfilt deploy`."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedfilt._trust import code_in, trusting
from fedfilt.cli._console import TrustCode, check_mqtt, errors, print_table, shown, visible

deploy_app = typer.Typer(no_args_is_help=True, help="Real devices: write a deployment on Flower and run it.")

Folder = Annotated[Path, typer.Argument(help="Folder made by `fedfilt deploy write`, or this machine's part of it.")]
Building = Annotated[Path, typer.Option(help="Folder made by `fedfilt deploy write`, on the edge server.")]
Name = Annotated[str, typer.Argument(help="Name of the device.", show_default=False)]
GroupKey = Annotated[
    Path | None,
    typer.Option(help="The file group.key of another device; needed with privacy.blind = true.", show_default=False),
]
SuperNode = Annotated[bool, typer.Option("--supernode", help="Run Flower's SuperNode instead of one small process.")]


class _OrFolder(TyperGroup):
    """Anything that is not a command is a folder: `fedfilt device FOLDER` means `fedfilt device run FOLDER`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["run", *args])


device_app = typer.Typer(
    cls=_OrFolder,
    no_args_is_help=True,
    subcommand_metavar="FOLDER | COMMAND [ARGS]...",
    help="Run the device whose FOLDER `fedfilt deploy write` made, or change what it keeps.",
)


@device_app.command("run")
def device(folder: Folder, trust_code: TrustCode = False) -> None:
    """Run a device in one small process: wait for jobs, train, reply. It restarts by itself after any failure.

    In a living home (`fedfilt home write`) it also makes decisions from what it senses.
    """
    with _errors(trust_code):
        from fedfilt.flower.deploy.supervise import checked, stoppable
        from fedfilt.flower.device import give_memory_back, stay

        give_memory_back()  # before there are threads
        folder = checked(folder, "device.toml")
        with stoppable(again=10.0), ExitStack() as stack:
            if (folder / "home.toml").exists():
                check_mqtt()
                from fedfilt.flower.home import deciding

                stack.enter_context(deciding(folder))
            stay(folder)


@device_app.command("back")
def device_back(
    folder: Annotated[Path, typer.Argument(help="Folder of a device.", show_default=False)],
    trust_code: TrustCode = False,
) -> None:
    """Go back to the previous model for decisions; the next round brings a new one."""
    with _errors(trust_code):
        from fedfilt.flower.deploy.supervise import checked
        from fedfilt.flower.device import Device
        from fedfilt.training.kept import roll_back

        device = Device.read(checked(folder, "device.toml"))
        model = roll_back(folder / "state", device.desk.trainer.layout)
        print(f"{device.name} is back to deciding with the model of round {model.round}")


@device_app.command("forget")
def device_forget(
    folder: Annotated[Path, typer.Argument(help="Folder of a device.", show_default=False)],
    since: Annotated[
        str, typer.Option(help="Only what is newer: 2d, 6h, 30min, or a date and time.", show_default="everything")
    ] = "",
) -> None:
    """Remove corrected windows from a device's own data. The device may be running."""
    with errors():
        import time

        from fedfilt.home.corrections import forget, since_of

        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
        count, damaged = forget(folder, since_of(since, time.time()) if since else None)
        files = f" and {damaged} damaged {'file' if damaged == 1 else 'files'} of such windows" if damaged else ""
        print(f"removed {count} corrected {'window' if count == 1 else 'windows'}{files} from {folder}")


@deploy_app.command("write")
def deploy_write(
    config: Annotated[Path, typer.Argument(help="Experiment file (TOML).", show_default=False)],
    overrides: Annotated[list[str] | None, typer.Argument(help="Keys to change, such as rounds=50.")] = None,
    out: Annotated[Path, typer.Option(help="New folder to write.")] = Path("building"),
    address: Annotated[str, typer.Option(help="HOST:PORT at which devices reach the edge server.")] = "127.0.0.1:9092",
    authentication: Annotated[
        bool, typer.Option("--authentication/--no-authentication", help="TLS, and a key for each device.")
    ] = True,
    insist: Annotated[
        bool, typer.Option("--insist", help="Allow an address that other machines can reach without authentication.")
    ] = False,
    place: Annotated[
        Path | None, typer.Option(help="Path of the folder on the machines.", show_default="--out")
    ] = None,
    program: Annotated[
        str | None, typer.Option(help="Path of the fedfilt command on the machines.", show_default="this one")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write certificates, a key for each device, the Flower app, start commands and systemd units."""
    with _errors(trust_code):
        from fedfilt.flower.deploy.address import address as parsed
        from fedfilt.flower.deploy.write import write
        from fedfilt.runs.build import Run
        from fedfilt.runs.config import load

        loaded = load(config, overrides or [])
        run = Run(loaded)  # check the whole experiment before writing anything
        where = parsed(address)
        names = write(out, run, where, authentication, insist, place, program)
        print(f"{out}: {len(names)} devices, {names[0]} to {names[-1]}, edge server at {where}")
        word = " --trust-code" if code_in(loaded.table()) else ""
        print(f"edge server:  fedfilt deploy server{word} {out / 'server'}")
        print(f"each device:  fedfilt device {out / 'devices' / names[0]}{word}")
        print(f"to try it on this machine alone:  fedfilt deploy all{word} {out}")


@deploy_app.command("server")
def deploy_server(folder: Folder, trust_code: TrustCode = False) -> None:
    """Run the edge server: the SuperLink and the experiment, restarted after crashes, until the run is complete."""
    with _errors(trust_code):
        from fedfilt.flower.deploy.serve import keep_server

        keep_server(folder)


@deploy_app.command("device")
def deploy_device(folder: Folder, supernode: SuperNode = False, trust_code: TrustCode = False) -> None:
    """Run a device: the same as `fedfilt device`, or with --supernode a supervised Flower SuperNode."""
    if not supernode:
        device(folder, trust_code)
        return
    with _errors(trust_code):
        from fedfilt.flower.deploy.supervise import keep_device

        keep_device(folder)


@deploy_app.command("all")
def deploy_all(folder: Folder, supernode: SuperNode = False, trust_code: TrustCode = False) -> None:
    """Run the edge server and all devices on this machine until the run is complete."""
    with _errors(trust_code):
        from fedfilt.flower.deploy.serve import keep_all

        keep_all(folder, supernode)


@deploy_app.command("add")
def deploy_add(
    name: Name,
    room: Annotated[str | None, typer.Option(help="Room where the device is.")] = None,
    links: Annotated[
        str, typer.Option(help="Devices to link it to, such as lamp,door.", show_default="all in its room")
    ] = "",
    building: Building = Path("building"),
    group_key: GroupKey = None,
    trust_code: TrustCode = False,
) -> None:
    """Add a device while rounds continue: it gets a key and a row, and starts from its neighbours' model."""
    with _errors(trust_code):
        from fedfilt.flower.deploy.change import add

        linked = [link.strip() for link in links.split(",") if link.strip()]
        folder = add(building, name, room, linked, group_key)
        print(f"{name} takes part from the next round on; its folder: {folder}")
        print(f"Move it to the device, put recordings into {folder / 'data'}, and run there: fedfilt device {folder}")


@deploy_app.command("remove")
def deploy_remove(name: Name, building: Building = Path("building"), trust_code: TrustCode = False) -> None:
    """Remove a device: its key is refused, and it leaves the graph with the next round."""
    with _errors(trust_code):
        from fedfilt.flower.deploy.change import remove

        remove(building, name)
        print(f"{name} no longer takes part: it leaves the graph with the next round, and its key is refused")


@deploy_app.command("replace")
def deploy_replace(
    name: Name, building: Building = Path("building"), group_key: GroupKey = None, trust_code: TrustCode = False
) -> None:
    """Give a lost or stolen device a new key; the old key is refused from now on."""
    with _errors(trust_code):
        from fedfilt.flower.deploy.change import replace_device

        folder = replace_device(building, name, group_key)
        print(f"{name} has a new key in {folder}; move it to the device and run there: fedfilt device {folder}")


@deploy_app.command("renew")
def deploy_renew(building: Building = Path("building")) -> None:
    """Renew the certificate of the edge server, and of the broker if there is a home. Devices need nothing new."""
    with _errors():
        from fedfilt.flower.deploy.change import renew

        for whose in renew(building):
            print(f"{whose} has a new certificate and loads it by itself")


@deploy_app.command("status")
def deploy_status(
    building: Building = Path("building"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the state of each device: online, last round, samples, score on its own test, clock, version, problems."""
    with _errors():
        import json

        from fedfilt.flower.deploy.status import status

        found = status(building)
        if as_json:
            print(json.dumps({**found._asdict(), "devices": [one._asdict() for one in found.devices]}))
            return
        from rich.box import SIMPLE
        from rich.table import Table

        from fedfilt.training.goal import ACCURACY, named

        metric = named(next((one.metric for one in found.devices if one.metric), ACCURACY.key))
        down = "" if found.running else "; the edge server is not running"
        table = Table(
            *(metric.words if word == "score" else word for word in HEADINGS),
            box=SIMPLE,
            padding=(0, 1),
            title=f"after round {found.round}{down}",
        )
        for one in found.devices:
            told = [
                {None: "?", True: "yes", False: "no"}[one.online],
                "-" if one.last_round is None else str(one.last_round),
                "-" if one.seconds_ago is None else _long(one.seconds_ago),
                "-" if one.samples is None else str(one.samples),
                "-" if one.score is None else metric.text(one.score),
                "-" if one.clock_ahead is None else f"{one.clock_ahead:+.1f} s",
                one.version or "-",
            ]
            table.add_row(*map(shown, [one.device, *told]))
        print_table(table)
        for one in found.devices:
            if one.problem:
                print(visible(f"{one.device}: {one.problem}"))
            if one.refused:
                print(
                    f"{one.device}: another process with its key was refused {one.refused} times (a restart or a copy)"
                )
        if found.strangers:
            print(f"refused: {found.strangers} attempts with a key that is not registered")
        for whose, days in found.certificates.items():
            if days < SOON_DAYS:
                print(f"the certificate of {whose} expires in {days} days: fedfilt deploy renew, fedfilt home update")


SOON_DAYS = 60  # the status shows certificates that expire within these days
HEADINGS = ("device", "online", "round", "ago", "samples", "score", "clock", "version")


def _long(seconds: float) -> str:
    """A duration in its largest unit.

    >>> _long(75), _long(7300)
    ('1 min', '2 h')
    """
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextmanager
def _errors(trust_code: bool = False) -> Iterator[None]:
    logging.getLogger("fedfilt").setLevel(logging.INFO)  # show the progress of the rounds
    try:
        with errors(), trusting(trust_code):
            if find_spec("flwr") is None:
                from fedfilt.engines.flower._compat import MISSING

                raise ValueError(MISSING)
            yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
