"""`fedfilt plan`, `profile` and `info`: what a round would do, and what this machine can do."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfilt._trust import trusting
from fedfilt.cli import _console as console


def plan(
    config: console.ConfigFile,
    overrides: console.Overrides = None,
    out: Annotated[Path, typer.Option(help="File for the picture of the round.")] = Path("plan.html"),
    as_json: console.Json = False,
    data_dir: console.DataDir = None,
    trust_code: console.TrustCode = False,
) -> None:
    """Show the scheduler's plan for every device in the first round, without training."""
    with console.errors(), trusting(trust_code):
        from fedfilt.data.store import store_with
        from fedfilt.runs.build import Run
        from fedfilt.runs.config import load
        from fedfilt.runs.preview import first_round

        with console.progress_bar() as progress:
            made = Run(load(config, overrides or []), store_with(progress, data_dir))
        found = first_round(made)
        import numpy as np

        from fedfilt.show.figures import timeline

        keys = ("compute_seconds", "send_seconds", "idle_seconds")
        columns = {key: np.array([d[key] for d in found["devices"]]) for key in keys}
        names = [f"device {d['device']}" for d in found["devices"]]
        timeline(columns, found["deadline"], names, "the round as planned").write_html(out)
        if as_json:
            print(json.dumps({**found, "picture": str(out)}))
            return
        console.print_table(_plan_table(found))
        print(f"picture: {out}")


def profile(
    model: Annotated[str, typer.Option(help="Model: a name, or module:Class.")] = "paper_cnn",
    shape: Annotated[str, typer.Option(help="Shape of an input.")] = "1,28,28",
    classes: Annotated[int, typer.Option(min=2, help="Number of labels.")] = 10,
    name: Annotated[str, typer.Option(help="Name of this device in the output.")] = "device",
    send_to: Annotated[
        str, typer.Option(help="HOST:PORT of an edge server running `fedfilt profile --listen PORT`.")
    ] = "",
    size: Annotated[
        int, typer.Option(min=0, help="Bytes to send; default: the model's update.", show_default=False)
    ] = 0,
    listen: Annotated[
        int, typer.Option(help="Be the edge server: receive bytes on this port once, then exit.", show_default="off")
    ] = -1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Measure this machine's seconds per sample and uplink, as a line for the table of devices.name = "measured"."""
    with console.errors():
        from fedfilt import _parts
        from fedfilt.training import profiling

        if listen >= 0:
            profiling.listen(host, listen, ready=lambda port: print(f"listening on {host}:{port}", flush=True))
            return
        kind = _parts.find("models", model)
        try:
            dimensions = tuple(int(side) for side in shape.split(","))
        except ValueError:
            raise ValueError(f"shape must be whole numbers separated by commas, got {shape!r}") from None
        from fedfilt.system.wire import wire_size
        from fedfilt.training.sgd import Training
        from fedfilt.training.trainer import Trainer

        trainer = Trainer(kind(dimensions, classes), Training(1e-3), dimensions)
        each = profiling.seconds_per_sample(trainer, classes)
        print("device,seconds_per_sample,bits_per_second")
        rate = ""
        if send_to:
            server, _, port = send_to.rpartition(":")
            if not server or not port.isdigit():
                raise ValueError(f"send_to must be HOST:PORT, got {send_to!r}")
            count = trainer.layout.size
            rate = f"{profiling.bits_per_second(server, int(port), size or wire_size(count, count)):.0f}"
        print(f"{name},{each:.4g},{rate}")


def info(as_json: console.Json = False) -> None:
    """Show versions, cores, the data cache, and which code trains and filters here, and why."""
    with console.errors():
        import platform

        from fedfilt import native
        from fedfilt._version import __version__, version_of
        from fedfilt.data.store import default_cache

        found = native.chosen()
        other = "NumPy" if version_of("torch") is None else "torch"
        levels = ", ".join(native.available()) or "none"
        facts = {
            "fedfilt": __version__,
            "python": platform.python_version(),
            **{name: version_of(name) or "not installed" for name in ("numpy", "scipy", "torch")},
            "processor": platform.processor() or platform.machine(),
            "cores": native.cores(),
            "training": f"native core, {found.level}" if found.level else other,
            "filtering": f"native core, {found.level}" if found.level else "SciPy",
            "why": found.why,
            "levels here": levels,
            "data cache": str(default_cache()),
        }
        if as_json:
            print(json.dumps(facts))
            return
        for name, fact in facts.items():
            print(f"{name:12} {fact}")


def _plan_table(found: dict[str, Any]) -> Any:
    from rich.table import Table

    end = "none" if found["deadline"] is None else f"{found['deadline']:.4g} s"
    title = f"deadline {end}, heterogeneity {found['heterogeneity']:.2f}"
    table = Table("device", "room", "epochs", "data", "density", "seconds", "joules", "outcome", title=title)
    for row in found["devices"]:
        values = [str(row["epochs"]), f"{row['data_fraction']:.0%}", f"{row['density']:.1%}"]
        costs = [f"{row['compute_seconds'] + row['send_seconds']:.4g}", f"{row['joules']:.3g}"]
        table.add_row(str(row["device"]), console.shown(row["room"]), *values, *costs, console.shown(row["outcome"]))
    return table
