"""Draws docs/building.svg, the moving picture of the README: a building that learns, round by round, from real runs.

Every tested round of a run is a frame: a ring per device, filled as far as the device is right on its own test, and the
mean over devices beside those of other runs. The picture of the README takes two minutes:

    fedfilt compare experiments/rotated.toml --rules mu=1,fedavg,local,finetune --out runs/rotated-rooms \
        rounds=60 evaluation.every=1 samples.global_test=100
    python docs/animation.py runs/rotated-rooms/{mu=1,finetune,fedavg,local}/seed-0
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedfilt import Records
from fedfilt._types import Array
from fedfilt.show.figures.places import floor_plan

WIDTH, HEIGHT = 880, 436
PLAN, SIDE = (18.0, 18.0), 400.0  # corner and side of the floor plan
LEFT, RIGHT, TOP, BOTTOM = 492.0, 748.0, 152.0, 370.0  # of the curves
STEP, HOLD = 0.22, 4.0  # seconds of a round, and of the last one
RADIUS = 15.0  # of a device's ring
AROUND = 2 * np.pi * RADIUS
COLD_TO_WARM = ("#4A3F9F", "#9140A0", "#CC4778", "#EE7B4F", "#F9B233")  # lighter step by step: it reads in grey too

WORDS = {"fedavg": "one shared model", "local": "each on its own", "finetune": "shared, fine-tuned"}

STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:14px;fill:var(--ink)}
svg{--ink:#1F2328;--soft:#59636E;--faint:#D1D9E0;--page:#FFFFFF;--room:#F6F8FA;--wall:#8C959F}
@media (prefers-color-scheme:dark){
svg{--ink:#F0F6FC;--soft:#9198A1;--faint:#3D444D;--page:#0D1117;--room:#151B23;--wall:#656C76}}
.page{fill:var(--page)}.room{fill:var(--room);stroke:var(--wall);stroke-width:2}.soft{fill:var(--soft)}
.link{stroke:var(--faint);stroke-width:1.5}
.talk{stroke:var(--wall);stroke-width:2;stroke-linecap:round;stroke-dasharray:.1 14}
.track,.ring{fill:none;stroke-width:6}.track{stroke:var(--faint)}.core{stroke:var(--room);stroke-width:2}
.grid{stroke:var(--faint);stroke-width:1}.curve{fill:none;stroke-width:2.5;stroke-linejoin:round}.now{stroke:var(--soft)}
.big{font-size:34px;font-weight:600;font-variant-numeric:tabular-nums}.end{text-anchor:end}.middle{text-anchor:middle}
.small{font-size:13px}
.turned{font-size:66px;font-weight:700;text-anchor:middle;fill:var(--ink);opacity:.07}
.name{stroke:var(--room);stroke-width:5;stroke-linejoin:round;paint-order:stroke}
@media (prefers-reduced-motion:reduce){*{animation:none!important}.talk,.now{display:none}}
"""


class Film(NamedTuple):
    """What is shown: accuracies (R, K) of the devices in each tested round, and the means of other runs."""

    rounds: list[int]
    devices: Array
    means: list[tuple[str, str, str, Array]]  # label, colour, dashes, (R,)


def film(runs: Sequence[Records]) -> Film:
    """The first run's devices, and the mean of all runs, in the rounds in which all were tested."""
    tested = [{line["round"]: line["mixed"]["local"]["devices"] for line in run.tested("local")} for run in runs]
    rounds = sorted(set.intersection(*(set(lines) for lines in tested)))
    if len(rounds) < 2:
        raise ValueError("the runs need two tested rounds in common: evaluation.every=1")
    dashes = {"solid": "none", "dash": "8 4", "dot": "2 4"}
    means = [
        (
            WORDS.get(run.rule, run.rule.replace("mu=", "mixed, μ = ")),
            run.look.colour,
            dashes.get(run.look.dash, "8 4 2 4"),
            np.array([np.nanmean(lines[number]) for number in rounds]),
        )
        for run, lines in zip(runs, tested, strict=True)
    ]
    return Film(rounds, np.array([tested[0][number] for number in rounds]), means)


def drawn(runs: Sequence[Records]) -> str:
    """The whole SVG."""
    run, shown = runs[0], film(runs)
    if run.graph is None:
        raise ValueError(f"{run.folder} has no graph.json")
    low = np.floor(5 * min(mean.min() for *_, mean in shown.means)) / 5
    high = np.ceil(5 * max(mean.max() for *_, mean in shown.means)) / 5
    clock = Clock(len(shown.rounds))
    said = (
        f"{run.graph.count} devices learn for {shown.rounds[-1]} rounds. At the end they are right in "
        + ", ".join(f"{mean[-1]:.0%} of cases ({label})" for label, _, _, mean in shown.means)
        + ", on their own tests."
    )
    body = [*_building(run, shown, clock), *_numbers(shown, clock), *_curves(shown, clock, low, high), *_scale()]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(said)}</title>",
            f"<style>{STYLE}{clock.rules()}</style>",
            f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="12"/>',
            *body,
            "</svg>\n",
        ]
    )


class Clock:
    """Turns values per frame into CSS animations that all start together, play once, hold, and begin anew.

    Nothing moves where people ask for less motion: what stands in the elements themselves is the last frame.
    """

    def __init__(self, frames: int) -> None:
        self.frames, self._rules = frames, list[str]()
        self.seconds = frames * STEP + HOLD
        self.played = 100 * frames * STEP / self.seconds  # per cent

    def animated(self, css: Callable[[int], str], timing: str = "linear") -> str:
        """The attributes of an element that goes through what `css` says of frames 0, 1, ..."""
        name = f"a{len(self._rules)}"
        at = [f"{self.played * frame / (self.frames - 1):.4g}%{{{css(frame)}}}" for frame in range(self.frames)]
        return self._element(name, "".join(at) + f"to{{{css(self.frames - 1)}}}", timing, css(self.frames - 1))

    def moved(self, start: str, end: str, timing: str = "linear", last: str = "") -> str:
        """The attributes of an element that goes evenly from one CSS to another; `last` adds to the end."""
        frames = f"from{{{start}}}{self.played:.4g}%{{{end}}}to{{{end}}}"
        return self._element(f"a{len(self._rules)}", frames, timing, end + last)

    def _element(self, name: str, frames: str, timing: str, last: str) -> str:
        self._rules.append(
            f"@keyframes {name}{{{frames}}}.{name}{{{last};animation:{name} {self.seconds:.4g}s {timing} infinite}}"
        )
        return name

    def rules(self) -> str:
        """All keyframes, and the dots that travel along links while rounds go on."""
        end = f"{self.played:.4g}"
        talk = f"@keyframes talk{{from{{opacity:.9}}{end}%{{opacity:.9;stroke-dashoffset:-420}}to{{opacity:0}}}}"
        return talk + f".talk{{opacity:0;animation:talk {self.seconds:.4g}s linear infinite}}" + "".join(self._rules)


def colour(share: float) -> str:
    """From cold at 0 to warm at 1."""
    stops = np.array([[int(code[i : i + 2], 16) for i in (1, 3, 5)] for code in COLD_TO_WARM])
    place = np.clip(share, 0, 1) * (len(stops) - 1)
    mixed = [np.interp(place, range(len(stops)), channel) for channel in stops.T]
    return "#" + "".join(f"{round(value):02X}" for value in mixed)


def _building(run: Records, shown: Film, clock: Clock) -> Iterable[str]:
    plan = floor_plan(run.graph)
    boxes = np.array([box for _, *box in plan.rooms]) if plan.rooms else np.empty((0, 4))
    ends = np.vstack([plan.places, boxes[:, :2], boxes[:, 2:]])
    corner, span = np.array([ends[:, 0].min(), ends[:, 1].max()]), np.ptp(ends, axis=0).max()

    def seen(points: Array | list[tuple[float, float]]) -> Array:
        return np.array(PLAN) + (np.asarray(points) - corner) * [1, -1] * (SIDE / span)

    places, turn, names = seen(plan.places), _turned(run), []
    for number, (label, x0, y0, x1, y1) in enumerate(plan.rooms):
        (left, top), (right, bottom) = seen([(x0, y1), (x1, y0)])
        x, y = (left + right) / 2, (top + bottom) / 2
        inside = np.all((places >= [left, top]) & (places <= [right, bottom]), axis=1)
        places[inside] = [x, y - 6] + 0.86 * (places[inside] - [x, y])  # room for the words below
        size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
        yield f'<rect class="room" x="{left:.1f}" y="{top:.1f}" {size} rx="6"/>'
        if turn is not None:
            label = f"digits turned by {turn * number}°" if number else "digits upright"
            at = f"translate({x:.1f} {y - 6:.1f}) rotate({turn * number})"
            yield f'<text class="turned" transform="{at}" dy=".36em">4</text>'
        names.append(f'<text class="soft middle name" x="{x:.1f}" y="{bottom - 10:.1f}">{escape(label)}</text>')
    for kind in ("link", "talk"):
        for a, b in run.graph.edges:
            (x1, y1), (x2, y2) = places[a], places[b]
            yield f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    yield from names
    for (x, y), right in zip(places, shown.devices.T, strict=True):
        right = np.nan_to_num(right)

        def look(frame: int, right: Array = right) -> str:
            paint = colour(right[frame])
            return f"stroke:{paint};fill:{paint};stroke-dashoffset:{AROUND * (1 - right[frame]):.1f}"

        yield f'<g class="{clock.animated(look)}" transform="translate({x:.1f} {y:.1f})">'
        yield f'<circle class="page" r="{RADIUS + 4}" stroke="none"/><circle class="track" r="{RADIUS}"/>'
        yield f'<circle class="ring" r="{RADIUS}" stroke-dasharray="{AROUND:.1f}" transform="rotate(-90)"/>'
        yield f'<circle class="core" r="{RADIUS - 5}"/></g>'


def _turned(run: Records) -> int | None:
    """By how many degrees digits are turned from room to room, if they are."""
    partition = run.config.get("partition", {})
    return int(partition.get("degrees", 0)) or None if partition.get("name") == "rotated" else None


def _numbers(shown: Film, clock: Clock) -> Iterable[str]:
    """Round, mean and worst device, each a strip of numbers behind a window."""
    devices = shown.devices
    columns = {
        "round": [str(number) for number in shown.rounds],
        "mean of devices": [f"{value:.0%}" for value in np.nanmean(devices, axis=1)],
        "worst device": [f"{value:.0%}" for value in np.nanmin(devices, axis=1)],
    }
    yield f'<clipPath id="window"><rect x="{LEFT - 40}" y="46" width="{WIDTH - LEFT + 40}" height="42"/></clipPath>'
    last = len(shown.rounds) - 1
    for (words, texts), x in zip(columns.items(), (448, 548, 700), strict=True):
        yield f'<text class="soft" x="{x}" y="36">{words}</text>'
        strip = clock.moved("transform:translateY(0)", f"transform:translateY({-50 * last}px)", f"steps({last})")
        numbers = "".join(f'<text class="big" x="{x}" y="{78 + 50 * i}">{text}</text>' for i, text in enumerate(texts))
        yield f'<g clip-path="url(#window)"><g class="{strip}">{numbers}</g></g>'


def _curves(shown: Film, clock: Clock, low: float, high: float) -> Iterable[str]:
    """The mean of every run; a sheet in the colour of the page draws back from them."""
    x = np.interp(shown.rounds, [shown.rounds[0], shown.rounds[-1]], [LEFT, RIGHT])
    for _, ink, dashes, mean in reversed(shown.means):
        y = np.interp(mean, [low, high], [BOTTOM, TOP])
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        yield f'<polyline class="curve" stroke="{ink}" stroke-dasharray="{dashes}" points="{points}"/>'
    wide = RIGHT - LEFT
    sheet = clock.moved("transform:scaleX(1)", "transform:scaleX(0)", last=f";transform-origin:{RIGHT + 2}px 0")
    yield f'<rect class="page {sheet}" x="{LEFT}" y="{TOP - 4}" width="{wide + 2}" height="{BOTTOM - TOP + 8}"/>'
    for value in np.arange(round(5 * low), round(5 * high) + 1) / 5:
        y = np.interp(value, [low, high], [BOTTOM, TOP])
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="soft end" x="{LEFT - 8}" y="{y + 5:.1f}">{value:.0%}</text>'
    now = clock.moved("transform:translateX(0)", f"transform:translateX({wide}px)")
    yield f'<line class="now {now}" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{BOTTOM}"/>'
    yield f'<text class="soft" x="448" y="{TOP - 22}">right on its own test, mean of devices</text>'
    heights = np.array([np.interp(mean[-1], [low, high], [BOTTOM, TOP]) for *_, mean in shown.means])
    order = np.argsort(heights)
    for above, below in pairwise(order):
        heights[below] = max(heights[below], heights[above] + 34)  # two lines of words each
    ending = clock.moved("opacity:0", "opacity:1", "steps(1)")
    for (label, ink, dashes, mean), y in zip(shown.means, heights, strict=True):
        x, end = RIGHT + 8, RIGHT + 30
        yield f'<path class="curve" stroke="{ink}" stroke-dasharray="{dashes}" d="M{x} {y - 5:.1f}H{end}"/>'
        yield f'<text class="{ending}" x="{end + 6}" y="{y:.1f}" font-weight="600">{mean[-1]:.0%}</text>'
        yield f'<text class="soft small" x="{x}" y="{y + 15:.1f}">{escape(label)}</text>'


def _scale() -> Iterable[str]:
    """What the colour and the ring of a device say."""
    stops = "".join(f'<stop offset="{i / 4}" stop-color="{code}"/>' for i, code in enumerate(COLD_TO_WARM))
    yield f'<linearGradient id="scale">{stops}</linearGradient>'
    yield '<text class="soft end" x="570" y="412">a device: 0%</text>'
    yield f'<rect x="578" y="402" width="{RIGHT - 578}" height="10" rx="5" fill="url(#scale)"/>'
    yield f'<text class="soft" x="{RIGHT + 8}" y="412">100% right</text>'


def main() -> None:
    """Write the picture of the runs that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders: the building's first, then others")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("building.svg"))
    given = parser.parse_args()
    given.out.write_text(drawn([Records(folder) for folder in given.runs]))
    print(f"{given.out}: {given.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
