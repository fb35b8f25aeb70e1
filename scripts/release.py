"""Walk through the release checklist of CONTRIBUTING.md: every step is run, and its result printed.

`make release-check` runs this. It stops at the first step that fails. A step that has passed for this commit is not run
again: started a second time, it goes on where it stopped. Output goes to build/release/STEP.log.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOGS, PASSED = ROOT / "build" / "release", ROOT / "build" / "release" / "passed.json"
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")
MADE = re.compile(r"^<!-- made: ", re.MULTILINE)


class Failed(Exception):
    """A step that did not pass, and why."""


class Step(NamedTuple):
    """A line of the checklist."""

    name: str
    what: str
    run: Callable[[Path], str]  # given the log, it returns a line for the table


def command(*words: str, line: str = r"\S.*") -> Callable[[Path], str]:
    """A step that runs a command and shows the last line that matches."""

    def run(log: Path) -> str:
        with log.open("w") as file:
            env = {**os.environ, "MAKEFLAGS": "--no-print-directory"}  # its last line is none of ours
            env["ARGS"] = ""  # what this script was given is not for make in a step
            done = subprocess.run(words, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT, check=False)
        text = log.read_text(errors="replace")
        if done.returncode:
            raise Failed(f"{' '.join(words)} failed; its last lines, from {log}:\n{text[-2000:]}")
        found = re.findall(rf"^.*(?:{line}).*$", text, re.MULTILINE)
        return found[-1].strip() if found else "done"

    return run


def python(*words: str, line: str = r"\S.*") -> Callable[[Path], str]:
    return command(sys.executable, *words, line=line)


def git(*words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


def clean(log: Path) -> str:
    if changed := git("status", "--porcelain"):
        raise Failed(f"the tree has changes that are not committed:\n{changed}")
    return f"commit {git('rev-parse', '--short', 'HEAD')}"


def versions(log: Path) -> str:
    """Everything names the same version, and the changelog has nothing that is not released in it."""
    said = dated()
    rest = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", (ROOT / "CHANGELOG.md").read_text(), re.M | re.S)
    if not rest:
        raise Failed("CHANGELOG.md has no line '## [Unreleased]'")
    if rest[1].strip():
        raise Failed(f"CHANGELOG.md has changes under 'Unreleased'; move them into {said}:\n{rest[1].strip()}")
    return said


def dated() -> str:
    """The version stands in one file; what names it must agree, and the changelog must have a date for it."""
    [version] = re.findall(r'^__version__ = "(.+)"$', (ROOT / "src/fedfilt/_version.py").read_text(), re.M)
    citation = (ROOT / "CITATION.cff").read_text()
    heading = re.search(
        rf"^## \[?{re.escape(version)}\]? - (\d{{4}}-\d{{2}}-\d{{2}})$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    if not heading:
        raise Failed(f"CHANGELOG.md has no line '## [{version}] - DATE'")
    for line in (f"version: {version}", f"date-released: {heading[1]}"):
        if line not in citation.splitlines():
            raise Failed(f"CITATION.cff has no line {line!r}")
    return f"{version} of {heading[1]}"


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading.

    >>> slug("What `fit` does, and why")
    'what-fit-does-and-why'
    """
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """What links into a page may name."""
    text = page.read_text()
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)) | set(
        re.findall(r"^\(([\w-]+)\)=$", plain, re.M)
    )
    for heading in re.findall(r"^#+ (.+?) *#*$", plain, re.MULTILINE):
        first, number = slug(heading), 0
        while (name := f"{first}-{number}" if number else first) in found:
            number += 1
        found.add(name)
    return found


def broken_links() -> list[str]:
    """Links between the pages of the repository that lead nowhere.

    Headings of pages that are made when the site is built are not looked for: `make docs` does that.
    """
    broken = []
    for name in git("ls-files", "--cached", "--others", "--exclude-standard", "*.md").splitlines():
        page = ROOT / name
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in LINK.findall(text):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            there = (page.parent / path).resolve() if path else page
            if not there.exists():
                broken.append(f"{name}: {target} is not there")
            elif (
                anchor and there.suffix == ".md" and not MADE.search(there.read_text()) and anchor not in anchors(there)
            ):
                broken.append(f"{name}: {target}: no such heading")
    return broken


def links(log: Path) -> str:
    if broken := broken_links():
        raise Failed("\n".join(broken))
    return "every link between pages leads somewhere"


def address(log: Path) -> str:
    """Where the project is to be found: PyPI links it, and a citation and whoever wants to clone it need it."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    if not (repository := urls.get("Repository")):
        raise Failed(
            "pyproject.toml has no [project.urls] with Repository, so nobody who installs fedfilt can find its source "
            "or its pages; CONTRIBUTING.md, Releasing, says what to fill in once there is a public address"
        )
    if f"repository-code: {repository}" not in (ROOT / "CITATION.cff").read_text().replace('"', "").splitlines():
        raise Failed(f"CITATION.cff has no line 'repository-code: {repository}'")
    if f"git clone {repository}" not in (ROOT / "README.md").read_text():
        raise Failed(f"README.md has no line 'git clone {repository}'")
    return repository


STEPS = [
    Step("tree", "nothing that is not committed", clean),
    Step("version", "one version in _version.py, CITATION.cff and a dated changelog, nothing unreleased", versions),
    Step("links", "links between pages", links),
    Step("audit", "no known vulnerabilities of pinned packages", python("scripts/audit.py")),
    Step("tests", "make test", command("make", "test", line="passed|failed")),
    Step("readme", "the commands of the README", python("-m", "pytest", "tests/test_readme.py", line="passed")),
    Step("docs", "make docs", command("make", "docs")),
    Step("wheels", "make wheels", command("make", "wheels", line=r": \d+ kB|native tests")),
    Step("fresh", "make fresh", command("make", "fresh", line=r"\| \d")),
    Step("lowest", "make lowest", command("make", "lowest", line="passed")),
    Step("bench", "make bench, for docs/performance.md", command("make", "bench")),
    Step("address", "where the project is to be found", address),
]  # fmt: skip
NAMES = [step.name for step in STEPS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=NAMES, default=[], metavar="STEP", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--skip", nargs="*", choices=NAMES, default=[], metavar="STEP", help="steps to leave out")
    parser.add_argument("--again", action="store_true", help="also run what has passed for this commit")
    options = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    commit, clean_tree = git("rev-parse", "HEAD"), not git("status", "--porcelain")
    passed = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    earlier = passed.get("steps", {}) if passed.get("commit") == commit and clean_tree and not options.again else {}
    done = dict(earlier)
    for step in STEPS:
        if step.name in options.skip or (options.only and step.name not in options.only):
            print(f"{step.name:8} left out", flush=True)
            continue
        if step.name in earlier and step.name not in options.only:
            print(f"{step.name:8} passed before: {earlier[step.name]}", flush=True)
            continue
        start = time.monotonic()
        try:
            said = step.run(LOGS / f"{step.name}.log")
        except Failed as error:
            print(f"{step.name:8} FAILED ({step.what}) after {time.monotonic() - start:.0f} s", flush=True)
            sys.exit(f"{error}\nFix it and start again: what has passed for a commit is not run again.")
        done[step.name] = said
        print(f"{step.name:8} passed in {time.monotonic() - start:.0f} s: {said}", flush=True)
        if clean_tree:
            PASSED.write_text(json.dumps({"commit": commit, "steps": done}))
    missing = [name for name in NAMES if name not in done]
    print(f"left out: {', '.join(missing)}" if missing else "ready to be tagged")


if __name__ == "__main__":
    main()
