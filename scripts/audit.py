"""Known vulnerabilities of the pinned packages, asked of a public service by pip-audit; once a day.

Where the service cannot be reached, or knows no package, that is said and nothing fails: `make check` works offline.
"""

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PINS, DONE = ROOT / "constraints.txt", ROOT / "build" / "audited"
IGNORED: dict[str, str] = {}  # number of a vulnerability -> why it does not concern fedfilt


def asked() -> list[dict[str, Any]] | None:
    """What pip-audit says of each package; None if it got no answer."""
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(PINS), *options]
    command += [word for one in IGNORED for word in ("--ignore-vuln", one)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return list(json.loads(done.stdout)["dependencies"])
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def verdict(answers: list[dict[str, Any]] | None) -> tuple[str, bool]:
    """(what to say, whether every package was looked up and none is known to be vulnerable); False on a finding.

    >>> verdict([{"name": "a", "version": "1", "vulns": []}])
    ('pip-audit: 1 packages, no known vulnerabilities', True)
    >>> verdict([{"name": "a", "skip_reason": "unknown"}])
    ('pip-audit: the service knows none of the packages here; nothing was checked', True)
    >>> verdict([{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}])
    ('pip-audit: a 1: CVE-1, fixed in 2', False)
    """
    if answers is None:
        return "pip-audit: no answer from the service; nothing was checked", True
    known = [one for one in answers if "vulns" in one]
    found = [
        f"{one['name']} {one['version']}: {bug['id']}, fixed in {' or '.join(bug['fix_versions']) or 'no version yet'}"
        for one in known
        for bug in one["vulns"]
    ]
    if found:
        return "\n".join(f"pip-audit: {line}" for line in found), False
    if not known:
        return "pip-audit: the service knows none of the packages here; nothing was checked", True
    unknown = f"; {len(answers) - len(known)} that the service does not know" * (len(known) < len(answers))
    return f"pip-audit: {len(known)} packages, no known vulnerabilities{unknown}", True


def main() -> None:
    today = f"{datetime.now(UTC):%Y-%m-%d} {hashlib.sha256(PINS.read_bytes()).hexdigest()}"
    if DONE.exists() and DONE.read_text().startswith(today):
        print(DONE.read_text().partition("\n")[2])
        return
    said, fine = verdict(asked())
    if not fine:
        sys.exit(said)
    print(said)
    DONE.parent.mkdir(exist_ok=True)
    DONE.write_text(f"{today}\n{said} (asked today)")


if __name__ == "__main__":
    main()
