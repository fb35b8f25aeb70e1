"""Seconds and memory that folders of strangers take: report and dashboard page of every kind of hostile run folder.

The folders are those of tests/show/test_strangers.py: pipes, endless, huge and deeply nested files, links to a private
key, graphs of a million devices. Each is looked at by a process of its own, a fork of one that has loaded everything: a
report is written as a page, and the dashboard's page is asked for what a browser asks for first, with every picture.
Memory is the most that the process ever had; what had been loaded before is in it. It ends badly if a page or a report
takes more than two seconds of CPU (on the clock, others who use the machine count too) or a gigabyte, or if the key is
in any answer.
Usage: python benchmarks/hostile.py
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path

from common import conclude, heading, where
from fedfilt.runs.records import find_runs
from fedfilt.show.dashboard.app import make_app
from fedfilt.show.dashboard.folders import Watch
from fedfilt.show.report.page import page

HERE = Path(__file__).resolve().parent
RESULT = HERE.parent / "results" / "security" / "hostile.json"


def report(folder):
    """The report of a folder, as the command writes it; without rounds there is none."""
    runs = find_runs([folder])
    return page(runs) if any(run.rounds for run in runs) else ""


def dashboard(folder):
    """All answers that a browser gets when it opens the page."""
    client = make_app(Watch([folder])).server.test_client()
    answers = {address: client.get(address) for address in ("/", "/_dash-layout", "/_dash-dependencies", "/_pulse")}
    values = dict(properties(answers["/_dash-layout"].get_json())) | {("ready", "data"): True}  # it has been painted
    for call in answers["/_dash-dependencies"].get_json():
        clicks = all(part["property"] in ("n_clicks", "clickData") for part in call["inputs"])
        if call["clientside_function"] is None and not clicks:
            answer = client.post("/_dash-update-component", json=first_call(call, values))
            for name, changed in (answer.get_json(silent=True) or {}).get("response", {}).items():
                values |= {(name, what): value for what, value in changed.items()}
                values |= dict(properties(changed.get("children")))  # parts of the page that come later
            answers[call["output"]] = answer
    for address, answer in answers.items():
        assert answer.status_code in (200, 204), (folder, address, answer.status_code)
    return "".join(answer.get_data(as_text=True) for answer in answers.values())


def properties(tree):
    """((id, property), value) of every component in a layout that has an id."""
    if isinstance(tree, list):
        for part in tree:
            yield from properties(part)
    elif isinstance(tree, dict):
        held = tree.get("props", {})
        if isinstance(held.get("id"), str):
            yield from (((held["id"], name), value) for name, value in held.items())
        yield from properties(held.get("children"))


def first_call(call, values):
    """What the page sends for a callback when it opens."""

    def given(parts):
        return [part | {"value": values.get((part["id"], part["property"]))} for part in parts]

    names = call["output"].strip(".").split("...")
    outputs = [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in names]
    return {
        "output": call["output"],
        "outputs": outputs if call["output"].startswith("..") else outputs[0],
        "inputs": given(call["inputs"]),
        "state": given(call["state"]),
        "changedPropIds": [f"{part['id']}.{part['property']}" for part in call["inputs"]],
    }


def look(folder, secret):
    """What a process of its own finds of a folder: seconds on the clock and of CPU, megabytes, whether the key."""
    end, start = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BrokenPipeError):
            found = {"folder": folder.name}
            for name, make in (("report", report), ("page", dashboard)):
                begun = time.perf_counter(), time.process_time()
                text = make(folder)
                found[name] = time.perf_counter() - begun[0]
                found[f"{name}_cpu"] = time.process_time() - begun[1]
                found["shown"] = found.get("shown", False) or secret in text
            kilobytes = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
            os.write(start, json.dumps(found | {"megabytes": kilobytes / 1024}).encode())
            code = 0
        os._exit(code)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        content = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, folder
    return json.loads(content)


def main():
    sys.path += [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "show")]
    from test_strangers import KEY, hostile

    from helpers import finish

    heading("dash", "plotly")
    secret = KEY.splitlines()[1]
    with tempfile.TemporaryDirectory() as name:
        good = Path(name) / "good"
        finish(good / "run", rounds=2, evaluation={"every": 1})
        place = Path(name) / "hostile"
        place.mkdir()
        report(good / "run"), dashboard(good / "run")  # loads what is loaded late
        usual = look(good / "run", secret)
        found = [look(folder, secret) for folder in hostile(good / "run", place)]
    print(f"{len(found)} hostile folders; the worst of each, and a good one:\n")
    print("| folder | report, s (of CPU) | page, s (of CPU) | memory, MB |\n|---|---|---|---|")
    worst = [max(found, key=itemgetter(what)) for what in ("report_cpu", "page_cpu", "report", "page", "megabytes")]
    for one in [*{one["folder"]: one for one in worst}.values(), usual | {"folder": "a good one"}]:
        times = (f"{one[name]:.2f} ({one[f'{name}_cpu']:.2f})" for name in ("report", "page"))
        print(f"| {one['folder']} | {' | '.join(times)} | {one['megabytes']:.0f} |")
    RESULT.write_text(json.dumps({"where": where("dash", "plotly"), "good": usual, "hostile": found}, indent=1) + "\n")
    most = {what: max(one[what] for one in found) for what in ("page_cpu", "report_cpu", "megabytes")}
    conclude(
        [
            ("seconds of CPU to spare of 2, page", 2 - most["page_cpu"], 0),
            ("seconds of CPU to spare of 2, report", 2 - most["report_cpu"], 0),
            ("megabytes to spare of 1,000", 1000 - most["megabytes"], 0),
            ("nothing of the key is shown (1: nothing)", not any(one["shown"] for one in found), 1),
        ]
    )


if __name__ == "__main__":
    main()
