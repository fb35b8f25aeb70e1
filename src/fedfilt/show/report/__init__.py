"""A run, or a comparison of runs, as one HTML file that opens in any browser without a network."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedfilt._checks import check_choice
from fedfilt._files import write_atomically
from fedfilt.runs.records import Records, find_runs
from fedfilt.show import pictures
from fedfilt.show.report.page import all_figures, page

FORMATS = ("png", "svg", "pdf")


def write(paths: Iterable[str | Path], out: str | Path | None = None) -> Path:
    """Write the report on runs (run folders, or folders of a comparison) and return its path.

    Without `out`, the file is `report.html` in the folder, or in the current folder if there are several. After an
    error nothing has been written.
    """
    given = [Path(path) for path in paths]
    runs = readable(given)
    target = Path(out) if out is not None else (given[0] if len(given) == 1 else Path()) / "report.html"
    if target.is_dir():
        raise ValueError(f"--out must be a file, such as {target / 'report.html'}, got the folder {target}")
    if out is None and target.is_symlink():  # the folder may be somebody else's
        raise ValueError(f"{target} is a link; choose the file to write with --out")
    target = target.resolve()  # write what a link points to, not the link
    if target.suffix not in (".html", ".htm"):
        raise ValueError(f"--out must end in .html, got {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page(runs).encode())
    return target


def readable(paths: Sequence[Path]) -> list[Records]:
    """The runs in the folders; ValueError if they contain nothing to report."""
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"there is no run folder {path}")
    runs = find_runs(paths)
    if not any(run.rounds for run in runs):
        why = "; ".join(dict.fromkeys(note for run in runs for note in run.notes))
        raise ValueError(f"nothing to report: {why}")
    return runs


def write_images(runs: Sequence[Records], folder: Path, form: str) -> list[Path]:
    """Every figure as a PNG, SVG or PDF file; needs the extra fedfilt[pictures] and Chrome or Chromium."""
    check_choice("image format", form, FORMATS)
    drawn = all_figures(runs)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{form}" for name in drawn]
    if links := [path for path in (folder, *paths) if path.is_symlink()]:
        raise ValueError(f"{links[0]} is a link; choose another place for the report and its figures with --out")
    try:
        pictures.write_images(list(drawn.values()), paths, width=900)
    except (ValueError, RuntimeError) as error:
        if not any(folder.iterdir()):
            folder.rmdir()
        words = str(error).lower()
        if "chrome" in words or "browser" in words:
            raise ValueError(
                f"{form.upper()} files need Chrome or Chromium, and none was found: install one (on Debian, apt-get "
                "install chromium) or name it in BROWSER_PATH. The HTML report needs none."
            ) from None
        if "kaleido" in words:
            raise ValueError(
                f"{form.upper()} files need: pip install 'fedfilt[pictures]'. The HTML report does not."
            ) from None
        raise
    return paths
