"""`fedfilt export`: runs and models in the formats people already use, one per file in fedfilt/export."""

import inspect
import linecache
import pkgutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import fedfilt.export as formats
from fedfilt._trust import trusting
from fedfilt.cli import _console as console


def _with_formats(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for every format; its help is the first line of the format's file, so that nothing is imported."""
    folder = Path(formats.__path__[0])
    flags = []
    for name in sorted(module.name for module in pkgutil.iter_modules([str(folder)]) if module.name[0] != "_"):
        said = linecache.getline(str(folder / f"{name}.py"), 1).strip('"\n')
        kind = Annotated[bool, typer.Option(f"--{name}", help=said, rich_help_panel="Formats")]
        flags.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind))
    own = inspect.signature(command)
    parameters = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = own.replace(parameters=[*parameters, *flags])  # type: ignore[attr-defined]
    return command


@_with_formats
def export(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, folders of a comparison or, for models, of a device.", show_default=False),
    ],
    out: Annotated[
        str,
        typer.Option(
            help="File or folder to write; with --mlflow also a server address.", show_default="in the run folder"
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            help="Devices, such as 3,5; or all; or none.",
            show_default="all; none with --tensorboard and --mlflow",
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    trust_code: console.TrustCode = False,
    **wanted: Any,
) -> None:
    """Write the numbers of runs, or their personal models, for other programs.

    Numbers: --csv, --parquet, --latex, --tensorboard, --mlflow. Models: --onnx, --c. docs/export.md has examples.
    """
    with console.errors(), trusting(trust_code):
        chosen = [name for name, said in wanted.items() if said]
        if not chosen:
            raise ValueError(f"say which format: {', '.join(f'--{name}' for name in wanted)}")
        if out and len(chosen) > 1:
            raise ValueError(f"--out takes one format, got {', '.join(f'--{name}' for name in chosen)}")
        from fedfilt.export._writing import export as write

        for name in chosen:
            with console.progress_bar() as progress:
                where = write(name, runs, out, device, force, partial(progress.track, description=name))
            for line in where:
                print(f"{name}: {console.visible(line)}")
