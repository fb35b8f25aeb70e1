"""The page of a living home: rooms, devices and corrections as plain HTML, fetched again every two seconds.

It needs neither Dash nor plotly.js, which keeps it small enough for a phone. A template escapes every word on it.
"""

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import flask
import jinja2

from fedfilt._reading import read_toml
from fedfilt._types import Table
from fedfilt._version import __version__
from fedfilt.home.edge import LINE_EVERY
from fedfilt.home.records import Changed, Corrected, Decided, Home, Known, Now
from fedfilt.home.rooms import UNKNOWN
from fedfilt.show.dashboard.folders import Watch
from fedfilt.show.shares import taken

SPANS = {"10min": (600.0, "10 min"), "1h": (3600.0, "1 h"), "6h": (21_600.0, "6 h"), "1d": (86_400.0, "1 day")}
SILENT = 60.0  # seconds without a message after which a device is called silent
LASTS = 1.5 * LINE_EVERY  # the most seconds that a line about a room's activity stands for
PIECES, BEFORE, CORRECTIONS, POINTS, NEIGHBOURS = 150, 3, 60, 60, 4  # shown at most
FIRST = 6  # corrections shown before the rest unfolds
COLOURS, HATCHES = 8, 3  # in home.css
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 110, 38, 12, 18, 20  # of a curve and its margins
APART = 26  # at least, between two numbers on a curve


def add_home(server: flask.Flask, watch: Watch) -> None:
    """Serve the page, and the part of it that it keeps fetching."""

    def answer(whole: bool) -> flask.Response:
        watch.refresh()
        if not watch.homes:
            return flask.Response("No home was found in the given folders.\n", 404)
        content = part(watch, flask.request.args)
        return flask.Response(page(content) if whole else content, headers={"Cache-Control": "no-store"})

    server.add_url_rule("/home", "home", lambda: answer(whole=True))
    server.add_url_rule("/_home", "part of home", lambda: answer(whole=False))


def page(content: str) -> str:
    """The page around its content."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>fedfilt: the home</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta name='color-scheme' content='light dark'><link rel='icon' href='_favicon.ico'>"
        f"<link rel='stylesheet' href='assets/home.css?v={__version__}'>"
        "<noscript><meta http-equiv='refresh' content='10'></noscript></head>"
        f"<body><p id='lost' class='note' role='status' hidden></p><div id='home'>{content}</div>"
        f"<script src='assets/home.js?v={__version__}'></script></body></html>"
    )


def part(watch: Watch, asked: Mapping[str, str]) -> str:
    """The part that is fetched again: the home and the time span that the reader chose, or the first ones."""
    homes = list(watch.homes)
    home = next((one for one in homes if home_key(one) == asked.get("home")), homes[0])
    names = [one.name for one in homes]
    choices = [
        {"key": home_key(one), "name": name if names.count(name) == 1 else f"{name} ({one.folder})", "now": one is home}
        for one, name in zip(homes, names, strict=True)
    ]
    return _template().render(shown(home, watch, asked.get("span", "")), homes=choices)


def home_key(home: Home) -> str:
    """The page's key for a home."""
    return hashlib.sha256(str(home.folder).encode()).hexdigest()[:12]


def shown(home: Home, watch: Watch, span: str = "") -> Table:
    """Everything the page says about a home."""
    corrections, decisions, changes = home.corrections, home.decisions, home.changes
    last = max((line.at for lines in (corrections, decisions, changes) for line in lines[-1:]), default=0.0)
    now = home.now or Now(last, home.name, (), 1.0, {}, {}, 0, {}, 0)
    if span not in SPANS:
        span = _fitting(decisions, now.at)
    by_room: dict[str, list[Decided]] = {room: [] for room in now.rooms}
    for line in decisions:
        if line.room in by_room and line.at <= now.at:
            by_room[line.room].append(line)
    by_device: dict[str, list[Changed]] = {device: [] for device in now.devices}
    for change in changes:
        if change.device in by_device and change.at <= now.at:
            by_device[change.device].append(change)
    learnt, why = _learnt(home, watch)
    silent = {name: words for name, device in now.devices.items() if (words := _silence(device, now.at))}
    return {
        "name": home.name,
        "key": home_key(home),
        "at": now.at,
        "known": home.now is not None,
        "runs": home.runs,
        "age": words_of(time.time() - home.written),
        "any_run": any(run.config for run in watch.runs),
        "notes": home.notes,
        "spans": [{"key": key, "words": words, "now": key == span} for key, (_, words) in SPANS.items()],
        "legend": [(label, _colour(label, now.labels)) for label in now.labels],
        "rooms": [_room(name, now, by_room[name], SPANS[span][0], silent) for name in now.rooms],
        "devices": [_device(name, now, by_device[name], silent, learnt.get(name)) for name in now.devices],
        "silent": list(silent),
        "why": why,
        "corrections": [_correction(one, now.labels) for one in corrections[: -CORRECTIONS - 1 : -1]],
        "first": FIRST,
        "given": len(corrections),
        "right": sum(one.said == one.label for one in corrections),
        "received": now.received,
        "dropped": sorted(now.dropped.items(), key=lambda item: -item[1]),
    }


# --- rooms ------------------------------------------------------------------------------------------------------------


@dataclass
class _Piece:
    """A period with one activity in a room."""

    activity: str
    begin: float
    end: float


def _room(name: str, now: Now, lines: Sequence[Decided], span: float, silent: Mapping[str, str]) -> Table:
    state = now.rooms[name].state
    activity = UNKNOWN if state is None else state.activity
    likely = sorted(state.probabilities.items(), key=lambda item: -item[1]) if state else []
    there = [device for device, known in now.devices.items() if known.status.room == name]
    pieces = _pieces(lines, now.at)
    return {
        "name": name,
        "activity": activity,
        "unknown": activity == UNKNOWN,
        "colour": _colour(activity, now.labels),
        "confidence": state.confidence if state else 0.0,
        "voters": state.devices if state else 0,
        "decided": state is not None,
        "ago": "" if state is None else ago(now.at - state.at),
        "others": [(label, share) for label, share in likely if label != activity and share >= 0.05][:2],
        "says": [_say(device, name, activity, now, silent.get(device, "")) for device in there],
        "stripe": _stripe(pieces, now.at - span, span, now.labels),
        "begin": now.at - span,
        "before": _before(pieces, activity)[:BEFORE],
    }


def _say(device: str, room: str, activity: str, now: Now, silent: str) -> Table:
    """What a device in a room says and whether the room agrees, or why the device has no vote."""
    said = now.rooms[room].says.get(device)
    if said is None:
        return {"device": device, "silent": silent or "nothing yet"}
    if silent or now.at - said.at > now.fresh_seconds:
        return {"device": device, "silent": silent or f"silent for {words_of(now.at - said.at)}"}
    agrees = "" if activity == UNKNOWN else "agrees" if said.label == activity else "disagrees"
    colour = _colour(said.label, now.labels)
    return {"device": device, "label": said.label, "share": said.share, "colour": colour, "agrees": agrees}


def _pieces(lines: Sequence[Decided], now: float) -> list[_Piece]:
    """A room's activities in order, with gaps where it did not decide."""
    found: list[_Piece] = []
    lines = sorted(lines)
    ends = [*(line.at for line in lines[1:]), now]
    for line, following in zip(lines, ends, strict=False):
        end = min(line.at + LASTS, following)
        if found and found[-1].activity == line.activity and found[-1].end >= line.at:
            found[-1].end = end
        else:
            found.append(_Piece(line.activity, line.at, end))
    return found


def _before(pieces: Sequence[_Piece], activity: str) -> list[tuple[str, float]]:
    """A room's earlier activities and when each began, newest first."""
    found: list[tuple[str, float]] = []
    for piece in reversed(pieces):
        if piece.activity not in (UNKNOWN, found[-1][0] if found else activity):
            found.append((piece.activity, piece.begin))
    return found


def _stripe(pieces: Sequence[_Piece], begin: float, span: float, labels: Sequence[str]) -> list[Table]:
    """The pieces since a time, as positions on a stripe in per cent."""
    pieces = [_Piece(one.activity, max(one.begin, begin), one.end) for one in pieces if one.end > max(one.begin, begin)]
    found = []
    for piece in pieces if len(pieces) <= PIECES else _coarse(pieces, begin, span):
        about = {"activity": piece.activity, "colour": _colour(piece.activity, labels)}
        place = {"left": 100 * (piece.begin - begin) / span, "width": 100 * (piece.end - piece.begin) / span}
        found.append({**about, **place, "lasts": words_of(piece.end - piece.begin)})
    return found


def _coarse(pieces: Sequence[_Piece], begin: float, span: float) -> list[_Piece]:
    """The activity that took most of the time in each of several equal parts of a span."""
    step = span / PIECES
    times = [defaultdict[str, float](float) for _ in range(PIECES)]
    for piece in pieces:
        for number in range(int((piece.begin - begin) / step), min(int((piece.end - begin) / step) + 1, PIECES)):
            inside = min(piece.end, begin + (number + 1) * step) - max(piece.begin, begin + number * step)
            times[number][piece.activity] += inside
    found: list[_Piece] = []
    for number, spent in enumerate(times):
        if sum(spent.values()) > step / 2:
            activity, start = max(spent, key=spent.__getitem__), begin + number * step
            if found and found[-1].activity == activity and found[-1].end > start - step / 2:
                found[-1].end = start + step
            else:
                found.append(_Piece(activity, start, start + step))
    return found


def _fitting(decisions: Sequence[Decided], now: float) -> str:
    """The time span, up to an hour, that holds all decisions."""
    known = now - min((line.at for line in decisions), default=now)
    return "10min" if known <= SPANS["10min"][0] else "1h"


def _colour(label: str, labels: Sequence[str]) -> str:
    """The CSS classes of a label's colour: the plain colours first, then the same ones hatched."""
    if label not in labels:
        return "unknown"
    number = labels.index(label)
    return f"c{number % COLOURS} h{number // COLOURS % HATCHES}"


def _correction(one: Corrected, labels: Sequence[str]) -> Table:
    return {**one._asdict(), "seconds": words_of(one.end - one.begin), "colour": _colour(one.label, labels)}


# --- devices ----------------------------------------------------------------------------------------------------------


def _device(
    name: str, now: Now, changes: Sequence[Changed], silent: Mapping[str, str], learnt: list[Table] | None
) -> Table:
    status = now.devices[name].status
    points: list[tuple[float, int, float]] = []  # when it got a new model, of which round, and its accuracy
    for at, one in [*((change.at, change.status) for change in sorted(changes)), (now.at, status)]:
        if one.accuracy is not None and (not points or points[-1][1:] != (one.round, one.accuracy)):
            points.append((at, one.round, one.accuracy))
    return {
        "name": name,
        "status": status,
        "silent": silent.get(name, ""),
        "curve": _curve(points[-POINTS:], now.at) if points else None,
        "learnt": learnt,
    }


def _silence(device: Known, now: float) -> str:
    """How long a device has been silent, in words; "" if it has not been silent."""
    if device.seen is None:
        return "not heard from yet"
    if not device.status.online:
        return f"offline for {words_of(now - device.seen)}"
    return f"silent for {words_of(now - device.seen)}" if now - device.seen > SILENT else ""


def _curve(points: Sequence[tuple[float, int, float]], now: float) -> Table:
    """A drawing of a device's accuracy over time: each model's accuracy holds until the next model."""
    begin = points[0][0]
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at: float) -> float:
        return LEFT + wide * (at - begin) / max(now - begin, 1.0)

    def y(accuracy: float) -> float:
        return TOP + high * (1 - accuracy)

    dots: list[Table] = []
    path, free = f"M{LEFT} {y(points[0][2]):.1f}", -math.inf
    for at, round, accuracy in points:
        path += f"H{x(at):.1f}V{y(accuracy):.1f}"
        numbered = x(at) >= free
        free = x(at) + APART if numbered else free
        dots.append({"x": x(at), "y": y(accuracy), "at": at, "round": round, "of": accuracy, "numbered": numbered})
    return {
        "path": f"{path}H{x(now):.1f}",
        "dots": dots,
        "marks": [(share, y(share)) for share in (0.0, 0.5, 1.0)],
        "begin": begin,
        "size": (WIDTH, HEIGHT, LEFT, WIDTH - RIGHT),
        "change": points[-1][2] - points[0][2],
    }


def _learnt(home: Home, watch: Watch) -> tuple[dict[str, list[Table]], str]:
    """How much devices took from each other in the last round, by name; or a sentence on why that is unknown."""
    folder = home.folder.parent
    run = next((run for run in watch.runs if run.config and run.folder == folder / "run"), None)
    members = folder / "deployment.toml"
    if run is None or not any(members.is_relative_to(path) for path in watch.paths):
        return {}, "To see who learns from whom, give the dashboard the folder that holds the deployment's run."
    try:
        table = read_toml(members)
        names = [str(device["name"]) for device in table["device"]]
        found = taken(run, range(len(names)), most=NEIGHBOURS)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return {}, f"It is unknown who learns from whom: {error}."
    learnt = {}
    for row, shares in found.items():
        learnt[names[row]] = [
            {"who": "itself" if one.device == row else names[one.device], "share": one.share, "linked": one.linked}
            for one in shares
            if one.device < len(names)
        ]
    return learnt, "" if run.rounds else "No round has been played yet; shown is what the first one will do."


# --- words ------------------------------------------------------------------------------------------------------------


def words_of(seconds: float) -> str:
    """A duration in words.

    >>> [words_of(seconds).split() for seconds in (42, 200, 7200, 3e5)]
    [['42', 's'], ['3', 'min'], ['2', 'h'], ['3', 'days']]
    """
    for size, word in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 1.95 * size:
            return f"{seconds / size:.0f}\N{NO-BREAK SPACE}{word}"
    return f"{max(seconds, 0):.0f}\N{NO-BREAK SPACE}s"


def ago(seconds: float) -> str:
    """How long ago something happened."""
    return "just now" if seconds < 10 else f"{words_of(seconds)} ago"


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _clock(at: float, now: float) -> str:
    """Wall-clock time, with the date if it is not today. In the browser, the page's script does the same."""
    when, today = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M" if when[:3] == today[:3] else "%d %b %H:%M", when)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


@cache
def _template() -> Any:
    around = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    around.filters |= {"stamp": _stamp, "clock": _clock, "percent": _percent}
    return around.from_string(files("fedfilt.show.dashboard").joinpath("home.html").read_text(encoding="utf-8"))
