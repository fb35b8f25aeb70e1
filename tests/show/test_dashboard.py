"""The dashboard without a browser: who may look, what may be asked, stopping and resuming, bad folders."""

import json
import re
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
from functools import partial
from typing import Any

import pytest
from plotly.offline import get_plotlyjs_version
from werkzeug.serving import BaseWSGIServer

import helpers
from fedfilt._files import STOP, in_use
from fedfilt._start import PROGRAM
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.lines import read_lines
from fedfilt.runs.play import play_in_folder
from fedfilt.runs.records import Records
from fedfilt.show.dashboard import app, steering
from fedfilt.show.dashboard.app import Pulse, first, make_app, marks
from fedfilt.show.dashboard.folders import SEARCH, Watch, run_key
from fedfilt.show.dashboard.opening import PLOTLY
from fedfilt.show.dashboard.server import bind, check_address, guard
from helpers import SLOW, call, finish, serving, sure

SMALL = {**helpers.SMALL, "rounds": 4}
TOKEN = "a-token-of-24-letters-xy"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    finish(folder, rounds=4)
    return folder


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped after round 2 of 4."""
    playing = play_in_folder(Run(from_table(SMALL)), tmp_path / "run")
    next(playing), next(playing)
    playing.close()
    return tmp_path / "run"


def client(folder, host="127.0.0.1", entered=True):
    made = make_app(Watch([folder]))
    guard(made.server, host, 8050, TOKEN)
    page = made.server.test_client()
    if entered:
        page.set_cookie("fedfilt_token_8050", TOKEN, domain="127.0.0.1")
    return page


def properties(values):
    return [dict(zip(("id", "property"), key.split("."), strict=True), value=v) for key, v in dict(values).items()]


def ask(page, outputs, inputs, changed, state=(), **headers):
    """Call a callback as the page does: outputs and inputs as "id.property"; gives (status, properties by id)."""
    split = [output.split(".") for output in outputs]
    body = {
        "output": f"..{'...'.join(outputs)}.." if len(outputs) > 1 else outputs[0],
        "outputs": [{"id": name, "property": prop} for name, prop in split]
        if len(outputs) > 1
        else {"id": split[0][0], "property": split[0][1]},
        "inputs": properties(inputs),
        "state": properties(state),
        "changedPropIds": [changed],
    }
    answer = page.post("/_dash-update-component", json=body, headers={"Host": "127.0.0.1:8050", **headers})
    found = answer.get_json(silent=True) or {}
    return answer.status_code, found.get("response", {}) | found.get("sideUpdate", {})


def steer(page, button, folder, **headers):
    inputs = {"stop.n_clicks": 1, "resume.n_clicks": 1}
    status, found = ask(
        page, ["said.children"], inputs, f"{button}.n_clicks", {"run.value": run_key(Records(folder))}, **headers
    )
    return status, found.get("said", {}).get("children")


# --- who may look -----------------------------------------------------------------------------------------------------


def test_other_addresses_need_a_token_that_cannot_be_guessed(finished):
    for host in ("0.0.0.0", "192.168.1.7", "::", "my-machine"):
        with pytest.raises(ValueError, match="lets other machines in: choose a --token"):
            check_address(host, "")
        check_address(host, TOKEN)
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, "")
    for weak in ("short", "with spaces in it, long", "a" * 15):
        with pytest.raises(ValueError, match="at least 16 letters"):
            check_address("0.0.0.0", weak)
    done = call("dashboard", finished, "--host", "0.0.0.0")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --host 0.0.0.0")


def test_only_the_own_name_and_the_own_origin_are_answered(finished):
    page = client(finished)
    assert page.get("/", headers={"Host": "127.0.0.1:8050"}).status_code == 200
    assert page.get(f"/?token={TOKEN}", headers={"Host": "localhost:8050"}).status_code == 200
    assert page.get("/_dash-layout", headers={"Host": "evil.example:8050"}).status_code == 403  # a rebound name
    assert steer(page, "stop", finished)[0] == 200
    assert steer(page, "stop", finished, Origin="http://127.0.0.1:8050")[0] == 200
    assert steer(page, "stop", finished, Origin="http://evil.example")[0] == 403
    headers = page.get("/", headers={"Host": "127.0.0.1:8050"}).headers
    assert "default-src 'self'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_nothing_is_shown_or_done_without_the_token(finished, host):
    page = client(finished, host, entered=False)
    look = partial(page.get, headers={"Host": "127.0.0.1:8050"})
    for path in ("/", "/_dash-layout", "/_pulse", "/home", "/assets/keys.js", "/?token=wrong", "/_dash-layout?token="):
        assert look(path).status_code == 403, path
    assert steer(page, "stop", finished)[0] == 403
    entered = look(f"/?token={TOKEN}")
    assert entered.status_code == 200
    assert entered.get_data(as_text=True).endswith("content='0;url=/'>")  # the token is not left in the address bar
    cookie = entered.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert look("/_dash-layout").status_code == 200  # the cookie is enough now


def test_the_address_for_the_browser_opens_once(finished):
    made = make_app(Watch([finished]))
    guard(made.server, "127.0.0.1", 8050, TOKEN, "once-and-never-again-1234")
    ours, other = made.server.test_client(), made.server.test_client()
    host = {"Host": "127.0.0.1:8050"}
    assert ours.get("/?token=once-and-never-again-1234", headers=host).status_code == 200
    assert ours.get("/_pulse", headers=host).status_code == 200
    assert other.get("/?token=once-and-never-again-1234", headers=host).status_code == 403
    assert other.get("/?token=", headers=host).status_code == 403


def test_nothing_outside_the_given_folders_is_read(finished, tmp_path):
    other = shutil.copytree(finished, tmp_path / "secret")
    page = client(finished)
    assert steer(page, "stop", other)[1] == "there is no run to stop or resume"
    for path in ("/assets/../server.py", "/assets/%2e%2e/server.py", "/../../etc/passwd", "/assets//etc/passwd"):
        answer = page.get(path, headers={"Host": "127.0.0.1:8050"})
        assert answer.status_code in (400, 404) or b"react-entry-point" in answer.data, path  # not found, or the page
        assert b"root:" not in answer.data

    for wrong in ("../..", "/etc", 3, None, {"a": 1}, ["x"]):
        assert Watch([finished]).run(wrong) is None


def test_words_from_a_run_cannot_become_code_in_the_page(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    table = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps({**table, "rooms": ["<img src=x onerror=alert(1)>"] * 20}))
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace('name = "gfedfilt"', 'name = "<script>alert(1)</script>"'))
    shown = client(folder).get("/", headers={"Host": "127.0.0.1:8050"}).get_data(as_text=True)
    assert "&lt;img" in shown
    assert "&lt;script&gt;alert" in shown
    assert "<img" not in shown
    assert "<script>alert" not in shown


def test_the_building_is_in_the_page_before_any_script(finished):
    page = client(finished)
    shown = page.get("/", headers={"Host": "127.0.0.1:8050"}).get_data(as_text=True)
    before = shown.split("<script")[0]
    assert len(re.findall(r"stroke=.rgb", before)) == 20  # every device
    assert "finished, round 4 of 4" in before
    plotly = page.get(f"/{PLOTLY}", headers={"Host": "127.0.0.1:8050"})
    assert f"plotly.js v{get_plotlyjs_version()}".encode() in plotly.data[:200]


def test_the_page_comes_with_its_scripts_and_its_style(finished):
    page = client(finished)
    shown = page.get("/", headers={"Host": "127.0.0.1:8050"}).get_data(as_text=True)
    for name in ("dashboard.css", "keys.js", "pulse.js"):
        assert f"assets/{name}" in shown
        with page.get(f"/assets/{name}", headers={"Host": "127.0.0.1:8050"}) as answer:
            assert (answer.status_code, len(answer.data) > 500) == (200, True)


def test_a_port_in_use_is_said_in_one_line(finished):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match="choose another with --port"):
            bind("127.0.0.1", port)
        done = call("dashboard", finished, "--port", port)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}")


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_values_that_no_page_sends_do_no_harm(finished):
    page = client(finished)
    key = run_key(Records(finished))
    graph = ["response.figure", "mixing.figure", "learns-from.figure", "mu-label.children", "mu-words.children"]
    for device in (-1, 10**9, "x", None, 1.5, [1], {"a": 2}):
        inputs = {"mu.value": 1.0, "device.value": device, "run.value": key}
        status, found = ask(page, graph, inputs, "mu.value")
        assert status == 200, device
        assert found["mu-label"]["children"] == "μ = 10"
    odd: list[Any] = ["x", None, [], 1e9]
    for mu in odd:  # said on the page, not a crash
        status, found = ask(page, graph, {"mu.value": mu, "device.value": 0, "run.value": key}, "mu.value")
        assert status in (200, 204)
    inputs = {
        "tests.data": 1,
        "played.data": 1,
        "colour.value": "../x",
        "shown.data": None,
        "device.value": 0,
        "beside.value": None,
    }
    pictures = ["building.figure", "building-beside.figure", "beside-panel.hidden"]
    state = {"run.value": key}
    status, found = ask(page, pictures, {**inputs, "visible.data": None}, "colour.value", state)
    assert status in (200, 204)
    assert "building" not in found or "figure" not in found.get("building", {})
    outputs = ["plan.children", "device-curve.figure", "neighbours.children"]
    inputs = {"device.value": 999, "tests.data": 1, "played.data": 1, "shown.data": None, "beside.value": None}
    status, found = ask(page, outputs, {**inputs, "visible.data": None}, "device.value", state)
    assert status == 200
    assert "Devices are numbered 0 to 19." in str(found["plan"])
    for body in ("[]", "null", "3", "{"):
        sent = {"data": body, "content_type": "application/json", "headers": {"Host": "127.0.0.1:8050"}}
        assert page.post("/_dash-update-component", **sent).status_code == 400


def test_the_page_sends_only_what_changed(stopped):
    watch = Watch([stopped])
    run = watch.runs[0]
    seen = marks(watch, run)
    assert seen["played"].endswith(" 2")
    assert first(watch) is run
    list(play_in_folder(Run(from_table(SMALL)), stopped, resume=True))
    watch._looked = float("-inf")
    watch.refresh()
    now = marks(watch, run)
    assert now["played"].endswith(" 4")
    assert now["tests"] != seen["tests"]


def test_the_pulse_changes_at_once_when_a_run_ends_and_is_held_while_it_trains(stopped, monkeypatch):
    watch = Watch([stopped])
    pulse = Pulse(watch)
    key = run_key(watch.runs[0])
    monkeypatch.setattr(Watch, "refresh", lambda self: [run.refresh() for run in self.runs])
    monkeypatch.setattr(app, "HOLD", float("inf"))  # however long the rounds take
    playing = play_in_folder(Run(from_table(SMALL)), stopped, resume=True)
    next(playing)
    first_look = pulse(key)
    assert "running, round 3 of 4" in first_look["words"]
    next(playing)
    second = pulse(key)
    assert "running, round 4 of 4" in second["words"]  # the line on top is never held
    assert second["mark"] == first_look["mark"]  # the pictures are
    monkeypatch.setattr(app, "HOLD", 0.0)
    third = pulse(key)
    assert third["mark"] != second["mark"]  # until it is time to draw again
    monkeypatch.setattr(app, "HOLD", float("inf"))
    list(playing)
    assert pulse(key)["mark"] != third["mark"]
    assert pulse("nonsense")["words"] == pulse(key)["words"]


def test_new_runs_are_found_while_watching(finished, tmp_path):
    watch = Watch([tmp_path / "runs"])
    assert [run.status for run in watch.runs] == ["missing"]
    assert make_app(watch).server.test_client().get("/_dash-layout").status_code == 200

    shutil.copytree(finished, tmp_path / "runs" / "a")
    shutil.copytree(finished, tmp_path / "runs" / "b" / "seed-0")
    watch._looked = watch._searched = time.monotonic() - SEARCH - 1
    watch.refresh()
    assert sorted(run.folder.name for run in watch.runs) == ["a", "seed-0"]


def test_the_layout_is_made_for_every_kind_of_folder(finished, stopped, tmp_path):
    (tmp_path / "empty").mkdir()
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.toml").write_text("rounds = 3")
    other = shutil.copytree(finished, tmp_path / "other")
    (other / "environment.json").write_text('{"fedfilt": "0.0.1"}')
    for folder, words in (
        (finished, "finished, round 4 of 4"),
        (stopped, "stopped, round 2 of 4"),
        (tmp_path / "empty", "holds no run yet"),
        (tmp_path / "none", "does not exist"),
        (half, "no round is finished yet"),
        (other, "written by fedfilt 0.0.1"),
    ):
        answer = make_app(Watch([folder])).server.test_client().get("/_dash-layout")
        assert answer.status_code == 200
        assert words in answer.get_data(as_text=True), folder


# --- stopping and resuming --------------------------------------------------------------------------------------------


def test_stop_and_resume_say_what_they_cannot_do(finished, stopped, tmp_path):
    assert steering.stop(Records(finished)).endswith("is not running")
    assert steering.resume(Records(finished)).endswith("is finished")
    assert "cannot be resumed" in steering.resume(Records(tmp_path / "none"))
    assert not (finished / STOP).exists()
    text = (stopped / "config.toml").read_text().replace('name = "mlp"', 'name = "mine:Model"')
    (stopped / "config.toml").write_text(text)
    said = steering.resume(Records(stopped))
    assert "uses code from outside fedfilt; if you trust it, resume it in a terminal: fedfilt run" in said
    assert said.endswith("--resume --trust-code")
    assert not in_use(stopped)


class InThisProcess:
    """Stands for a process that `resume` starts: the same words, without the seconds that a process takes."""

    def __init__(self, words, stdout, stderr, **options):
        assert words[:4] == list(PROGRAM)
        done = call(*words[4:])
        stdout.write(done.stdout.encode())
        stderr.write(done.stderr.encode())
        self.returncode = done.returncode

    def poll(self):
        return self.returncode


def test_a_run_that_cannot_be_resumed_is_explained(stopped, monkeypatch):
    state = stopped / "checkpoint" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:50])
    run = Records(stopped)
    monkeypatch.setattr("fedfilt.show.dashboard.steering.subprocess.Popen", InThisProcess)
    assert "is being resumed" in steering.resume(run)
    assert "is damaged" in steering.complaint(run)


@pytest.mark.slow(4)
def test_resuming_goes_on_with_the_same_bits(stopped, finished):
    page = client(stopped)
    assert "is being resumed" in steer(page, "resume", stopped)[1]
    run = Records(stopped)
    steering._started[run.folder].wait(timeout=SLOW)
    run.refresh()

    assert run.status == "finished", (stopped / steering.LOG).read_text()
    assert [line["round"] for line in read_lines(stopped)] == [1, 2, 3, 4]
    results = [json.loads((folder / "result.json").read_text())["models_sha256"] for folder in (stopped, finished)]
    assert results[0] == results[1]


@pytest.mark.slow(2)
def test_the_command_serves_and_ends_quietly(finished):
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in the background of a shell it would be ignored
    with serving(finished, preexec_fn=heard) as (process, address):
        place, _, token = address.partition("?token=")
        assert len(token) >= 32
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(place, timeout=SLOW)
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(address, timeout=SLOW)
        assert "The building" in browser.open(place, timeout=SLOW).read().decode()
        assert b"round 4 of 4" in browser.open(place + "_dash-layout", timeout=SLOW).read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=SLOW) == 0
        assert "Traceback" not in sure(process.stdout).read()


def test_the_token_may_come_from_the_environment(finished, monkeypatch):
    seen = []

    def asked_once(server):
        seen.append(server.app.test_client().get("/").status_code)
        raise KeyboardInterrupt

    monkeypatch.setattr(BaseWSGIServer, "serve_forever", asked_once)
    done = call("dashboard", finished, "--port", 0, env={"FEDFILT_TOKEN": TOKEN})
    assert (done.returncode, seen) == (0, [403])
    assert re.search(rf"http://\S+/\?token={TOKEN} ", done.stdout)
    assert "dashboard stopped; runs continue" in done.stdout
