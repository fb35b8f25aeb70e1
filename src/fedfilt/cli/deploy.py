"""The command `fedfilt deploy`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedfilt.cli._console import errors

deploy_app = typer.Typer(no_args_is_help=True, help="Real devices: write a deployment on Flower, and run it.")

Folder = Annotated[Path, typer.Argument(help="Folder that `fedfilt deploy write` made, or its part.")]


def device(folder: Folder) -> None:
    """Be a device in one small process: wait for orders, train, answer; comes back by itself after any failure."""
    with _errors():
        from fedfilt.flower.deploy.supervise import checked, stoppable
        from fedfilt.flower.device import stay

        with stoppable():
            stay(checked(folder, "device.toml"))


@deploy_app.command("write")
def deploy_write(
    config: Annotated[Path, typer.Argument(help="Experiment file (TOML).", show_default=False)],
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides, such as rounds=50.")] = None,
    out: Annotated[Path, typer.Option(help="Folder to write, new.")] = Path("building"),
    address: Annotated[
        str, typer.Option(help="HOST:PORT of the edge server, as the devices reach it.")
    ] = "127.0.0.1:9092",
    authentication: Annotated[
        bool, typer.Option("--authentication/--no-authentication", help="TLS, and a key per device.")
    ] = True,
    insist: Annotated[
        bool, typer.Option("--insist", help="Allow an address that others can reach without authentication.")
    ] = False,
    place: Annotated[
        Path | None, typer.Option(help="Where the folder will be on the machines.", show_default="--out")
    ] = None,
    program: Annotated[
        str | None, typer.Option(help="The fedfilt command on the machines.", show_default="this one")
    ] = None,
) -> None:
    """Write certificates, a key per device, the Flower app, start commands and systemd units."""
    with _errors():
        from fedfilt.flower.deploy.address import address as parsed
        from fedfilt.flower.deploy.write import write
        from fedfilt.runs.build import Run
        from fedfilt.runs.config import load

        loaded = load(config, overrides or [])
        run = Run(loaded)  # the whole experiment is checked before anything is written
        where = parsed(address)
        names = write(out, run, where, authentication, insist, place, program)
        print(f"{out}: {len(names)} devices, {names[0]} to {names[-1]}, edge server at {where}")
        print(f"edge server:  fedfilt deploy server {out / 'server'}")
        print(f"each device:  fedfilt deploy device {out / 'devices' / names[0]}")
        print(f"to try it, all on this machine:  fedfilt deploy all {out}")


@deploy_app.command("server")
def deploy_server(folder: Folder) -> None:
    """Be the edge server: run the SuperLink and the experiment until it is complete, through crashes."""
    with _errors():
        from fedfilt.flower.deploy.serve import keep_server

        keep_server(folder)


@deploy_app.command("device")
def deploy_device(folder: Folder) -> None:
    """Be a device: keep its SuperNode running. `fedfilt device` is lighter."""
    with _errors():
        from fedfilt.flower.deploy.supervise import keep_device

        keep_device(folder)


@deploy_app.command("all")
def deploy_all(folder: Folder) -> None:
    """Run the edge server and all devices on this machine until the run is complete."""
    with _errors():
        from fedfilt.flower.deploy.serve import keep_all

        keep_all(folder)


@contextmanager
def _errors() -> Iterator[None]:
    logging.getLogger("fedfilt").setLevel(logging.INFO)  # how the rounds go
    try:
        with errors():
            if find_spec("flwr") is None:
                from fedfilt.engines.flower._compat import MISSING

                raise ValueError(MISSING)
            yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
