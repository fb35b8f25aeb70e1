"""The command `fedfilt`. Heavy modules are imported by the commands that need them, so that --help answers at once."""

import sys

from fedfilt._start import leave_current_folder

if sys.argv[:1] == ["-m"]:  # python -m fedfilt.cli, which has yet to find its __main__
    leave_current_folder()

import logging
from typing import Annotated

import typer

from fedfilt._version import __version__
from fedfilt.cli.advise import advise
from fedfilt.cli.audit import audit
from fedfilt.cli.compare import compare, demo
from fedfilt.cli.data import data_app
from fedfilt.cli.deploy import deploy_app, device_app
from fedfilt.cli.export import export
from fedfilt.cli.home import home_app
from fedfilt.cli.paper import paper
from fedfilt.cli.plan import info, plan, profile
from fedfilt.cli.run import run
from fedfilt.cli.show import dashboard, report
from fedfilt.cli.tune import tune

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Personalised federated learning over the graph of a building's devices.",
)
for command in (run, compare, tune, advise, plan, audit, profile, info, demo, paper, report, dashboard, export):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(device_app, name="device")
app.add_typer(deploy_app, name="deploy")
app.add_typer(home_app, name="home")


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"fedfilt {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
