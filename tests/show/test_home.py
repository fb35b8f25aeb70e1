"""What a living home has written, read back and shown: also what somebody has damaged or planted."""

import json
import os
import random
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfilt.home import edge as edges
from fedfilt.home import records
from fedfilt.home.records import Corrected, Decided, Home, home_folders
from fedfilt.runs.records import Records, run_folders
from fedfilt.show.dashboard.app import make_app
from fedfilt.show.dashboard.folders import SEARCH, Watch
from fedfilt.show.dashboard.home import SILENT, home_key, part
from fedfilt.show.dashboard.server import guard
from fedfilt.show.shares import shares
from helpers import call, finish, sure
from homes import DEVICES, LABELS, Living, a_morning, aged

HOST = {"Host": "127.0.0.1:8050"}
MARKUP = "<img src=x onerror=alert(1)>'\"&"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However long a test takes, what it has written is new."""
    monkeypatch.setattr(records, "RUNS", 3600.0)


@pytest.fixture(scope="module")
def morning(tmp_path_factory):
    return a_morning(tmp_path_factory.mktemp("deployed") / "server" / "home")


@pytest.fixture
def folder(morning, tmp_path):
    """A copy of that home's files, at the same age."""
    return Path(shutil.copytree(morning.folder, tmp_path / "home"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    finish(run, rounds=2)
    return run


TOKEN = "a-token-of-24-letters-xy"


def client(*paths):
    made = make_app(Watch(paths))
    guard(made.server, "127.0.0.1", 8050, TOKEN)
    page = made.server.test_client()
    page.set_cookie("fedfilt_token_8050", TOKEN, domain="127.0.0.1")
    return page


def shown(*paths, **asked):
    """The words of the page, in one line."""
    return words(part(Watch(paths), asked))


def words(html):
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


# --- reading ----------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(morning):
    home = Home(morning.folder)
    now, at = sure(home.now), morning.clock.now()
    assert (now.home, now.labels, now.at, home.runs, home.notes) == ("villa", LABELS, at, True, [])
    assert now.rooms["kitchen"].says["phone"] == ("rest", 0.5, at - 1)
    assert sure(now.rooms["kitchen"].state).probabilities == {"rest": 0.325, "walk": 0.2, "cook": 0.475}
    assert now.devices["watch"].status == (True, "kitchen", 4, 0.875, 0.8)
    assert now.devices["band"].status.online is False
    assert now.dropped == {"bad message": 1}
    assert home.corrections == [
        Corrected(at - 1, "kitchen", "walk", at - 31, at - 1, ("watch", "phone"), "unknown"),
        Corrected(at - 1, "bath", "rest", at - 6, at - 1, ("band",), "unknown"),
    ]
    assert [one.status.round for one in home.changes if one.device == "watch"] == [3, 4]
    assert {one.activity for one in home.decisions if one.room == "kitchen"} >= set(LABELS)


def test_lines_are_read_once_each_while_files_grow_and_are_renamed(tmp_path, monkeypatch):
    monkeypatch.setattr(edges, "MOST_FILE", 3000)
    living = Living(tmp_path / "home")
    home, expected = Home(tmp_path / "home"), []
    draw = random.Random(0)
    for number in range(120):
        living.says("watch", LABELS[number % 3])
        living.step()
        expected.append(Decided(living.clock.now(), "kitchen", LABELS[number % 3], 0.9))
        living.step(1)
        if draw.random() < 0.2:
            home.refresh()
            assert home.decisions == expected
    assert (tmp_path / "home" / "decisions.1.jsonl").exists()
    late = Home(tmp_path / "home").decisions  # knows only what is still there
    assert late == expected[-len(late) :]
    assert len(late) < len(expected)
    for _ in range(2):  # both files are replaced while nobody looks
        for number in range(40):
            living.says("watch", LABELS[number % 3])
            living.step(1)
    home.refresh()
    assert home.decisions == Home(tmp_path / "home").decisions
    assert home.notes == []


def test_a_line_counts_when_it_has_ended(folder):
    home, before = Home(folder), len(Home(folder).corrections)
    line = (folder / "corrections.jsonl").read_bytes().splitlines()[0]
    with (folder / "corrections.jsonl").open("ab") as file:
        file.write(line[:20])
        file.flush()
        home.refresh()
        assert (len(home.corrections), home.notes) == (before, [])
        file.write(line[20:] + b"\nnonsense\n")
    home.refresh()
    assert (len(home.corrections), home.notes) == (before + 1, ["1 damaged line of corrections.jsonl skipped"])
    (folder / "corrections.jsonl").write_bytes(line + b"\n")  # replaced by another, in place
    home.refresh()
    assert (len(home.corrections), home.notes) == (1, [])


def test_only_so_much_is_read_and_kept(folder, monkeypatch):
    line = json.loads((folder / "decisions.jsonl").read_text().splitlines()[0])
    monkeypatch.setattr(records, "KEPT", 50)
    with (folder / "decisions.jsonl").open("w") as file:
        file.writelines(json.dumps({**line, "at": float(number)}) + "\n" for number in range(200))
    assert [one.at for one in Home(folder).decisions] == list(range(150, 200))
    monkeypatch.setattr(records, "NEWEST", 10 * len(json.dumps({**line, "at": 100.0})))
    home = Home(folder)
    assert 5 < len(home.decisions) <= 10
    assert (home.decisions[-1].at, home.notes) == (199, [])


@pytest.mark.parametrize("name", ["state.json", "decisions.jsonl", "devices.jsonl", "corrections.1.jsonl"])
def test_what_is_no_file_of_a_bearable_size_is_not_read(folder, tmp_path, name):
    def fifo(path):
        os.mkfifo(path)

    def link(path):
        path.symlink_to(tmp_path / "secret")

    def huge(path):
        with path.open("wb") as file:
            file.truncate(1 << 40)

    (tmp_path / "secret").write_text('{"secret": 1}\n')
    for plant in (fifo, link, huge, Path.mkdir):
        path = folder / name
        path.unlink(missing_ok=True)
        plant(path)
        home = Home(folder)
        assert any(note.startswith(f"{name} cannot be read") or "damaged line" in note for note in home.notes), plant
        if plant is not Path.mkdir:
            path.unlink()
        assert "secret" not in shown(folder)
    path.rmdir()


def test_a_state_that_is_damaged_leaves_the_last_one_on_show_until_it_is_whole_again(folder):
    home, whole = Home(folder), (folder / "state.json").read_bytes()
    (folder / "state.json").write_bytes(whole[: len(whole) // 2])
    home.refresh()
    assert home.notes == ["state.json cannot be read: not JSON"]
    assert sure(home.now).home == "villa"
    assert not home.runs
    (folder / "state.json").write_bytes(whole)
    home.refresh()
    assert (home.notes, home.runs) == ([], True)
    table = json.loads(whole)
    table["rooms"]["bath"]["says"] = {"band": {"label": "rest", "share": 2, "at": 1}}
    table["devices"]["phone"] = 3
    table["dropped"]["stale"] = -1
    (folder / "state.json").write_text(json.dumps(table))
    home.refresh()
    assert home.notes == ["3 entries of state.json cannot be read"]
    assert list(sure(home.now).rooms) == ["kitchen"]
    assert list(sure(home.now).devices) == ["watch", "band"]


@pytest.mark.parametrize(
    ("kind", "entry"), [("rooms", {}), ("devices", {"online": True}), ("dropped", 1), ("labels", 0)]
)
def test_a_home_that_no_page_can_show_is_not_shown(folder, kind, entry):
    """Rooms times devices, and labels times labels, would take hours."""
    table = json.loads((folder / "state.json").read_text())
    names = [f"x{number}" for number in range(100_000)]
    (folder / "state.json").write_text(
        json.dumps({**table, kind: names if kind == "labels" else dict.fromkeys(names, entry)})
    )
    home = Home(folder)
    assert any("state.json cannot be read: it has more than 2000" in note for note in home.notes)
    assert home.now is None


NUMBERS = [-1, 1.5, True, 10**400, -1e11, float("inf"), float("nan")]
ODD = [None, "x", "", "\ud800", "\u202e", [], {}, [[1]], {"a": 1}, *NUMBERS]


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        yield from places(inside, (*path, key))


def changed(value, path, new):
    if not path:
        return new
    value = dict(value) if isinstance(value, dict) else list(value)
    value[path[0]] = changed(value[path[0]], path[1:], new)
    return value


@pytest.mark.slow(3)
@settings(max_examples=200)
@given(data=st.data())
def test_no_damage_breaks_reading_or_showing(morning, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("hurt") / "home"
    shutil.copytree(morning.folder, folder)
    name = data.draw(st.sampled_from(["state.json", "decisions.jsonl", "devices.jsonl", "corrections.jsonl"]))
    content = (folder / name).read_bytes()
    if data.draw(st.booleans()):  # a value of one table is another
        *before, last = content.splitlines()
        table = json.loads(last)
        path = data.draw(st.sampled_from(list(places(table))))
        new = json.dumps(changed(table, path, data.draw(st.sampled_from(ODD))))
        content = b"\n".join([*before, new.encode(), b""])
    else:  # bytes are lost, or others in their place
        begin = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(begin, len(content)))
        content = content[:begin] + data.draw(st.binary(max_size=40)) + content[end:]
    (folder / name).write_bytes(content)
    assert part(Watch([folder]), {"span": "1d"}).encode().endswith(b"</main>")


def test_homes_are_found_where_they_are(folder, tmp_path, finished):
    server = tmp_path / "building" / "server"
    shutil.copytree(folder, server / "home")
    for path in (server / "home", server, tmp_path / "building"):
        assert home_folders([path]) == [server / "home"]
    assert home_folders([finished, tmp_path / "none", server, server]) == [server / "home"]
    stranger = tmp_path / "stranger"
    (stranger / "a").mkdir(parents=True)
    for link, target in (("home", server / "home"), ("b", server), ("a/home", server / "home")):
        (stranger / link).symlink_to(target)
    assert home_folders([stranger]) == []  # links inside a folder are not followed
    assert home_folders([stranger / "b"]) == [stranger / "b" / "home"]  # one that the user names is the user's
    (server / "flower").mkdir()
    (server / "flower" / "config.toml").write_text("[superlink]")
    (server / "deployment.toml").write_text("")
    shutil.copytree(finished, server / "run")
    assert run_folders([server]) == [server / "run"]  # Flower's own config is not taken for a run


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_says_what_happens_at_home(morning):
    said = shown(morning.folder)
    assert "villa running , 2 rooms, 3 devices" in said
    kitchen = re.search(r"kitchen (.*?) bath", said)
    assert sure(kitchen)[1].startswith("unknown 48 % sure")
    assert "perhaps cook" in sure(kitchen)[1]
    assert "watch cook 70 %" in said
    assert "A device is silent: band." in said
    assert "band offline for 1 s" in said
    assert "kitchen : walk for the last 30 s the room had said unknown; sent to watch, phone" in said
    assert "Corrections 2 corrections. " in said
    assert "88 %" in said
    assert "of round 4 battery 80 %" in said
    assert "bad message 1" in said
    assert "To see who learns from whom" in said
    html = part(Watch([morning.folder]), {})
    assert len(re.findall(r"<circle", html)) == 2  # two models of the watch
    assert ">4</text>" in html
    assert '<time datetime="20' in html


def test_the_room_and_its_devices_agree_or_not(tmp_path):
    home = Living(tmp_path / "home", devices={**DEVICES, "lamp": "kitchen"})
    home.status("watch", "phone", "lamp")
    for device, label in (("watch", "cook"), ("phone", "cook"), ("lamp", "rest")):
        home.says(device, label, 0.8)
    home.step()
    said = shown(tmp_path)
    assert "kitchen cook 57 % sure, just now or rest 33 %, walk 10 %" in said
    assert "watch cook 80 % ✓ agrees phone cook 80 % ✓ agrees lamp rest 80 % ✗ disagrees" in said
    assert "bath unknown No device has reported anything yet. What its devices say device says confidence" in said
    assert "band not heard from yet" in said
    home.step(30)
    assert "No device has a vote right now" in shown(tmp_path)
    assert "watch silent for 30 s" in shown(tmp_path)
    assert "3 devices" not in shown(tmp_path).split("Rooms")[0].split("silent")[0]
    home.step(SILENT)
    assert "4 devices are silent: watch, phone, band, lamp." in shown(tmp_path)


def test_the_stripe_shows_what_a_room_did_and_where_it_did_nothing(tmp_path):
    home = Living(tmp_path / "home")
    home.status("watch")
    for label in ("cook", "rest"):
        home.says("watch", label)
        home.step()
        home.step(10)
        home.step(50)
    home.step(180)
    home.says("watch", "walk")
    home.step()
    home.step(6)
    html = part(Watch([tmp_path]), {"span": "10min"}).replace("\N{NO-BREAK SPACE}", " ")
    stripe = re.search(r'<div class="stripe".*?</div>', html, re.DOTALL)
    pieces = re.findall(r'<span class="(\w+).*?left:([\d.]+)%;width:([\d.]+)%" title="([^"]*)"', sure(stripe)[0])
    assert [(title, colour) for colour, _, _, title in pieces] == [
        ("cook for 10 s", "c2"),
        ("unknown for 50 s", "unknown"),
        ("rest for 10 s", "c0"),
        ("unknown for 90 s", "unknown"),  # then nobody had decided anything for a while
        ("walk for 6 s", "c1"),
    ]
    left, width = (float(number) for number in pieces[-1][1:3])
    assert left + width == pytest.approx(100, abs=0.1)
    assert 'aria-label="cook for 10 s, then unknown for 50 s' in html
    assert "Before: rest at" in words(html)


def test_a_stripe_of_many_pieces_shows_what_took_most_of_the_time(tmp_path):
    living = Living(tmp_path / "home")
    living.status("watch")
    for _ in range(360):
        for label, seconds in (("cook", 4), ("rest", 1)):
            living.says("watch", label)
            living.step(seconds)
    html = part(Watch([tmp_path]), {"span": "1h"})
    pieces = re.findall(r'left:([\d.]+)%;width:([\d.]+)%" title="(\w+)', html)
    assert {title for _, _, title in pieces} == {"cook"}
    assert len(pieces) <= 3


def test_an_edge_server_that_ended_is_said_to_have(folder):
    aged(folder, 7300)
    said = shown(folder)
    assert "villa not running" in said
    assert "The edge server of this home is not running, or cannot write here." in said
    assert "it was written 2 h ago" in said
    (folder / "state.json").unlink()
    said = shown(folder)
    assert "state.json cannot be read: No such file" in said
    assert "walk for the last 30 s" in said  # what is known is shown


def test_a_home_where_nothing_has_happened_says_what_to_do(tmp_path):
    Living(tmp_path / "home", devices=None).step()
    said = shown(tmp_path)
    assert "No rooms yet: a room appears when a device reports that it is there." in said
    assert "No devices yet" in said
    assert "No corrections yet: choose the right activity in Home Assistant, or run fedfilt home label" in said
    assert "0 received, none dropped." in said


def test_words_of_a_home_cannot_become_code_in_the_page(morning, folder):
    for path in folder.iterdir():
        text = path.read_text()
        for name in ("villa", "kitchen", "watch", "walk", "bad message"):
            text = text.replace(json.dumps(name), json.dumps(f"{name}{MARKUP}"))
        path.write_text(text)
    html = client(folder).get("/home", headers=HOST).get_data(as_text=True)
    for name in ("villa", "kitchen", "watch", "walk", "bad message"):
        assert f"{name}&lt;img src=x onerror=alert(1)&gt;&#39;&#34;&amp;" in html
    assert "<img" not in html
    plain = part(Watch([morning.folder]), {})
    content = html.split("<div id='home'>")[1].split("</div><script")[0]
    tags = [re.findall(r"<(\w+)", text) for text in (content, plain)]
    assert tags[0] == tags[1]  # the same elements, whatever the words


def test_activities_beyond_the_colours_are_hatched(tmp_path):
    labels = [f"activity-{number}" for number in range(20)]
    home = Living(tmp_path / "home", labels=labels)
    home.status("watch")
    home.says("watch", "activity-9")
    home.step()
    html = part(Watch([tmp_path]), {})
    assert 'class="card room c1 h1"' in html
    assert len(set(re.findall(r'swatch (c\d h\d)"></i>activity-\d+</li>', html))) == 20


def test_several_homes_are_chosen_from(folder, tmp_path):
    Living(tmp_path / "other" / "home", home="hut").step()
    Living(tmp_path / "third" / "home", home="hut").step()
    watch = Watch([folder, tmp_path / "other", tmp_path / "third"])
    assert [home.name for home in watch.homes] == ["villa", "hut", "hut"]
    html = part(watch, {"home": home_key(watch.homes[1])})
    assert "<h1>hut</h1>" in html
    assert f"hut ({tmp_path / 'other' / 'home'})" in words(html)
    for strange in ("../..", "", "x" * 5000):
        assert "<h1>villa</h1>" in part(watch, {"home": strange, "span": strange})


def test_who_learns_from_whom_is_known_beside_the_run(morning, finished, tmp_path):
    server = tmp_path / "server"
    shutil.copytree(morning.folder, server / "home")
    shutil.copytree(finished, server / "run")
    names = ["watch", "phone", "band", *(f"device-{number:03}" for number in range(3, 20))]
    text = "".join(f'[[device]]\nname = "{name}"\n' for name in names)
    (server / "deployment.toml").write_text(text)
    taken = shares(Records(server / "run"), None, 2)
    said = shown(server)
    assert f"learns from itself {100 * taken[0, 0]:.0f} %" in said
    other = max(range(1, 20), key=lambda device: taken[0, device])
    assert f"{names[other]} {100 * taken[0, other]:.0f} %" in said
    for paths in ([server / "home"], [server / "home", server / "run"]):  # nothing outside is read for it
        assert "To see who learns from whom" in shown(*paths)
    for wrong in ("device = 3", "[[device]]\nrow = 1", "{", "x" * 100):
        (server / "deployment.toml").write_text(wrong)
        assert "It is unknown who learns from whom" in shown(server)


def test_the_pages_lead_to_each_other(morning, finished, tmp_path):
    both = client(morning.folder, finished)
    layout = both.get("/_dash-layout", headers=HOST).get_data(as_text=True)
    assert re.search(r'\{[^{}]*"id":"to-home"[^{}]*"hidden":false', layout)
    assert 'id="to-runs"' in both.get("/home", headers=HOST).get_data(as_text=True)
    assert both.get("/_pulse", headers=HOST).get_json()["homes"] is True
    for name in ("home.css", "home.js"):
        assert name not in both.get("/", headers=HOST).get_data(as_text=True)
        with both.get(f"/assets/{name}", headers=HOST) as answer:
            assert (answer.status_code, len(answer.data) > 500) == (200, True)
    alone = client(morning.folder)
    for path in ("/", "/anything/else"):
        answer = alone.get(path, headers=HOST)
        assert (answer.status_code, answer.headers["Location"]) == (302, "/home")
    assert 'id="to-runs"' not in alone.get("/home", headers=HOST).get_data(as_text=True)
    neither = client(finished)
    assert neither.get("/home", headers=HOST).status_code == 404
    assert neither.get("/_pulse", headers=HOST).get_json()["homes"] is False


def test_only_those_who_may_look_see_the_home(morning):
    page = client(morning.folder)
    for path in ("/home", "/_home"):
        assert page.get(path, headers={"Host": "evil.example"}).status_code == 403
        answer = page.get(path, headers=HOST)
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-store"
    made = make_app(Watch([morning.folder]))
    guard(made.server, "0.0.0.0", 8050, TOKEN)
    for path in ("/", "/home", "/_home", "/assets/home.css"):
        assert made.server.test_client().get(path).status_code == 403


def test_a_home_that_begins_later_is_found_and_stays(finished, tmp_path):
    watch = Watch([tmp_path])
    assert watch.homes == []
    Living(tmp_path / "home").step()
    watch._looked = watch._searched = watch._looked - SEARCH - 1
    watch.refresh()
    assert [home.name for home in watch.homes] == ["villa"]
    shutil.rmtree(tmp_path / "home")
    watch._looked = watch._searched = watch._looked - SEARCH - 1
    watch.refresh()
    assert "state.json cannot be read" in words(part(watch, {}))


def test_the_command_names_what_it_can_show():
    assert "home" in call("dashboard", "--help").stdout
