"""What the scheduler plans for the first round."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedfilt.rounds.participation import Drawing
from fedfilt.runs.build import Run
from fedfilt.system.hardware import heterogeneity


def first_round(run: Run) -> dict[str, Any]:
    """What the scheduler plans for the first round: each device's settings, seconds, joules and outcome."""
    size = run.update_bytes
    now = run.hardware.at(run.config.seed, 1)
    scheduler = run.config.scheduler
    if isinstance(run.script, Drawing):
        scheduler = run.script.asked(scheduler, run.config.seed, 1, now.samples)[1]
    schedule = scheduler(now, size)
    devices = []
    for i, plan in enumerate(schedule.plans):
        band = plan.bandwidth_hz or now.bandwidth_hz[i]
        given = replace(now, clock_hz=now.clock_hz * plan.clock, bandwidth_hz=np.full(now.count, band))
        work = plan.epochs * plan.data_fraction
        sending = plan.density * size if plan.epochs else 0.0
        devices.append(
            {
                "device": i,
                "room": "" if run.graph.rooms is None else run.graph.rooms[i].item(),
                "epochs": plan.epochs,
                "data_fraction": plan.data_fraction,
                "density": plan.density,
                "compute_seconds": float(work * given.compute_seconds()[i]),
                "send_seconds": float(given.send_seconds(sending)[i]),
                "joules": float(work * given.compute_joules()[i] + given.send_joules(sending)[i]),
                "outcome": plan.outcome,
            }
        )
    last = max(d["compute_seconds"] + d["send_seconds"] for d in devices)
    end = schedule.deadline if math.isfinite(schedule.deadline) else last
    for d in devices:
        d["idle_seconds"] = max(0.0, end - d["compute_seconds"] - d["send_seconds"]) if d["epochs"] else 0.0
    full = (3 * now.compute_seconds() + now.send_seconds(size))[now.samples > 0]
    deadline = schedule.deadline if math.isfinite(schedule.deadline) else None
    return {"deadline": deadline, "heterogeneity": heterogeneity(full), "devices": devices}
