"""The command `fedfilt paper`. Heavy modules are imported only when needed, so that --help answers at once."""

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfilt.cli._console import errors, print_table

if TYPE_CHECKING:
    from fedfilt.paper._cases import Case
    from fedfilt.paper._items import Maker
    from fedfilt.paper._results import Results

SKIPPED = 3  # exit code: a data set was missing
TRUSTED = 30  # seconds for which the estimate of the cases counts, while nothing has been timed yet


def paper(
    items: Annotated[list[str], typer.Argument(help="'list', 'all', or names of items.", metavar="list|all|ITEM...")],
    seeds: Annotated[int, typer.Option(help="Seeds; 0: five, as in the paper.")] = 0,
    rounds: Annotated[int, typer.Option(help="Rounds; 0: the paper's 200 (400 for system heterogeneity).")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="10 rounds and one seed, to see whether everything works.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Training samples per device, 45 or 450; 0: both.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one core each.")] = 2,
    store: Annotated[Path, typer.Option(help="Folder of results, one small file per run.")] = Path(
        "runs/paper-results"
    ),
    out: Annotated[Path, typer.Option(help="Folder for paper.md, and for paper/ with the pictures.")] = Path("runs"),
    png: Annotated[bool, typer.Option("--png", help="Pictures for print (PNG, SVG and PDF) instead of HTML.")] = False,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Compute nothing: write the page from existing results.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder to search for data files that are not in the cache.", show_default=False)
    ] = None,
) -> None:
    """Reproduce the paper's tables and figures next to the printed numbers."""
    with errors():
        from fedfilt.paper._cases import Scope
        from fedfilt.paper._items import maker, makers
        from fedfilt.paper._results import Results

        chosen = makers() if {"all", "list"} & set(items) else [maker(name) for name in items]
        for name in items:
            maker(name) if name not in ("all", "list") else None
        if page_only and not store.is_dir():
            raise ValueError(f"there are no results in {store}; name the folder of results with --store")
        results = Results(store, Scope.of(seeds, rounds, quick, samples))
        if "list" in items:
            _list(chosen, results)
            return
        wanted = {one.name: one.cases(results.scope) for one in chosen}
        skipped: dict[str, str] = {}
        failed: list[str] = []
        if not page_only:
            needed = results.missing(case for cases in wanted.values() for case in cases)
            needed.sort(key=lambda case: (case.samples, case.seed))  # cheap ones first, and all of a seed together
            results.check_version(case for cases in wanted.values() for case in cases)
            lacking = _lacking(needed, data_dir)
            for one in chosen:
                sources = {case.source for case in results.missing(wanted[one.name])} & set(lacking)
                if sources:
                    skipped[one.name] = "; ".join(lacking[source] for source in sorted(sources))
            failed = _compute([case for case in needed if case.source not in lacking], results, jobs, data_dir)
        from rich.console import Console
        from rich.markdown import Markdown

        from fedfilt.paper._page import page, pictures

        made = {one.name: one.make(results) for one in chosen}
        for one in chosen if not page_only else ():
            Console().print(Markdown(f"## {one.title} ({one.place})\n\n{made[one.name].text}"))
        written = pictures(made, out / "paper", png)
        if "all" in items:
            (out / "paper.md").write_text(page(chosen, made, results, "png" if png else "html"), encoding="utf-8")
            written.append(out / "paper.md")
        print(f"results: {store}; written: {len(written)} files in {out}")
        for name, why in skipped.items():
            print(f"skipped: {name}: {why}", file=sys.stderr)
        for text in failed:
            print(f"error: {text}", file=sys.stderr)
    if failed or skipped:
        raise typer.Exit(1 if failed else SKIPPED)


def _list(chosen: "Sequence[Maker]", results: "Results") -> None:
    from rich.table import Table

    table = Table("item", "in the paper, and what it shows", "runs", "to do", "core minutes")
    every: list[Case] = []
    rate = _rate(results, [case for one in chosen for case in one.cases(results.scope)])
    for one in chosen:
        cases = list(dict.fromkeys(one.cases(results.scope)))
        left = results.missing(cases)
        minutes = f"{rate * sum(case.seconds for case in left) / 60:.0f}" if left else "-"
        table.add_row(one.name, f"{one.place}: {one.title}", str(len(cases)), str(len(left)), minutes)
        every += cases
    left = results.missing(every)
    total = rate * sum(case.seconds for case in left) / 60
    table.caption = (
        f"Items share runs: {len(dict.fromkeys(every))} in all, {len(left)} to do, about {total:.0f} core minutes "
        f"({'judged by runs of this build' if rate != 1 else 'with the compiled training core'})"
    )
    print_table(table)


def _rate(results: "Results", cases: "Iterable[Case]") -> float:
    """How much longer than estimated those runs in the store took that were made with this build of the core."""
    from fedfilt import native

    found = [(results.record(case), case) for case in cases if results.complete(case)]
    now = native.sources()[:12]
    known = [
        (record["wall_seconds"], case.seconds)
        for record, case in found
        if record is not None and record["environment"].get("native_sources") == now
    ]
    return sum(wall for wall, _ in known) / sum(guess for _, guess in known) if known else 1.0


def _lacking(cases: "Sequence[Case]", data_dir: Path | None) -> dict[str, str]:
    """Data sets the cases need but cannot get, with the reason; others are downloaded, each with a progress bar."""
    from rich.console import Console
    from rich.progress import Progress

    from fedfilt import _parts
    from fedfilt.data.store import DataMissing, store_with

    lacking = {}
    with Progress(console=Console(stderr=True)) as bar:
        store = store_with(bar, data_dir)
        for source in sorted({case.source for case in cases}):
            try:
                _parts.find("datasets", source)().load(store)
            except DataMissing as error:
                lacking[source] = " ".join(str(error).split())
    return lacking


def _compute(cases: "Sequence[Case]", results: "Results", jobs: int, data_dir: Path | None) -> list[str]:
    """Compute the cases and show progress; returns the errors of those that failed."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from fedfilt.paper._compute import compute

    console = Console(stderr=True)
    failed: list[str] = []
    played = dict.fromkeys(cases, 0.0)  # seconds of each run that are done
    total, resumed, finished = sum(case.seconds for case in cases), 0.0, 0
    start = time.monotonic()
    with Progress(TextColumn("{task.description}"), BarColumn(), console=console) as progress:
        task = progress.add_task("starting", total=total, visible=bool(cases))
        try:
            for step in compute(cases, results, jobs, data_dir):
                each = step.case.seconds / step.case.rounds
                if not played[step.case] and not step.done:
                    resumed += each * (step.round - 1)  # rounds played by an earlier call
                played[step.case] = step.case.seconds if step.done else each * step.round
                done = sum(played.values())
                pace = (time.monotonic() - start + TRUSTED) / (done - resumed + TRUSTED * jobs)
                left = pace * (total - done)
                finished += step.done
                words = f"{finished} of {len(cases)} runs, {_clock(left)} left; {step.case.name} round {step.round}"
                progress.update(task, completed=done, description=words)
                if step.error:
                    failed.append(f"{step.case.name}: {step.error}")
                if step.done and not console.is_terminal:
                    print(f"{words}{': failed' if step.error else ''}", file=sys.stderr, flush=True)
            if cases:
                words = f"{finished - len(failed)} of {len(cases)} runs"
                console.print(f"computed in {_clock(time.monotonic() - start)}: {words}")
        except KeyboardInterrupt:
            print("\nstopped; finished work is kept, and the same command continues", file=sys.stderr)
            raise typer.Exit(130) from None
    return failed


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 100 else f"{seconds / 3600:.1f} h"
