"""What a release consists of: one version, true ranges, a wheel for every Python, pages whose links lead somewhere."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

import fedfilt
from fedfilt import native
from helpers import ROOT, SLOW, call

release = runpy.run_path(str(ROOT / "scripts" / "release.py"))
lowest = runpy.run_path(str(ROOT / "scripts" / "lowest.py"))
audit = runpy.run_path(str(ROOT / "scripts" / "audit.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


# --- one version ----------------------------------------------------------------------------------------------------


def test_the_version_is_said_where_it_is_asked_for():
    assert call("--version").stdout == f"fedfilt {fedfilt.__version__}\n"
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fedfilt._version.__version__"}


def test_citation_and_changelog_name_the_version():
    assert release["dated"]().startswith(f"{fedfilt.__version__} of 20")


def test_a_changelog_without_the_version_is_refused(tmp_path, monkeypatch):
    (tmp_path / "src" / "fedfilt").mkdir(parents=True)
    (tmp_path / "src" / "fedfilt" / "_version.py").write_text('__version__ = "9.9.9"\n')
    for name in ("CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.setitem(release["versions"].__globals__, "ROOT", tmp_path)
    with pytest.raises(release["Failed"], match=r"no line '## \[9\.9\.9\] - DATE'"):
        release["versions"](Path())


def test_changes_that_are_not_in_the_release_are_refused(tmp_path, monkeypatch):
    (tmp_path / "src" / "fedfilt").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "fedfilt" / "_version.py", tmp_path / "src" / "fedfilt")
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    text = re.sub(r"(?<=^## \[Unreleased\]\n).*?(?=^## )", "\n", (ROOT / "CHANGELOG.md").read_text(), flags=re.M | re.S)
    monkeypatch.setitem(release["versions"].__globals__, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(text)
    assert release["versions"](Path()).startswith(f"{fedfilt.__version__} of 20")
    (tmp_path / "CHANGELOG.md").write_text(text.replace("## [Unreleased]\n", "## [Unreleased]\n\n* A change.\n"))
    with pytest.raises(release["Failed"], match=r"under 'Unreleased'.*\n\* A change\."):
        release["versions"](Path())


def test_a_project_without_an_address_is_not_released(tmp_path, monkeypatch):
    monkeypatch.setitem(release["address"].__globals__, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(release["Failed"], match=r"no \[project\.urls\] with Repository"):
        release["address"](Path())
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nRepository = "https://example.org/x"\n')
    (tmp_path / "CITATION.cff").write_text('repository-code: "https://example.org/x"\n')
    (tmp_path / "README.md").write_text("pip install\n")
    with pytest.raises(release["Failed"], match=r"README\.md has no line 'git clone https://example.org/x'"):
        release["address"](Path())
    (tmp_path / "README.md").write_text("git clone https://example.org/x\n")
    assert release["address"](Path()) == "https://example.org/x"


# --- dependencies ---------------------------------------------------------------------------------------------------


def test_every_dependency_of_users_has_a_lower_bound():
    assert [str(one) for one in lowest["requirements"]() if lowest["lowest"](one) is None] == []


def test_only_constraints_name_exact_versions():
    texts = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'"[\w\[\].-]+==[^"]*"', texts) == []


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_pinned_versions_are_in_range():
    found = {canonicalize_name(name): version for name, version in pins().items()}
    wanted = lowest["requirements"]()
    wrong = [str(one) for one in wanted if not one.specifier.contains(found[canonicalize_name(one.name)])]
    assert not wrong
    tools = [one for extra in ("test", "bench", "release") for one in lowest["extras"]()[extra]]
    assert [str(one) for one in tools if canonicalize_name(one.name) not in found] == []


def test_errors_name_the_extra_that_helps():
    extras = set(PROJECT["project"]["optional-dependencies"])
    named = {
        extra for path in (ROOT / "src").rglob("*.py") for extra in re.findall(r"'fedfilt\[(\w+)\]'", path.read_text())
    }
    assert {"torch", "flower", "dashboard"} <= named <= extras


def test_lowest_versions_are_read_from_requirements():
    assert lowest["lowest"](Requirement("rich>=13.9,<15")) == "13.9"
    assert lowest["lowest"](Requirement("rich<15")) is None


# --- wheels ---------------------------------------------------------------------------------------------------------


def wheel_of(folder, **environment):
    """The wheel that pip makes of a copy of the sources."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(folder)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=SLOW)
    assert done.returncode == 0, done.stderr
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


@pytest.mark.slow(40)
@pytest.mark.skipif(not native.available(), reason="the native core is not built: there may be no compiler")
def test_one_wheel_is_for_every_python(tmp_path):
    wheel = wheel_of(tmp_path)
    name, version, _, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version)) == ("fedfilt", fedfilt.__version__)
    [tag] = tags
    assert (tag.interpreter, tag.abi) == ("py3", "none")
    assert tag.platform.startswith("linux_")
    wheels = runpy.run_path(str(ROOT / "scripts" / "wheels.py"))
    assert wheels["faults"](wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
        assert "Root-Is-Purelib: false" in archive.read(f"fedfilt-{version}.dist-info/WHEEL").decode()
    code = "from fedfilt import native; print(native.__file__, native.available())"
    said = subprocess.check_output(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path / "unpacked")}, text=True
    )
    assert said == f"{tmp_path}/unpacked/fedfilt/native/__init__.py {native.available()}\n"


@pytest.mark.slow(10)
def test_without_a_compiler_the_wheel_is_for_every_platform(tmp_path):
    wheel = wheel_of(tmp_path, **dict.fromkeys(("CC", "CXX", "LDSHARED", "LDCXXSHARED"), "no-such-compiler"))
    assert wheel.name == f"fedfilt-{fedfilt.__version__}-py3-none-any.whl"
    wheels = runpy.run_path(str(ROOT / "scripts" / "wheels.py"))
    assert wheels["faults"](wheel) == ["lacks fedfilt/native/core.so"]


# --- the checklist --------------------------------------------------------------------------------------------------


def test_links_between_pages_lead_somewhere():
    assert release["broken_links"]() == []


def test_a_link_that_leads_nowhere_is_found(tmp_path, monkeypatch):
    (tmp_path / "one.md").write_text(
        "# One\n[a](two.md#there) [b](two.md#gone) [c](three.md) `[d](no)` [e](https://x.y)\n"
    )
    (tmp_path / "two.md").write_text("# There\n")
    scope = release["broken_links"].__globals__
    monkeypatch.setitem(scope, "ROOT", tmp_path)
    monkeypatch.setitem(scope, "git", lambda *words: "one.md\ntwo.md")
    assert release["broken_links"]() == ["one.md: two.md#gone: no such heading", "one.md: three.md is not there"]


def test_every_step_of_the_checklist_stands_in_contributing():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert [name for name in release["NAMES"] if f"`{name}`" not in page] == []


def test_commands_of_the_checklist_are_targets():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"wheels", "fresh", "lowest", "bench", "test", "release-check"} <= targets


def test_what_the_checklist_is_given_reaches_no_step(tmp_path, monkeypatch):
    monkeypatch.setenv("ARGS", "--skip tests")  # as make does with its own arguments
    print_it = "import os; print('got', os.environ['ARGS'], 'end')"
    assert release["command"](sys.executable, "-c", print_it)(tmp_path / "log") == "got  end"


def test_a_checklist_stops_at_the_first_failure(tmp_path, monkeypatch, capsys):
    ran = []

    def fail(log):
        raise release["Failed"]("because")

    scope = release["main"].__globals__

    def passes(name):
        def run(log):
            ran.append(name)
            return "fine"

        return run

    steps = [("one", passes("one")), ("two", fail), ("three", passes("three"))]
    monkeypatch.setitem(scope, "STEPS", [release["Step"](name, name, run) for name, run in steps])
    monkeypatch.setitem(scope, "NAMES", [name for name, _ in steps])
    monkeypatch.setitem(scope, "LOGS", tmp_path)
    monkeypatch.setitem(scope, "PASSED", tmp_path / "passed.json")
    monkeypatch.setitem(scope, "git", lambda *words: "abc" if words[0] == "rev-parse" else "")
    monkeypatch.setattr(sys, "argv", ["release.py"])
    for _ in range(2):  # the second time, what passed is not run again
        with pytest.raises(SystemExit, match="because"):
            release["main"]()
    assert ran == ["one"]
    assert "one      passed before: fine" in capsys.readouterr().out


def test_a_service_that_knows_nothing_is_no_verdict():
    assert audit["verdict"](None) == ("pip-audit: no answer from the service; nothing was checked", True)
    bug = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": []}]}
    assert audit["verdict"]([bug, {"name": "b", "skip_reason": "?"}]) == (
        "pip-audit: a 1: CVE-1, fixed in no version yet",
        False,
    )
