"""What the dashboard costs a run, and how fast it opens, in a real browser (Chrome or Chromium).

One run trains throughout; the page is open for some rounds, closed for as many, and so on, so that both see the same
machine. Before that, with an empty profile, for 20 and for 1,000 devices: the time from navigation until the building
with its devices is painted (the first view), until it answers to clicks, and how soon a chosen device is shown.
Usage: python benchmarks/dashboard.py [blocks]
"""

import json
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

import fedfilt
from fedfilt._start import PROGRAM
from fedfilt.data.samples import FederatedData
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.play import play_in_folder

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DRAWN = "#building .scatterlayer .point"
SEEN = "performance.getEntriesByName('first view')[0]"
SECONDS = 15  # of a block: with the page, or without


def fedfilt_command(*words):
    return [*PROGRAM, *map(str, words)]


def serve(folder):
    """(process, address) of a dashboard on a folder."""
    process = subprocess.Popen(fedfilt_command("dashboard", folder, "--port", 0), stdout=subprocess.PIPE, text=True)
    return process, re.search(r"http://\S+", process.stdout.readline()).group()


def home_config():
    """20 devices on 8 x 8 digits with a model that takes a while: about as long a round as MNIST on the paper's CNN."""
    return {
        "data": "digits",
        "model": {"name": "mlp", "hidden": 512},
        "samples": {"train": 40, "local_test": 20, "global_test": 200},
        "scheduler": {"name": "everything", "epochs": 10},
        "rounds": 1_000_000,
        "evaluation": {"every": 10},
    }


def slowdown(browser, folder, blocks):
    """Seconds a round with the page open and without, from one run."""
    (folder / "c.toml").write_text(from_table(home_config()).toml())
    words = fedfilt_command("run", folder / "c.toml", "--out", folder / "run")
    training = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = None
    try:
        log = folder / "run" / "metrics.jsonl"
        while not log.exists() or log.read_text().count("\n") < 10:
            time.sleep(0.5)
        server, address = serve(folder / "run")
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        kinds = []  # of every round, by its number
        ratios = []
        for block in range(2 * blocks):
            opened = block % 2 == 0
            if opened:
                page.goto(address)
                page.wait_for_selector(DRAWN)
            else:
                page.goto("about:blank")
            time.sleep(2)  # neither opening nor closing counts
            first = log.read_text().count("\n") + 1
            time.sleep(SECONDS)
            last = log.read_text().count("\n")
            seconds = [json.loads(line)["seconds"] for line in log.read_text().splitlines()[first:last]]
            kinds.append((opened, statistics.fmean(seconds)))
            if block % 2:
                ratios.append(kinds[-2][1] / kinds[-1][1])
            print(f"  page {'open  ' if opened else 'closed'} {len(seconds):5} rounds of {kinds[-1][1] * 1e3:8.2f} ms")
        page.close()
        return ratios
    finally:
        training.terminate()
        training.wait()
        if server is not None:
            server.terminate()
            server.wait()


def thousand(folder):
    """A run of 1,000 devices in 200 rooms."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((1000, 6, 5)).astype(np.float32)
    labels = (inputs[:, :, 0] > 0).astype(int)
    test = inputs[:10].reshape(-1, 5), labels[:10].ravel()
    data = FederatedData.from_arrays(list(zip(inputs, labels, strict=True)), global_test=test)
    graph = {"name": "distance", "rooms": 200, "devices": 1000, "reach": 5.0}
    table = {"graph": graph, "model": "logistic", "rounds": 20, "evaluation": {"every": 2}, "engine": {"workers": 1}}
    for _ in play_in_folder(Run(from_table(table), data=data), folder):
        pass
    return folder


def twenty(folder):
    """A run of 20 devices."""
    table = {**home_config(), "rounds": 40, "evaluation": {"every": 2}, "engine": {"workers": 1}}
    for _ in play_in_folder(Run(from_table({**table, "model": {"name": "mlp", "hidden": 16}})), folder):
        pass
    return folder


def first_view(browser, folder, times=5):
    """Seconds from navigation to the painted building, to one that answers, and from choosing a device to its answer.

    The profile is empty each time. The page itself marks the moment after the building was painted.
    """
    server, address = serve(folder)
    views, ready, answers = [], [], []
    try:
        for number in range(times):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.goto(address)  # which leaves its token with the browser
            start = time.perf_counter()
            page.goto(address.split("?")[0], wait_until="commit")
            page.wait_for_selector(DRAWN)
            ready.append(time.perf_counter() - start)
            views.append(page.evaluate(f"{SEEN}.startTime") / 1000)
            page.wait_for_function("() => document.querySelector('#plan').innerText.includes('epochs')")
            page.wait_for_timeout(1500)
            start = time.perf_counter()
            page.fill("#device", str(number + 3))
            title = "document.querySelector('#learns-from .js-plotly-plot').layout.title.text"
            page.wait_for_function(f"() => {title}.startsWith('device {number + 3}:')")
            answers.append(time.perf_counter() - start)
            context.close()
    finally:
        server.terminate()
        server.wait()
    return views, ready, answers


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing goes on after it
    if BROWSER is None:
        sys.exit("needs Chrome or Chromium")
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    place = Path(tempfile.mkdtemp(prefix="fedfilt-dashboard-"))
    checks = []
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=BROWSER, args=OPTIONS)
            words = f"fedfilt {fedfilt.__version__}, Chromium {browser.version}, Python {platform.python_version()}"
            print(f"{words}, {platform.processor() or platform.machine()}\n")
            for make, limit in ((twenty, 1.0), (thousand, 3.0)):
                views, ready, answers = first_view(browser, make(place / make.__name__))
                best, middle = min(views), statistics.median(views)
                count = 20 if make is twenty else 1000
                print(
                    f"{count:5} devices: first view {middle:.2f} s (best {best:.2f}), controls answer after "
                    f"{statistics.median(ready):.2f} s, choosing a device {statistics.median(answers):.2f} s"
                )
                checks.append((f"first view of {count} devices in {middle:.2f} s (under {limit:g})", middle < limit))
            print()
            ratios = slowdown(browser, place, blocks)
            browser.close()
        middle = statistics.median(ratios)
        print(
            f"\na round with the page open takes {middle:.3f} times as long as without (ratios of neighbouring blocks "
            f"{min(ratios):.3f} to {max(ratios):.3f})"
        )
        checks.append((f"{(middle - 1) * 100:+.1f} % with the dashboard open (at most 3)", middle <= 1.03))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print()
    for text, holds in checks:
        print("holds " if holds else "FAILS ", text)
    sys.exit(not all(holds for _, holds in checks))


if __name__ == "__main__":
    main()
