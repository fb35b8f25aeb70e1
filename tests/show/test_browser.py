"""The report and the dashboard in a real browser: Debian's chromium, driven by Playwright.

Screenshots are kept in build/screenshots.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

import fedfilt
import helpers
from fedfilt._files import STOP, in_use
from fedfilt.data.samples import FederatedData
from fedfilt.filters import Tikhonov
from fedfilt.home import edge
from fedfilt.home.clock import Clock
from fedfilt.home.rooms import Voting
from fedfilt.runs.build import Run
from fedfilt.runs.compare import compare
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records, find_runs
from fedfilt.show import report
from fedfilt.show.shares import shares
from fedfilt.show.words import dated
from helpers import ROOT, command, config_file, serving, started, sure
from homes import DEVICES, Living, a_morning, aged

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chrome or Chromium on this machine (on Debian: apt-get install chromium)"
)
SMALL = {**helpers.SMALL, "rounds": 4}
PLANNED = {"devices": {"name": "prescribed"}, "scheduler": {"name": "same_deadline"}}
PICTURES = ROOT / "build" / "screenshots"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
MIXED = "() => document.querySelector('#mixing .js-plotly-plot')?.calcdata?.[0]?.[0]?.z !== undefined"  # comes last
DRAWN = "() => [...document.querySelectorAll('figure')].every((f) => f.querySelector('.js-plotly-plot .main-svg'))"
# Words of figures that leave their figure, and cells, titles and fields of which a part is out of sight
CUT = """() => {
  const outside = [...document.querySelectorAll(".js-plotly-plot")].flatMap((plot) => {
    const box = plot.getBoundingClientRect();
    return [...plot.querySelectorAll(".main-svg text")].filter((text) => {
      const { left, right, top, bottom, width } = text.getBoundingClientRect();
      return width && (left < box.left - 1 || right > box.right + 1 || top < box.top - 1 || bottom > box.bottom + 1);
    }).map((text) => text.textContent);
  });
  const places = "h1, h2, h3, p, th, td, caption, summary, figcaption, label, button, .scroll, .dash-dropdown-value";
  const cut = [...document.querySelectorAll(places)].filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1);
  const wide = [...document.querySelectorAll("td, th, .key")].filter((e) => {
    const { left, right, width } = e.getBoundingClientRect();
    return width && left >= 0 && right > window.innerWidth + 1;
  });
  return [...outside, ...[...cut, ...wide].map((e) => e.outerHTML.slice(0, 200))];
}"""
SLOW = 240_000  # milliseconds: for machines that do much else at the same time


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, headless=True, args=OPTIONS, timeout=SLOW)
        yield browser
        browser.close()


@pytest.fixture
def served():
    """Starts dashboards on folders, each in a process of its own, and gives their addresses."""
    with ExitStack() as running:
        yield lambda *words: running.enter_context(serving(*words))[1]


@pytest.fixture
def new_page(chromium, served):
    """Makes pages with an empty profile; fails the test on an error in any of them. They end before their servers."""
    contexts, errors = [], []

    def make(width=1280, height=900, **options):
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(SLOW)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield make
    for context in contexts:
        context.close()
    assert errors == []


def picture(page, name, full=True):
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=full)


def plot(page, name, words):
    """Something of a drawn figure, such as "layout.title.text"."""
    return page.evaluate(f"document.querySelector('#{name} .js-plotly-plot').{words}")


def until(page, holds, /, **values):
    """Wait until JavaScript words hold."""
    page.wait_for_function(holds, arg=values, timeout=SLOW)


def says(page, name, words):
    """Wait until an element says something."""
    until(page, "(w) => document.getElementById(w.name)?.innerText.includes(w.words)", name=name, words=words)


def titled(page, name, words):
    """Wait until a figure's title has these words."""
    there = "document.querySelector(`#${w.name} .js-plotly-plot`)"
    until(page, f"(w) => {there} && {there}.layout.title.text.includes(w.words)", name=name, words=words)


def plays_on(page, last):
    """Wait until the page shows a later round."""
    shown = "Number(document.querySelector('#status').innerText.match(/round (\\d+)/)[1])"
    until(page, f"(was) => {shown} > was.n", n=last)


def hurry(page):
    """Let the page look at its run four times a second, not once in four seconds."""
    page.evaluate("() => { setInterval(() => window.fedfilt_look(), 250) }")


def click_device(page, number):
    """Click a device in the building, as a hand does: move there, see it answer, press."""
    point = page.locator("#building .scatterlayer .trace:has(.textpoint) .point").nth(number)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 40, y - 40)
    page.mouse.move(x, y, steps=5)
    page.wait_for_selector("#building .hoverlayer .hovertext")
    page.mouse.click(x, y)


def fits(page):
    """Whether nothing is wider than the window, once the styles are there."""
    until(page, "() => document.readyState === 'complete'")
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def nothing_is_cut(page):
    """Wait until figures have taken up the width that they were given, and see that all of their words have room."""
    from playwright.sync_api import TimeoutError as TookTooLong

    with suppress(TookTooLong):
        page.wait_for_function(f"() => ({CUT})().length === 0", timeout=60_000)
    assert page.evaluate(CUT) == []


def rounds_seen(page):
    return int(sure(re.search(r"round (\d+) of", page.inner_text("#status"))).group(1))


# --- the report -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    config = from_table({**SMALL, **PLANNED})
    for _ in compare(config, ["fedavg", "local", "mu=1"], [0], folder):
        pass
    return folder


@pytest.mark.slow(5)
def test_report_opens_offline_with_all_figures_and_hands_out_its_numbers(compared, new_page, tmp_path):
    path = report.write([compared], tmp_path / "report.html")
    page = new_page(accept_downloads=True)
    page.context.set_offline(True)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    until(page, DRAWN)
    assert asked == [path.as_uri()]  # the file, and nothing else
    table = page.inner_text("table >> nth=0")
    for run in find_runs([compared]):
        assert f"{run.tested('global')[-1]['mixed']['global']['mean']:.1%}" in table
    with page.expect_download() as downloading:
        page.click("text=Download rounds.csv")
    rows = list(csv.DictReader(Path(downloading.value.path()).read_text().splitlines()))
    assert len(rows) == 12
    assert float(rows[-1]["local"]) == pytest.approx(
        read_lines(compared / "mu=1" / "seed-0")[-1]["mixed"]["local"]["mean"]
    )
    picture(page, "report")

    figure = "document.querySelector('figure[data-figure^=accuracy-local] .plot').layout.xaxis.title.text"
    assert page.evaluate(figure) == "round"
    page.select_option("#against", "joules")
    until(page, f"() => {figure} === 'joules'")
    page.select_option("#run", label="mu=1")
    figure = "document.querySelector('figure[data-figure^=learns_from] .plot').layout.title.text"
    until(page, f"() => {figure}.includes('mu=1')")
    page.click("text=Devices of mu=1")
    page.click("nav >> text=Terms")
    assert asked == [path.as_uri()]


@pytest.mark.slow(3)
def test_report_fits_a_phone_and_says_what_is_missing(compared, new_page, tmp_path):
    folder = shutil.copytree(compared / "mu=1" / "seed-0", tmp_path / "run")
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text[: len(text) * 2 // 3])
    (folder / "graph.json").write_text("{")
    page = new_page(390, 844)
    page.goto(report.write([folder]).as_uri())
    until(page, "() => document.querySelectorAll('figure .js-plotly-plot').length >= 10")
    assert fits(page)
    assert "no picture of the building" in page.inner_text(".notes")
    picture(page, "report-phone")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """27 runs, and one under a rule with a long name, in a folder of runs beside an older one."""
    folder = helpers.sweep(tmp_path_factory.mktemp("many") / "runs" / "sweep", rounds=3)
    rule, at = "methods_of_mine:ProximalMomentumWithPersonalHeads", folder / "learning_rate=0.2"
    own = shutil.copytree(at / "local" / "seed-0", at / rule / "seed-0")
    text = (own / "config.toml").read_text()
    (own / "config.toml").write_text(text.replace('name = "local"', f'name = "{rule}"'))
    older = shutil.copytree(at / "mu=1" / "seed-0", folder.parent / "older-seed-0")
    for file in (own / "config.toml", older / "metrics.jsonl", older / "config.toml"):
        os.utime(file, (1e9, 1e9))
    return folder.parent


@pytest.mark.slow(14)
def test_a_report_of_many_runs_cuts_nothing_and_sets_any_two_against_each_other(many, new_page, tmp_path):
    path, runs = report.write([many / "sweep"], tmp_path / "report.html"), find_runs([many / "sweep"])
    for width in (1280, 400):
        page = new_page(width, 900)
        page.goto(path.as_uri())
        until(page, DRAWN)
        page.wait_for_selector(".key svg path + path")  # its mark
        assert fits(page)
        nothing_is_cut(page)
        picture(page, f"report-many-{width}")

    page.click("text=Every seed")
    page.click("text=Devices of 28 runs")
    page.click("summary >> text=Devices of local, learning_rate=0.2 seed 2")
    nothing_is_cut(page)

    page = new_page()
    page.goto(path.as_uri())
    until(page, DRAWN)
    assert page.locator(".key").count() == len({run.label for run in runs}) == 10
    curves = "document.querySelector('figure[data-figure^=accuracy-local] .plot')"
    shown = f"{curves}._fullData.filter((t) => t.visible === true).map((t) => t.legendgroup)"
    page.fill("#only", "mu=1 0.5")
    until(page, f"() => {shown}.join() === 'mu=1, learning_rate=0.5'")
    page.fill("#only", "")
    until(page, f"() => {shown}.length === 10")
    page.click(".key >> text=fedavg, learning_rate=0.05")
    until(page, f"() => {shown}.length === 9")
    page.select_option("#stage", "trained")
    until(page, f"() => {curves}.layout.title.text.replaceAll('<br>', ' ').includes('after local training')")
    assert len(page.evaluate(shown)) == 9  # what is hidden stays so

    page.select_option("#horizontal", label="local, learning_rate=0.5")
    page.select_option("#vertical", label="mu=1, learning_rate=0.05")
    dots = "document.querySelector('figure[data-figure=scatter-global] .plot')"
    until(page, f"() => {dots}.layout.yaxis.title.text === 'mu=1, learning_rate=0.05'")
    lines = [
        read_lines(many / "sweep" / f"learning_rate={rate}" / rule / f"seed-{seed}")[-1]
        for rule, rate in (("local", 0.5), ("mu=1", 0.05))
        for seed in range(3)
    ]
    devices = np.reshape([line["mixed"]["global"]["devices"] for line in lines], (2, 60))
    np.testing.assert_allclose(page.evaluate(f"[{dots}._fullData[1].x, {dots}._fullData[1].y]"), devices, atol=1e-4)
    better = int((devices[1] > devices[0]).sum())
    assert f"{better} of 60" in page.evaluate(f"{dots}.layout.title.text")
    page.select_option("#baseline", label="local, learning_rate=0.5")
    paired = "document.querySelector('figure[data-figure^=paired-local] .plot')"
    until(page, f"() => {paired}.layout.title.text.replaceAll('<br>', ' ').includes('difference from local')")
    page.select_option("#run", label="fedavg, learning_rate=0.5 seed 2")
    says(page, "chosen", "fedavg, learning_rate=0.5 seed 2")


# --- the dashboard ----------------------------------------------------------------------------------------------------


@pytest.mark.slow(10)
def test_many_runs_are_folded_searched_and_chosen(many, served, new_page):
    address = served(many)
    for width in (400, 1280):
        page = new_page(width, 900)
        page.goto(address)
        page.wait_for_selector("#building .scatterlayer .point")
        until(page, MIXED)
        until(page, "() => document.querySelectorAll('#local .legend .traces').length === 10")
        assert fits(page)
        nothing_is_cut(page)
        picture(page, f"dashboard-many-{width}")
    assert "sweep, mu=1, learning_rate=0.5 seed 2: finished" in page.inner_text("#status")  # the last that was played
    seen = (
        "[...document.querySelectorAll('#table tr')].filter((r) => r.offsetParent).map((r) => r.innerText).join('\\n')"
    )
    assert "seed 1" not in page.evaluate(seen)
    assert "seconds are simulated" in page.inner_text("#table caption")
    page.click("#table tbody[data-key='sweep fedavg, learning_rate=0.2'] >> text=3 seeds")
    until(page, f"() => {seen}.includes('seed 1')")
    page.fill("#search", "mu=1 0.05")
    until(page, f"() => !{seen}.includes('fedavg') && {seen}.includes('mu=1, learning_rate=0.05')")
    page.fill("#search", "older")
    until(page, f"() => {seen}.includes('older') && !{seen}.includes('learning_rate')")
    page.fill("#search", "nobody")
    until(page, "() => document.querySelector('#table').hasAttribute('data-none')")
    page.fill("#search", "")
    page.click("#table tbody[data-key='sweep fedavg, learning_rate=0.2'] >> text=seed 1")
    says(page, "status", "sweep, fedavg, learning_rate=0.2 seed 1: finished")
    until(page, f"() => {seen}.includes('seed 1')")  # it stays open
    page.click("#table >> text=older")
    page.click("#table tbody[data-of=older] button")
    says(page, "status", "older, mu=1: finished")


@pytest.fixture
def training(tmp_path):
    """A real run that trains while it is watched, and its folder."""
    folder, quiet = tmp_path / "run", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    endless = {"rounds": 100_000, "evaluation": {"every": 5}, "late": {"policy": "quorum"}}
    with started(command("run", config_file(tmp_path, **PLANNED, **endless), "--out", folder), **quiet) as process:
        run = Records(folder)

        def has_begun():
            assert process.poll() is None
            run.refresh()
            return len(run.rounds) >= 12

        helpers.until(has_begun, "the twelfth round")
        yield process, folder

    def has_ended():  # it may have been resumed from the page: a process that is not ours to kill
        (folder / STOP).touch()
        return not in_use(folder)

    helpers.until(has_ended, "the end of the run")


@pytest.mark.slow(22)
def test_a_run_is_watched_asked_looked_back_stopped_and_resumed(training, served, new_page):
    process, folder = training
    address = served(folder)
    page = new_page()
    page.goto(address)
    page.wait_for_selector("#building .scatterlayer .point")
    assert "running" in page.inner_text("#status")

    before = rounds_seen(page)  # it follows by itself
    plays_on(page, before)
    hurry(page)
    says(page, "events", "late")
    event = page.inner_text("#events").splitlines()[0]
    assert event in {dated(event) for event in Records(folder).events}

    # Look back to round 5 with the keyboard
    slider = page.locator("#round [role=slider]")
    slider.focus()
    page.keyboard.press("Home")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    says(page, "round-label", "Round 5")
    titled(page, "building", "round 5")
    run = Records(folder)
    titled(page, "timeline", "round 5:")
    bars = plot(page, "timeline", "_fullData[0].x.map(Number)")
    assert bars == pytest.approx(run.columns(5)["compute_seconds"])
    colours = page.evaluate(
        "[...document.querySelector('#building .js-plotly-plot')._fullData.find(t => t.customdata).marker.color]"
    )
    assert colours == pytest.approx(sure(run.accuracies("local", 5)).tolist(), abs=1e-6)

    # Click a device: its plan, accuracy and neighbours
    click_device(page, 7)
    until(page, "() => document.querySelector('#device').value === '7'")
    titled(page, "device-curve", "device 7")
    columns = run.columns(5)
    plan = page.inner_text("#plan")
    epochs = "1 epoch" if columns["epochs"][7] == 1 else f"{columns['epochs'][7]} epochs"
    assert f"{epochs} on {columns['data_fraction'][7]:.0%} of its data" in plan
    assert f"{sure(run.accuracies('local', 5))[7]:.1%}" in plan
    assert f"{columns['bytes'][7]:,} bytes" in plan
    taken = shares(run, None, 5)[7]
    says(page, "neighbours", "itself")
    neighbours = page.inner_text("#neighbours")
    assert re.search(rf"itself\s+{taken[7]:.1%}", neighbours)
    most = int(np.argsort(-np.where(np.arange(20) == 7, 0, taken), kind="stable")[0])
    assert re.search(rf"device {most}\s+{taken[most]:.1%}\s+linked", neighbours)
    picture(page, "dashboard-running")

    # What if mu were 10? One slider, and the filter and the matrix change
    page.locator("#mu [role=slider]").focus()
    page.keyboard.press("End")
    says(page, "mu-label", "μ = 1e+04")
    page.keyboard.press("Home")
    says(page, "mu-label", "μ = 0.01")
    expected = fedfilt.strength(sure(run.graph), Tikhonov(0.01), run.weights())
    says(page, "mu-words", str(expected))
    matrix = np.array(
        page.evaluate("document.querySelector('#mixing .js-plotly-plot').calcdata[0][0].z.map(r => [...r])")
    )
    np.testing.assert_allclose(matrix, shares(run, 0.01), atol=1e-4)
    gains = page.evaluate("[...document.querySelector('#response .js-plotly-plot')._fullData[3].y]")
    np.testing.assert_allclose(gains, 1 / (1 + 0.01 * sure(run.graph).frequencies))

    # Another colour, another axis, by keyboard and by mouse
    page.click("text=plan outcome")
    titled(page, "building", "plan outcome")
    page.click("text=joules")
    until(page, "() => document.querySelector('#local .js-plotly-plot').layout.xaxis.title.text === 'joules'")
    page.click("text=local accuracy")
    page.locator("#buildings").focus()
    page.keyboard.press("ArrowRight")
    until(page, "() => document.querySelector('#device').value === '8'")
    page.keyboard.press("[")
    says(page, "round-label", "Round 4")
    page.click("#latest")
    says(page, "round-label", "Round (latest)")

    # Stop, and resume where it stopped
    page.click("#stop")
    says(page, "status", ": stopped,")
    assert process.wait(timeout=300) == 130
    run = Records(folder)
    last = run.rounds[-1]["round"]
    assert rounds_seen(page) == last
    assert run.status == "stopped"
    page.wait_for_selector("#resume:not([disabled])")
    picture(page, "dashboard-stopped")
    page.click("#resume")
    status, notes = (f"document.getElementById('{name}').innerText" for name in ("status", "notes"))
    until(page, f"() => {status}.includes(': running,') || {notes}.includes('could not be resumed')")
    assert "could not be resumed" not in page.inner_text("#notes")
    plays_on(page, last)
    page.wait_for_selector("#stop:not([disabled])")
    page.click("#stop")
    says(page, "status", ": stopped,")
    found = [line["round"] for line in read_lines(folder)]
    assert found == list(range(1, found[-1] + 1))  # no round lost, none twice
    assert found[-1] > last


@pytest.mark.slow(8)
def test_phone_keyboard_only_and_runs_side_by_side(compared, served, new_page):
    address = served(compared)
    page = new_page(390, 844, has_touch=True, is_mobile=True)
    page.goto(address)
    page.wait_for_selector("#building .scatterlayer .point")
    until(page, MIXED)
    assert fits(page)
    picture(page, "dashboard-phone")

    page = new_page()
    page.goto(address)
    page.wait_for_selector("#building .scatterlayer .point")
    until(page, MIXED)
    assert page.locator("#table tbody .name").all_inner_texts() == ["fedavg", "local", "mu=1"]
    names = page.evaluate("document.querySelector('#local .js-plotly-plot')._fullData.map(t => t.name)")
    assert names == ["fedavg", "local", "mu=1"]
    reached = set()  # every control can be reached with the tab key alone
    for _ in range(60):
        page.keyboard.press("Tab")
        found = "e => { while (e && !e.id) e = e.parentElement; return e ? e.id : '' }"
        reached.add(page.evaluate(f"({found})(document.activeElement)"))
    for name in ("run", "beside", "latest", "round", "colour", "buildings", "device", "against", "mu"):
        assert any(name == r or r.startswith(name) for r in reached), (name, reached)
    page.click("#beside")
    page.click(".dash-dropdown-content >> text=mu=1")
    page.wait_for_selector("#building-beside .scatterlayer .point")
    titled(page, "building-beside", "mu=1")
    pictures = "[...document.querySelectorAll('#buildings .main-svg:first-child')]"
    widths = f"{pictures}.map(e => e.getBoundingClientRect().width)"

    room = "document.querySelector('#buildings').getBoundingClientRect().width"
    until(page, f"() => {widths}.length === 2 && {widths}[0] + {widths}[1] <= {room}")  # side by side, none cut
    picture(page, "dashboard-beside")


@pytest.mark.slow(9)
def test_the_page_says_what_is_wrong_and_recovers(compared, served, new_page, tmp_path):
    folder = tmp_path / "run"
    whole = compared / "mu=1" / "seed-0"
    folder.mkdir()
    address = served(folder)
    page = new_page()
    page.goto(address)
    says(page, "notes", "holds no run yet")
    hurry(page)
    for name in ("config.toml", "graph.json", "partition.json", "environment.json"):
        shutil.copy(whole / name, folder)
    says(page, "notes", "no round is finished yet")
    text = (whole / "metrics.jsonl").read_bytes()
    cut = text.index(b"\n") + 50
    (folder / "metrics.jsonl").write_bytes(text[:cut])  # a line and a bit of the next
    says(page, "status", "round 1 of 4")
    until(page, "() => document.querySelector('#notes').innerText === ''")  # they come after the line on top
    with (folder / "metrics.jsonl").open("ab") as log:
        log.write(text[cut:])
    says(page, "status", "round 4 of 4")
    titled(page, "building", "round 4")
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, "fedfilt": "9.9.9"}))
    says(page, "notes", "written by fedfilt 9.9.9")
    folder.rename(tmp_path / "away")  # deleted while watched
    says(page, "notes", "does not exist")
    picture(page, "dashboard-deleted", full=False)
    (tmp_path / "away").rename(folder)
    until(page, "() => !document.querySelector('#notes').innerText.includes('is not there')")
    assert page.inner_text("#said") == ""


@pytest.mark.slow(4)
def test_a_token_opens_the_page_once_and_no_other_host_is_asked(compared, served, new_page):
    address = served(compared / "local", "--token", "a-token-of-24-letters-xy")
    page = new_page()
    asked = set()
    page.on("request", lambda request: asked.add(request.url.split("/")[2]))
    assert page.goto(address.split("?")[0]).status == 403
    page.goto(address)
    page.wait_for_selector("#building .scatterlayer .point")
    assert "token" not in page.url
    page.reload()
    page.wait_for_selector("#building .scatterlayer .point")
    assert asked == {address.split("/")[2]}


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """A real run of 1,000 devices in 200 rooms, stopped after its first round: their models need no files here."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((1000, 6, 5)).astype(np.float32)
    answers = (inputs[:, :, 0] > 0).astype(int)
    test = inputs[:10].reshape(-1, 5), answers[:10].ravel()
    data = FederatedData.from_arrays(list(zip(inputs, answers, strict=True)), global_test=test)
    graph = {"name": "distance", "rooms": 200, "devices": 1000, "reach": 5.0}
    table = {"graph": graph, "model": "logistic", "rounds": 2, "evaluation": {"every": 1}, "engine": {"workers": 1}}
    folder = tmp_path_factory.mktemp("thousand") / "run"
    playing = play_in_folder(Run(from_table(table), data=data), folder)
    next(playing)
    playing.close()
    return folder


@pytest.mark.slow(7)
def test_a_thousand_devices_are_shown_and_asked(thousand, served, new_page):
    address = served(thousand)
    page = new_page()
    page.goto(address)
    page.wait_for_selector("#building .scatterlayer .point")
    until(page, MIXED)
    assert page.locator("#building .scatterlayer .point").count() >= 1000
    says(page, "plan", "epochs")
    page.fill("#device", "617")
    titled(page, "learns-from", "device 617:")
    expected = shares(Records(thousand), 1.0)[617]
    title = plot(page, "learns-from", "layout.title.text")
    assert title.startswith(f"device 617: {expected[617]:.0%} its own")
    picture(page, "dashboard-1000", full=False)


# --- the living home --------------------------------------------------------------------------------------------------


@pytest.fixture
def living(tmp_path, monkeypatch):
    """A home that is lived in while it is watched: its edge server runs, and what devices say stays fresh."""
    monkeypatch.setattr(edge, "STATE_EVERY", 0.1)
    voting = Voting(gather_seconds=0.0, fresh_seconds=1e6, how="mean")
    home, stop = Living(tmp_path / "server" / "home", clock=Clock(), voting=voting), threading.Event()
    running = threading.Thread(target=home.edge.run, args=(stop,))
    running.start()

    def end():
        stop.set()
        running.join(helpers.SLOW)
        assert not running.is_alive()

    yield home, end
    end()


@pytest.mark.slow(10)
def test_a_home_is_followed_while_it_lives(living, served, new_page):
    home, end = living
    page, received = new_page(400, 850, has_touch=True, is_mobile=True), []
    page.on("response", lambda answer: received.append(answer.url))
    page.goto(served(home.folder.parent))
    page.wait_for_url("**/home")  # there is no run
    says(page, "rooms", "No device has reported anything yet")
    says(page, "corrections", "No corrections yet")
    says(page, "silent", "3 devices are silent")
    hurry(page)

    home.status("watch", "phone", "band", round=1)
    until(page, "() => !document.getElementById('silent')")
    home.says("watch", "cook", 0.9)
    home.says("phone", "cook", 0.7)
    home.says("band", "rest", 0.8)
    activities = "[...document.querySelectorAll('.activity')].map(e => e.innerText).join()"
    until(page, f"() => {activities} === 'cook,rest'")
    says(page, "rooms", "agrees")
    home.status("watch", room="bath", round=2, accuracy=0.75, battery=0.4)  # it is carried to another room
    home.says("watch", "walk", 0.95)
    until(page, f"() => {activities} === 'cook,walk'")
    says(page, "rooms", "disagrees")
    says(page, "devices", "75\N{NO-BREAK SPACE}%")
    page.wait_for_selector("#devices svg circle")
    home.corrects("bath", "cook", 20)
    says(page, "corrections", "the room had said walk; sent to watch, band")

    page.focus("#span-1d")  # what is focused stays so while the page changes around it
    home.status("band", online=False)
    says(page, "silent", "A device is silent: band")
    assert page.inner_text(".device.silent h3") == "band"
    assert page.evaluate("document.activeElement.id") == "span-1d"
    page.keyboard.press("Enter")
    page.wait_for_selector("#span-1d[aria-current]")
    assert fits(page)
    picture(page, "home-living-phone")

    end()
    aged(home.folder, 100)
    says(page, "ended", "is not running")
    hurry(page)
    page.context.set_offline(True)
    says(page, "lost", "does not respond")
    page.context.set_offline(False)
    until(page, "() => document.getElementById('lost').hidden")
    known = {"", "home", "_home", "home.css", "home.js", "_favicon.ico"}  # neither Dash nor plotly.js
    assert {url.split("?")[0].rpartition("/")[2] for url in received} <= known


@pytest.mark.slow(10)
def test_a_home_fits_every_screen_in_light_and_dark(compared, served, new_page, tmp_path):
    room = "the-longest-name-of-a-room-in-this-house"
    long = {f"{number}-a-device-with-a-name-as-long-as-allowed"[:40]: room for number in range(3)}
    home = a_morning(tmp_path / "home", devices={**DEVICES, **long})
    home.status(*long, accuracy=0.5)
    home.says(next(iter(long)), "cook")
    home.step()
    address = served(tmp_path, compared / "local")
    for width, scheme in ((1280, "light"), (400, "light"), (400, "dark"), (320, "light")):
        page = new_page(width, 900, color_scheme=scheme)
        page.goto(address.replace("?", "home?"))
        page.wait_for_selector("#devices svg circle")
        assert fits(page), width
        outside = "e => e.closest('.stripe, thead, svg, .yes, .no') || getComputedStyle(e).display === 'inline'"
        cut = f"e => !({outside})(e) && e.clientWidth && e.scrollWidth > e.clientWidth + 1"
        assert page.evaluate(f"[...document.querySelectorAll('main *')].filter({cut}).map(e => e.outerHTML)") == []
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(246, 248, 250)") == (scheme == "light")
        picture(page, f"home-{width}-{scheme}")
    page.click("#to-runs")
    page.wait_for_selector("#building .scatterlayer .point")
    page.click("#to-home")
    page.wait_for_selector("#rooms")
