"""The command `fedfilt`. Heavy modules are imported by the commands that need them, so that --help answers at once."""

import sys

from fedfilt._start import leave_current_folder

if sys.argv[:1] == ["-m"]:  # python -m fedfilt.cli, which has yet to find its __main__
    leave_current_folder()

import logging

import typer

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


@app.callback()
def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
