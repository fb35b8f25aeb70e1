"""The command `fedfilt`. Heavy modules are imported by the commands that need them, so that --help answers at once."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfilt import viewing
from fedfilt.flower.commands import deploy_app
from fedfilt.paper._command import paper

if TYPE_CHECKING:
    from fedfilt.config import Config
    from fedfilt.data import FederatedData
    from fedfilt.store import Store

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Personalised federated learning over the graph of a building's devices.",
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, get one, where it is.")
app.add_typer(data_app, name="data")
app.command()(paper)
app.add_typer(deploy_app, name="deploy")
app.command()(viewing.report)
app.command()(viewing.dashboard)

ConfigFile = Annotated[Path, typer.Argument(help="Experiment file (TOML); see experiments/.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Overrides, such as rounds=50 aggregator.filter.mu=10.", show_default=False)
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON; progress goes to standard error.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder to look for data files in, after the cache.", show_default=False)
]


@app.callback()
def main() -> None:
    sys.path.insert(0, "")  # so that module:Class finds code in the current folder
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")


@app.command()
def run(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/NAME-seed-N")] = None,
    resume: Resume = False,
    as_json: Json = False,
    data_dir: DataDir = None,
    live: Annotated[bool, typer.Option("--live", help="Open the dashboard on this run.")] = False,
) -> None:
    """Train the devices of an experiment and keep everything in a run folder."""
    with _errors(), viewing.live() as watched:
        from fedfilt.config import load
        from fedfilt.runs import Run, draw, play_in_folder

        loaded = load(config, overrides or [])
        folder = out or Path("runs") / f"{config.stem}-seed-{loaded.seed}"
        if live:
            watched(folder)
        with _progress() as progress:
            made = Run(loaded, _store(data_dir, progress))
            if not as_json:
                progress.console.print(_labels(made.data))
            task = progress.add_task(config.stem, total=loaded.rounds)
            with _interruptible(folder, resume_hint=f"fedfilt run {folder}/config.toml --out {folder} --resume"):
                for line in play_in_folder(made, folder, resume):
                    progress.update(task, completed=line["round"], description=_words(config.stem, line))
        result = json.loads((folder / "result.json").read_text())
        draw(folder)
        if as_json:
            print(json.dumps({"folder": str(folder), **result}))
            return
        from rich.console import Console

        Console().print(_result_table(result))
        print(f"run folder: {folder}, pictures: {folder / 'figures'}")


@app.command()
def compare(
    config: ConfigFile,
    overrides: Overrides = None,
    rules: Annotated[
        str, typer.Option(help="Rules to compare: names, mu=VALUE, or 'paper' for FedAvg, Local and mu=.1/1/10/100.")
    ] = "paper",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from the experiment's seed on.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs.", show_default="runs/NAME-compare")] = None,
    resume: Resume = False,
    as_json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Compare aggregation rules on the same data, start and batches."""
    with _errors():
        from fedfilt import comparing
        from fedfilt.config import load

        loaded = load(config, overrides or [])
        names = comparing.rules(rules)
        numbers = list(range(loaded.seed, loaded.seed + seeds))
        folder = out or Path("runs") / f"{config.stem}-compare"
        _compare(config.stem, loaded, names, numbers, folder, resume, as_json, data_dir)


@app.command()
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Where the picture of the round goes.")] = Path("plan.html"),
    as_json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show what the scheduler has every device do in the first round, without training."""
    with _errors():
        from fedfilt.config import load
        from fedfilt.runs import Run, first_round

        with _progress() as progress:
            made = Run(load(config, overrides or []), _store(data_dir, progress))
        found = first_round(made)
        import numpy as np

        from fedfilt.figures import timeline

        keys = ("compute_seconds", "send_seconds", "idle_seconds")
        columns = {key: np.array([d[key] for d in found["devices"]]) for key in keys}
        names = [f"device {d['device']}" for d in found["devices"]]
        timeline(columns, found["deadline"], names, "the round as planned").write_html(out)
        if as_json:
            print(json.dumps({**found, "picture": str(out)}))
            return
        from rich.console import Console

        Console().print(_plan_table(found))
        print(f"picture: {out}")


@app.command()
def profile(
    model: Annotated[str, typer.Option(help="Model: a name, or module:Class.")] = "paper_cnn",
    shape: Annotated[str, typer.Option(help="Shape of an input.")] = "1,28,28",
    classes: Annotated[int, typer.Option(min=2, help="Number of labels.")] = 10,
    name: Annotated[str, typer.Option(help="Name of this device in the table.")] = "device",
    send_to: Annotated[
        str, typer.Option(help="HOST:PORT of an edge server that runs `fedfilt profile --listen PORT`.")
    ] = "",
    size: Annotated[
        int, typer.Option(min=0, help="Bytes to send; default: the model's update.", show_default=False)
    ] = 0,
    listen: Annotated[int, typer.Option(help="Be the edge server: take bytes on this port, once, and end.")] = -1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Measure this machine's seconds per sample and its uplink: a line for the table of devices.name = "measured"."""
    with _errors():
        from fedfilt import parts, profiling

        if listen >= 0:
            profiling.listen(host, listen, ready=lambda port: print(f"listening on {host}:{port}", flush=True))
            return
        kind = parts.find("models", model)
        try:
            dimensions = tuple(int(side) for side in shape.split(","))
        except ValueError:
            raise ValueError(f"shape must be whole numbers with commas between, got {shape!r}") from None
        from fedfilt.layout import Layout
        from fedfilt.wire import wire_size

        module = kind(dimensions, classes)
        each = profiling.seconds_per_sample(module, dimensions, classes)
        print("device,seconds_per_sample,bits_per_second")
        rate = ""
        if send_to:
            server, _, port = send_to.rpartition(":")
            if not server or not port.isdigit():
                raise ValueError(f"send_to must be HOST:PORT, got {send_to!r}")
            count = Layout(module).size
            rate = f"{profiling.bits_per_second(server, int(port), size or wire_size(count, count)):.0f}"
        print(f"{name},{each:.4g},{rate}")


@app.command()
def info(as_json: Json = False) -> None:
    """Show versions, cores, the data cache, and which code trains and filters here and why."""
    with _errors():
        import platform
        from importlib.metadata import version

        from fedfilt import __version__, native
        from fedfilt.store import default_cache

        found = native.chosen()
        levels = ", ".join(native.available()) or "none"
        facts = {
            "fedfilt": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "torch")},
            "processor": platform.processor() or platform.machine(),
            "cores": native.cores(),
            "training": f"native core, {found.level}" if found.level else "torch",
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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("demo/mnist_2"), data_dir: DataDir = None
) -> None:
    """Compare FedAvg, purely personal models and G-Fedfilt on MNIST, 20 devices with 2 digits each: about a minute."""
    with _errors():
        from fedfilt import parts
        from fedfilt.config import from_table
        from fedfilt.store import DataMissing

        table = {
            "rounds": 60,
            "samples": {"train": 45, "local_test": 100, "global_test": 1000},
            "training": {"learning_rate": 0.1},
            "evaluation": {"every": 10},
        }
        try:
            with _progress() as progress:
                parts.find("datasets", "mnist")().load(_store(data_dir, progress))
        except DataMissing as error:
            print(f"{error}\nGoing on with the 8 x 8 digits of scikit-learn instead.", file=sys.stderr)
            small = {"train": 20, "local_test": 20, "global_test": 200}
            table |= {"data": "digits", "model": "mlp", "samples": small}
        config = from_table(table)
        names = ["fedavg", "local", "mu=1", "mu=10"]
        _compare("demo", config, names, [0], out, True, False, data_dir)
        viewing.after(out)


@data_app.command("list")
def data_list() -> None:
    """All data sets, and whether they are here."""
    with _errors():
        from rich.console import Console
        from rich.table import Table

        from fedfilt import parts
        from fedfilt.store import Store

        table = Table("name", "in cache", "what it is")
        for name in parts.names("datasets"):
            try:
                kind = parts.find("datasets", name)
            except ValueError as error:
                table.add_row(name, "-", str(error))
                continue
            files = getattr(kind, "files", ())
            here = all((Store().cache / _folder(kind) / file.name).exists() for file in files)
            table.add_row(name, "yes" if here else "no", (kind.__doc__ or "").strip().partition("\n")[0])
        Console().print(table)


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="Name of the data set.")], data_dir: DataDir = None) -> None:
    """Fetch a data set into the cache."""
    with _errors():
        from fedfilt import parts

        with _progress() as progress:
            samples = parts.find("datasets", name)().load(_store(data_dir, progress))
        print(f"{name}: {(~samples.test).sum():,} training and {samples.test.sum():,} test samples")


@data_app.command("where")
def data_where() -> None:
    """The folder in which data sets are kept."""
    from fedfilt.store import Store

    print(Store().cache)


def _compare(
    title: str,
    config: "Config",
    names: list[str],
    seeds: list[int],
    folder: Path,
    resume: bool,
    as_json: bool,
    data_dir: Path | None,
) -> None:
    from fedfilt import comparing

    with _progress() as progress:
        total = len(names) * len(seeds) * config.rounds
        task = progress.add_task(title, total=total)
        order = {(name, seed): i for i, (seed, name) in enumerate((s, n) for s in seeds for n in names)}
        steps = comparing.compare(config, names, seeds, folder, resume, _store(data_dir, progress))
        with _interruptible(folder, resume_hint="the same command with --resume"):
            for step in steps:
                done = order[step.rule, step.seed] * config.rounds + step.line["round"]
                words = _words(f"{step.rule} seed {step.seed}", step.line)
                progress.update(task, completed=done, description=words)
            progress.update(task, completed=total)
    rows = comparing.table(folder, names, seeds)
    comparing.draw(folder, names, seeds[0])
    content = json.dumps({"folder": str(folder), "rules": [row._asdict() for row in rows]}, indent=1)
    (folder / "comparison.json").write_text(content)
    if as_json:
        print(content)
        return
    from rich.console import Console

    Console().print(_comparison_table(rows))
    print(_sentence(rows))
    print(f"runs: {folder}/RULE/seed-N, table: {folder / 'comparison.json'}, pictures: {folder / 'figures'}")


def _folder(kind: Any) -> str:
    """Cache folder of a data set, as its loader names it."""
    return {"mnist_writers": "qmnist"}.get(kind.__module__.rpartition(".")[2], kind.__module__.rpartition(".")[2])


def _store(data_dir: Path | None, progress: Any) -> "Store":
    from fedfilt.store import Store

    tasks: dict[str, Any] = {}

    def show(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = progress.add_task(f"fetching {name}", total=total)
        progress.update(tasks[name], completed=done, visible=done < total)

    return Store(folder=data_dir, progress=show)


@contextmanager
def _progress() -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield progress


@contextmanager
def _errors() -> Iterator[None]:
    """Errors of the user's making end the command with one clear line and code 1."""
    try:
        yield
    except (ValueError, ArithmeticError, OSError, MemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


@contextmanager
def _interruptible(folder: Path, resume_hint: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nstopped; {folder} is kept up to its last checkpoint. Go on with: {resume_hint}", file=sys.stderr)
        raise typer.Exit(130) from None


def _words(name: str, line: dict[str, Any]) -> str:
    words = f"{name} round {line['round']}"
    tests = line.get("mixed", {})
    scores = [f"{test} {tests[test]['mean']:.1%}" for test in ("local", "global") if test in tests]
    return f"{words} {' '.join(scores)}" if scores else words


def _labels(data: "FederatedData") -> Any:
    from rich.table import Table

    table = Table("device", "samples", *map(str, range(data.classes)), title=f"{data.name}: training samples per label")
    for device, counts in enumerate(data.label_counts[:40]):
        table.add_row(str(device), str(counts.sum()), *[str(n) if n else "·" for n in counts])
    if data.count > 40:
        table.caption = f"... and {data.count - 40} devices more"
    return table


def _result_table(result: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("test", "round", "accuracy", "std over devices", "worst device", "precision", "recall", "F1")
    for test in ("local", "global"):
        for which, words in (("last", "last round"), ("best", "best on this test")):
            if test in result:
                row = result[test][which]
                values = [f"{row[key]:.1%}" for key in ("mean", "std", "worst", "I_2", "I_3", "I_4")]
                table.add_row(f"{test}, {words}", str(row["round"]), *values)
    totals = result["totals"]
    table.caption = (
        f"in all: {totals['I_5_flops']:.3g} FLOPs, latency {totals['I_6_latency_seconds']:.4g} s, desynchronisation "
        f"{totals['I_7_desync_seconds']:.3g} s, {totals['joules']:.3g} J, {totals['bytes'] / 1e6:.4g} MB (simulated)"
    )
    return table


def _plan_table(found: dict[str, Any]) -> Any:
    from rich.table import Table

    end = "none" if found["deadline"] is None else f"{found['deadline']:.4g} s"
    title = f"deadline {end}, heterogeneity {found['heterogeneity']:.2f}"
    table = Table("device", "room", "epochs", "data", "density", "seconds", "joules", "outcome", title=title)
    for row in found["devices"]:
        values = [str(row["epochs"]), f"{row['data_fraction']:.0%}", f"{row['density']:.1%}"]
        costs = [f"{row['compute_seconds'] + row['send_seconds']:.4g}", f"{row['joules']:.3g}"]
        table.add_row(str(row["device"]), str(row["room"]), *values, *costs, row["outcome"])
    return table


def _comparison_table(rows: list[Any]) -> Any:
    from rich.table import Table

    over = f", mean ± std over {rows[0].seeds} seeds" if rows[0].seeds > 1 else ""
    title = f"accuracy at the last round{over}"
    table = Table("rule", "local test", "std of devices", "worst device", "global test", "std of devices", title=title)
    for row in rows:
        spread = [
            f" ± {s:.1%}" if row.seeds > 1 else "" for s in (row.local_between_seeds, row.everybody_between_seeds)
        ]
        table.add_row(
            row.rule,
            f"{row.local:.1%}{spread[0]}",
            f"{row.local_std:.1%}",
            f"{row.local_worst:.1%}",
            f"{row.everybody:.1%}{spread[1]}",
            f"{row.everybody_std:.1%}",
        )
    return table


def _sentence(rows: list[Any]) -> str:
    """One sentence that explains the table."""
    best, wide = max(rows, key=lambda r: r.local), max(rows, key=lambda r: r.everybody)
    text = (
        f"On its own data a device does best with {best.rule} ({best.local:.1%}), on everybody's with {wide.rule} "
        f"({wide.everybody:.1%})"
    )
    between = [r for r in rows if r.rule.startswith("mu=")]
    if between:
        kept = max(between, key=lambda r: r.local + r.everybody)
        text += f"; in between, {kept.rule} reaches {kept.local:.1%} and {kept.everybody:.1%}"
    return text + "."


if __name__ == "__main__":
    app()
