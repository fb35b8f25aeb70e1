"""Many rounds in a row: what memory, files, CPU and time a round do in the long run.

`local` plays 10,000 rounds of 20 devices in a run folder, with 5 % of the devices offline and 5 % away at all times: in
turn each is out of reach for a while, leaves, and joins again. `resident` plays 2,000 rounds of four resident devices
and their edge server, with TLS and keys. The processes are watched from outside. CPU seconds a round tell a growing
amount of work from a machine that others use too.

Each sample goes to FOLDER/soak.jsonl at once. A soak that was ended goes on in the same folder from its checkpoint.
Usage: python benchmarks/soak.py local|resident [--rounds N] [--folder soak-MODE] [--out results/soak/MODE.json]
"""

import argparse
import json
import os
import statistics
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from common import where
from fedfilt.flower.deploy.supervise import free_port, running
from fedfilt.runs.records import Records
from processes import FEDFILT, PATH, TICKS, device, said, server, tree, until, written

SAMPLES = 50  # in a soak
TURN = 10  # rounds that a device is offline, and that one is away
ROUNDS = {"local": 10_000, "resident": 2_000}

LOCAL = """
data = "digits"
rounds = {rounds}
{events}
[model]
name = "logistic"

[samples]
train = 30
local_test = 10
global_test = 100

[graph]
name = "rooms"
rooms = 5
devices = 20

[evaluation]
every = 100

[engine]
workers = 1
"""

RESIDENT = """
data = "digits"
rounds = {rounds}

[model]
name = "mlp"
hidden = 8

[samples]
train = 20
local_test = 10
global_test = 40

[partition]
name = "labels"
per_device = 3

[graph]
name = "rooms"
rooms = 1
devices = 4

[scheduler]
name = "everything"
epochs = 1
density = 0.2

[evaluation]
every = 100

[engine]
name = "flower"
"""


def events(rounds, devices=20):
    """Every ten rounds one device of 20 is offline, and another leaves while the one that left before comes back."""
    found = []
    for turn, first in enumerate(range(TURN, rounds - TURN, TURN)):
        drops, leaves = turn % devices, (turn + devices // 2) % devices
        found.append({"round": first, "offline": drops, "until": first + TURN})
        found.append({"round": first, "leave": leaves} | ({"join": (leaves - 1) % devices} if turn else {}))
    return "events = [\n" + "".join(f"  {_inline(event)},\n" for event in found) + "]\n"


def _inline(event):
    return "{ " + ", ".join(f"{key} = {value}" for key, value in event.items()) + " }"


# --- watching -----------------------------------------------------------------------------------------------------


def kind(command):
    """What a process of ours is."""
    names = {
        "deploy.superlink": "SuperLink",
        "deploy server": "supervisor",
        "deploy device": "device",
        "-m fedfilt run": "run",
    }
    return next((name for words, name in names.items() if words in command), "server app" if "flwr" in command else "")


def looked_at(pid):
    """Memory, open files, threads and CPU seconds of a process; None if it has ended."""
    place = Path("/proc") / str(pid)
    try:
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        return {
            "resident_bytes": int(status["VmRSS"].split()[0]) * 1024,
            "files": len(list((place / "fd").iterdir())),
            "threads": int(status["Threads"]),
            "cpu_seconds": (int(fields[11]) + int(fields[12])) / TICKS,
        }
    except (OSError, KeyError):
        return None


def sizes(folder):
    """By file, its bytes; by folder `flower`, of which we write nothing, the sum."""
    found = {}
    for path in folder.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() else None
        except OSError:  # just replaced
            continue
        if size is not None and not path.name.endswith(".tmp"):
            name = path.relative_to(folder)
            key = "/".join(name.parts[: name.parts.index("flower") + 1]) if "flower" in name.parts else str(name)
            found[key] = found.get(key, 0) + size
    return found


def played(folder):
    """Rounds that a run folder holds."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def sample(rounds, pids, folder):
    processes = {}
    for pid in pids:
        for one, command in tree(pid):
            if (name := kind(command)) and (found := looked_at(one)):
                processes[f"{name} {one}"] = found
    files = sizes(folder)
    return {
        "time": time.time(),
        "load": os.getloadavg()[0],
        "round": rounds,
        "processes": processes,
        "files": len(files),
        "bytes": sum(files.values()),
        "largest": dict(sorted(files.items(), key=lambda item: -item[1])[:12]),
    }


def watch(pids, run, folder, rounds, log):
    """Sample the processes and the folder every so many rounds until all are played, or until they end."""
    step, next_round = max(rounds // SAMPLES, 1), 0
    while (now := played(run)) < rounds:
        if not any(tree(pid)[1:] or looked_at(pid) for pid in pids):
            raise RuntimeError(f"the processes ended after round {now}")
        if now >= next_round:
            with log.open("a") as file:
                file.write(json.dumps(sample(now, pids, folder)) + "\n")
            next_round = now - now % step + step
        time.sleep(0.1)
    with log.open("a") as file:
        file.write(json.dumps(sample(rounds, pids, folder)) + "\n")


# --- the two soaks ------------------------------------------------------------------------------------------------


def local(folder, rounds):
    """One process that plays a run."""
    experiment, run = folder / "experiment.toml", folder / "run"
    if played(run) >= rounds:
        return run
    experiment.write_text(LOCAL.format(rounds=rounds, events=events(rounds)))
    command = [*FEDFILT, "run", str(experiment), "--out", str(run), *(["--resume"] if run.exists() else [])]
    with running(command, folder / "home", folder / "run.log", {"PYTHONPATH": PATH}) as process:
        watch([process.pid], run, run, rounds, folder / "soak.jsonl")
        process.wait(600)
    return run


def resident(folder, rounds):
    """An edge server and four devices."""
    experiment, building = folder / "experiment.toml", folder / "building"
    run = building / "server" / "run"
    if played(run) >= rounds:
        return run
    experiment.write_text(RESIDENT.format(rounds=rounds))
    if not building.exists():
        written(experiment, building, free_port())
    folders = sorted((building / "devices").iterdir())
    with ExitStack() as stack:
        first = stack.enter_context(server(building))
        until(lambda: said(building / "server.log", "devices are online"), "the edge server's start", 120)
        pids = [first.pid, *(stack.enter_context(device(one)).pid for one in folders)]
        watch(pids, run, building, rounds, folder / "soak.jsonl")
        first.wait(120)
    return run


# --- what came of it ----------------------------------------------------------------------------------------------


def by_kind(one, what):
    """The sum over the processes of each kind."""
    found = {}
    for name, values in one["processes"].items():
        word = name.rpartition(" ")[0]
        found[word] = found.get(word, 0) + values[what]
    return found


def concluded(samples, run):
    """Figures of an early and a late part of the rounds, and how long it takes to read the folder."""
    most = max(len(one["processes"]) for one in samples)
    if not most:
        raise RuntimeError("no process was recognised by its command line, so none was measured: see kind()")
    last = next(one for one in reversed(samples) if len(one["processes"]) == most)
    same = [one for one in samples if one["processes"].keys() == last["processes"].keys()]  # nobody was replaced
    parts = {"early": _part(same, 0.1, 0.3), "late": _part(same, 0.8, 1.0)}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    start = time.process_time()
    records = Records(run)
    records.moment()
    return parts | {
        "median_round_seconds": _tenths([line["seconds"] for line in lines], samples[-1]["round"]),
        "reading_cpu_seconds": round(time.process_time() - start, 3),
        "notes": list(records.notes),
    }


def _tenths(seconds, rounds):
    """The median of each tenth of the rounds."""
    tenth = max(rounds // 10, 1)
    return [round(statistics.median(seconds[at : at + tenth]), 4) for at in range(0, rounds, tenth)]


def _part(samples, low, high):
    """Medians over the samples from a share of the rounds to another, and CPU seconds a round between their ends."""
    last = samples[-1]["round"]
    chosen = [one for one in samples if low * last <= one["round"] <= high * last]
    start, end = chosen[0], chosen[-1]
    rounds = max(end["round"] - start["round"], 1)
    spent = {
        word: (value - by_kind(start, "cpu_seconds").get(word, 0)) / rounds
        for word, value in by_kind(end, "cpu_seconds").items()
    }
    return {
        "rounds": [start["round"], end["round"]],
        "load": statistics.median(one["load"] for one in chosen),
        "seconds_a_round": (end["time"] - start["time"]) / rounds,
        "cpu_seconds_a_round": spent,
        "resident_bytes": _medians(chosen, "resident_bytes"),
        "open_files": _medians(chosen, "files"),
        "threads": _medians(chosen, "threads"),
        "files": end["files"],
        "bytes": end["bytes"],
    }


def _medians(chosen, what):
    words = by_kind(chosen[-1], what)
    return {word: statistics.median(by_kind(one, what).get(word, 0) for one in chosen) for word in words}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=tuple(ROUNDS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rounds = options.rounds or ROUNDS[options.mode]
    folder = (options.folder or Path(f"soak-{options.mode}")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    run = {"local": local, "resident": resident}[options.mode](folder, rounds)
    samples = [json.loads(line) for line in (folder / "soak.jsonl").open()]
    found = concluded(samples, run)
    result = {"mode": options.mode, "when": datetime.now(UTC).isoformat(timespec="seconds")} | where() | found
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result | {"samples": samples}) + "\n")


if __name__ == "__main__":
    main()
