"""The command `fedfilt home`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedfilt._trust import trusting
from fedfilt.cli._console import DataDir, TrustCode, check_mqtt, errors

Home = Annotated[Path, typer.Argument(help="Folder of the edge server, made by `fedfilt home write`.")]


Sensors = Annotated[
    list[str] | None,
    typer.Option(
        "--sensor",
        help="Another client that may publish on the broker, and its topics, such as zigbee2mqtt=zigbee2mqtt/#.",
        show_default="none",
    ),
]
Reads = Annotated[
    list[str] | None,
    typer.Option(help="A topic that a device may read, such as watch=zigbee2mqtt/watch.", show_default="none"),
]


class _Home(TyperGroup):
    """`fedfilt home FOLDER` is short for `fedfilt home run FOLDER`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["run", *args])


home_app = typer.Typer(
    cls=_Home, no_args_is_help=True, help="The living home: devices decide, rooms vote, people correct."
)


@home_app.command("run")
def home_run(folder: Home = Path("building/server")) -> None:
    """Run the edge server of a home: collect decisions, let rooms vote, pass on corrections."""
    with _errors():
        from fedfilt.flower.home import keep_home

        keep_home(folder)


@home_app.command("write")
def home_write(
    building: Annotated[Path, typer.Argument(help="Folder made by `fedfilt deploy write`.")] = Path("building"),
    home: Annotated[str, typer.Option(help="Name of the home in its topics.")] = "home",
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT of the broker.", show_default="the edge server's, 8883")
    ] = None,
    room: Annotated[
        list[str] | None, typer.Option(help="Room of a device, such as watch=kitchen.", show_default="from the graph")
    ] = None,
    sensor: Sensors = None,
    reads: Reads = None,
    trust_code: TrustCode = False,
) -> None:
    """Write the broker's configuration, a certificate for each of its clients, and the rooms of the devices."""
    with _errors(trust_code):
        from fedfilt.flower.deploy.address import address as parsed
        from fedfilt.flower.deploy.home import write_home

        where, sensors = parsed(address) if address else None, dict(_pairs("--sensor", sensor))
        write_home(building, home, where, dict(_pairs("--room", room)), sensors, _grouped(reads))
        print(f"broker:          {building / 'broker' / 'start.sh'}")
        print(f"edge server:     fedfilt home run {building / 'server'}")
        print(f"Home Assistant:  its certificate is in {building / 'assistant'}")
        for name in sensors:
            print(f"{name + ':':17}its certificate is in {building / 'sensors' / name}")


@home_app.command("update")
def home_update(
    building: Annotated[Path, typer.Argument(help="Folder made by `fedfilt deploy write`.")] = Path("building"),
    room: Annotated[
        list[str] | None, typer.Option(help="New room of a device, such as watch=kitchen.", show_default="unchanged")
    ] = None,
    sensor: Sensors = None,
    reads: Reads = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Renew all certificates, not only those that expire within 60 days.")
    ] = False,
    trust_code: TrustCode = False,
) -> None:
    """Update keys and rooms after `deploy add`, `remove` or `replace`; move devices; admit sensors.

    Certificates that expire soon are renewed; copy those of devices to the devices.
    """
    with _errors(trust_code):
        from fedfilt.flower.deploy.home import update_home

        rooms, sensors = dict(_pairs("--room", room)), dict(_pairs("--sensor", sensor))
        done = update_home(building, rooms, sensors, _grouped(reads), renew)
        print("\n".join(f"{name} {what}" for name, what in done.items()) or "nothing has changed")


def _pairs(option: str, given: list[str] | None) -> list[tuple[str, str]]:
    """The pairs NAME=VALUE of an option."""
    found = [text.partition("=") for text in given or []]
    for name, _, value in found:
        if not name or not value:
            raise ValueError(f"{option} must be NAME=VALUE, such as watch=kitchen, got {name!r}")
    return [(name, value) for name, _, value in found]


def _grouped(reads: list[str] | None) -> dict[str, list[str]]:
    """The topics of each device."""
    found: dict[str, list[str]] = {}
    for name, topic in _pairs("--reads", reads):
        found.setdefault(name, []).append(topic)
    return found


@home_app.command("label")
def home_label(
    room: Annotated[str, typer.Argument(help="Room to correct.", show_default=False)],
    label: Annotated[str, typer.Argument(help="Activity in the room.", show_default=False)],
    last: Annotated[str, typer.Option(help="How long it lasted, in s, min or h.")] = "30s",
    ago: Annotated[str, typer.Option(help="How long ago it ended, in s, min or h.", show_default="now")] = "",
    folder: Annotated[Path, typer.Option(help="Folder of the edge server.")] = Path("building/server"),
) -> None:
    """Correct a room's activity: its devices keep their windows of that time with this label."""
    with _errors():
        from fedfilt._checks import check_span
        from fedfilt.flower.deploy.home_toml import settings
        from fedfilt.flower.home import clock_of
        from fedfilt.flower.home import label as say
        from fedfilt.home.topics import Correction

        seconds = check_span("--last", last, longest=3600)
        end = clock_of(settings(folder)).now() - (check_span("--ago", ago, longest=86_400) if ago else 0)
        told = say(folder, room, Correction(label, end - seconds, end))
        print(f"{room}: {label} for {last}{f', {ago} ago' if ago else ''}; told {', '.join(told)}")


@contextmanager
def _errors(trust_code: bool = False) -> Iterator[None]:
    logging.getLogger("fedfilt").setLevel(logging.INFO)
    try:
        with errors(), trusting(trust_code):
            check_mqtt()
            yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@home_app.command("demo")
def home_demo(
    out: Annotated[Path, typer.Option(help="New folder to write.")] = Path("home-demo"),
    speed: Annotated[float, typer.Option(help="Speed, in multiples of real time.")] = 20.0,
    data_dir: DataDir = None,
) -> None:
    """Run two homes for half a minute: real recordings, decisions, votes, corrections and training rounds."""
    with errors():
        from rich.table import Table

        from fedfilt.cli._console import print_table, progress_bar
        from fedfilt.data.store import store_with
        from fedfilt.runs.living import RULES, demo
        from fedfilt.show.figures.living import against_corrections
        from fedfilt.show.pictures import write_page

        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ValueError(f"{out} exists already; choose a new folder with --out")
        logging.getLogger("fedfilt").setLevel(logging.WARNING)
        with progress_bar() as progress:
            lines = demo(out, store_with(progress, data_dir), speed, tell=progress.console.print)
        table = Table("corrections of each exercise", *RULES, title="accuracy of a device / of its room")
        for count in sorted({line["corrections"] for line in lines}):
            found = [line for line in lines if line["corrections"] == count]
            table.add_row(str(count), *[f"{line['device']:.1%} / {line['room']:.1%}" for line in found])
        print_table(table)
        write_page(against_corrections(lines), out / "accuracy.html")
        print(f"picture: {out / 'accuracy.html'}; each device's labels: {out / 'devices'}")
        print(f"what happened: {out / 'home-0'} and {out / 'home-1'}")
        print(f"see the homes: fedfilt dashboard {out} --open")
