import hashlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedfilt._types import Array, Sparsifier
from fedfilt.clients.plain import Plain
from fedfilt.data.samples import FederatedData
from fedfilt.engines.flower import messages
from fedfilt.engines.flower._compat import short
from fedfilt.engines.flower.exchange import Answer, exchange
from fedfilt.engines.flower.nodes import Nodes
from fedfilt.engines.flower.simulation import simulated_grid
from fedfilt.rounds.types import Cost, Reply, State, Tests
from fedfilt.sparsifiers.top_k import TopK
from fedfilt.system import blind
from fedfilt.system.lateness import Lateness
from fedfilt.system.orders import Job
from fedfilt.system.wire import unpack
from fedfilt.training.client import Client, is_personal
from fedfilt.training.goal import NO_LABEL
from fedfilt.training.sgd import DIVERGED, Training
from fedfilt.training.work import Desk, Own, Tested, examine

TIMEOUT = 600.0

log = logging.getLogger("fedfilt")


class Seen(NamedTuple):
    """What is known about a device from its last replies."""

    round: int = 0  # of its last good answer; 0: none
    at: float = 0.0  # when that came, in seconds since 1970
    samples: int | None = None  # that it last said it had trained on, if it does
    version: str = ""  # of fedfilt on it
    clock_ahead: float | None = None  # seconds, if it knows
    problem: str = ""  # why its last answer was none


class Flower:
    """Trains devices over a Flower Grid, real ones in a deployment or simulated ones.

    What a device has not sent yet stays on its disk, so replies have no residual. Without a `grid`, Flower's simulation
    runs in this process. With `real_time`, the late policy works with real seconds, and costs are measured.

    >>> from fedfilt.system.orders import Plan
    >>> data = FederatedData.from_arrays([(np.eye(2), [0, 1]), (np.eye(2), [0, 1])])
    >>> from fedfilt.models import Logistic
    >>> with Flower(data, Logistic((2,), 2), Training(), seed=0, workers=1) as engine:
    ...     row = np.zeros(engine.layout.size, np.float32)
    ...     [reply.samples for reply in engine.train([Job(1, 1, row, Plan(epochs=1))], math.inf)]
    [2]
    """

    def __init__(
        self,
        data: FederatedData,
        model: Any,
        training: Training,
        seed: int = 0,
        workers: int = 0,
        sparsifier: Sparsifier = TopK(),  # noqa: B008 (frozen)
        client: Client = Plain(),  # noqa: B008 (frozen)
        *,
        grid: Grid | None = None,
        nodes: Nodes | None = None,
        timeout: float = TIMEOUT,
        real_time: Lateness | None = None,
        spread: float = 0.0,
        grace: float = 0.0,
        about: str = "",
        begun: bool = False,
        kept: Path | None = None,
        sealing: blind.Sealing | None = None,
    ) -> None:
        """`real_time` is the late policy; `spread` is the σ of its margin; `grace` is the extra time after a deadline.

        `about` says which experiment it is. The first round waits for devices to come online, unless it has `begun`.
        The folders of simulated devices are in `kept`, so that the run can continue after a kill.
        With `sealing`, rows are sealed: see `fedfilt.system.blind`.
        """
        self._desk = Desk.of(data, model, training, seed, sparsifier, client)
        self.layout, self.data, self._classes = self._desk.trainer.layout, data, self._desk.classes
        self._sealing, whole = sealing, sparsifier.full_bytes(self._desk.width)
        self._most_bytes = whole if sealing is None else sealing.cut.whole_bytes
        method = "" if isinstance(client, Plain) else f"|{client}"
        named = f"{data.hash}|{seed}|{training}|{self.layout.slots}{method}"
        self._run = hashlib.sha256(named.encode()).hexdigest()[:16]
        self._timeout, self._real_time, self._spread, self._grace = timeout, real_time, spread, grace
        self._round, self._begun, self._about = 0, begun, about
        self.seen: dict[int, Seen] = {}  # what each device said last
        self._stack = ExitStack()
        if grid is None:
            grid = self._stack.enter_context(simulated_grid(self._desk, data, workers, kept))
        self._grid = grid
        self._nodes = Nodes(grid, data.count) if nodes is None else nodes

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Send every device its job and yield replies as they arrive, usable or not."""
        by_device = {job.device: job for job in jobs}
        online = self._nodes.online() if self._begun else self._nodes.wait(by_device.keys(), self._timeout)
        self._begun = True
        self._round = jobs[0].round if jobs else self._round
        seconds, enough = self._limits(deadline, len(by_device))
        sent = {
            device: messages.addressed(
                "train",
                online[device],
                messages.train_order(self._run, job._replace(model=self._sent(job.model)), self._about, self._sealing),
                self._round,
                seconds + 60,
            )
            for device, job in by_device.items()
            if device in online
        }
        replies = [_absent(device, "offline") for device in by_device if device not in sent]
        for reply in replies:
            self._note(reply.device, reply.absent)
        for answer in exchange(self._grid, sent, seconds, enough, restarted=self._nodes.restarted):
            replies.append(self._reply(by_device[answer.device], answer))
        replies = _weighed(replies)
        end = max((reply.cost.seconds for reply in replies), default=0.0)
        for reply in replies:
            if self._real_time is None or reply.absent:
                yield reply._replace(cost=Cost())
            else:
                idle = max(0.0, end - reply.cost.seconds)
                yield reply._replace(cost=reply.cost._replace(idle_seconds=idle), end=end)

    def test(self, state: State) -> Tests:
        """Send every device its model, to keep and to test; a device that does not reply gets a matrix of zeros."""
        online, models = self._nodes.online(), state.models
        accepted = np.zeros(len(models), np.int64) if state.accepted is None else state.accepted
        sent = {
            device: messages.addressed(
                "test",
                online[device],
                messages.test_order(
                    self._run, self._round, device, self._sent(row), self._about, self._sealing, int(accepted[device])
                ),
                self._round,
                self._timeout + 60,
            )
            for device, row in enumerate(models)
            if device in online
        }
        asked = self._desk.trainer.goal, self._classes
        none = Tested(asked[0].nothing(self._classes), math.nan)
        own, everybody = [none] * len(models), [none] * len(models)
        for answer in exchange(self._grid, sent, self._timeout, restarted=self._nodes.restarted):
            device = answer.device
            if answer.content is None:
                self._note(device, answer.problem)
                continue
            where = self._run, self._round, device, asked
            try:
                found = messages.read_test_reply(answer.content, *where, self._sizes(device))
                self._note(device, "", answer.content)
            except messages.BadMessage as error:
                log.warning("the test of device %d is ignored: %s", device, error)
                self._note(device, short(f"refused: {error}"))
                continue
            own[device], everybody[device] = found[0] or none, found[1] or none
        if self.data.elsewhere and self._sealing is None and not is_personal(self._desk.client):
            everybody = self._public_tests(models)
        return Tests.stack(None if self.data.local_test is None else own, everybody)

    def _sent(self, row: Array) -> Array:
        """The part of a row that a device is sent; all of a sealed one."""
        return row if self._sealing is not None else self._desk.sent(row)

    def _sizes(self, device: int) -> tuple[range | None, range | None]:
        """How many targets a device may have been tested on: its own, everybody's."""
        if self.data.elsewhere:
            return range(messages.MOST + 1), None
        local = self.data.local_test
        own, everybody = (
            int((self.data.y[rows] != NO_LABEL).sum())
            for rows in (np.arange(0) if local is None else local[device], self.data.everybodys(device))
        )
        return None if local is None else range(own, own + 1), range(everybody, everybody + 1)

    def _public_tests(self, models: Array) -> list[Tested]:
        """Tests on samples that the server itself has; equal models are tested once."""
        kinds = self.data.kinds or ("",) * len(models)
        tests: dict[tuple[str, bytes], Tested] = {}
        for device, row in enumerate(models[:, : self.layout.size]):
            if (key := (kinds[device], row.tobytes())) not in tests:
                samples = Own(self.data.x, self.data.y, self.data.everybodys(device))
                tests[key] = examine(row, samples, self._desk.at(device))
        return [tests[kind, row.tobytes()] for kind, row in zip(kinds, models[:, : self.layout.size], strict=True)]

    def close(self) -> None:
        """End the simulation, if there is one."""
        self._stack.close()

    def __enter__(self) -> "Flower":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _limits(self, deadline: float, count: int) -> tuple[float, int | None]:
        """(seconds to wait, good answers that are enough) under the late policy."""
        late = self._real_time
        if late is None or late.policy == "wait":
            return self._timeout, None
        if late.policy == "quorum":
            return self._timeout, math.ceil(late.quorum * count - 1e-9)
        last = np.array([math.inf])
        return min(self._timeout, late.end(last, deadline, self._spread) + self._grace), None

    def _reply(self, job: Job, answer: Answer) -> Reply:
        device = job.device
        if answer.content is None:
            self._note(device, answer.problem)
            return _absent(device, answer.problem)._replace(late=answer.late, diverged=DIVERGED in answer.problem)
        allowed = range(job.plan.samples(len(self.data.train[device])) + 1)
        if self.data.elsewhere:
            allowed = range(messages.WITHHELD, messages.MOST + 1)
        try:
            trained = messages.read_train_reply(answer.content, self._run, job, allowed, self._most_bytes)
            update = self._unpacked(trained.content, job)
            self._note(device, "", answer.content, trained.samples)
        except ValueError as error:
            self._note(device, problem := short(f"refused: {error}"))
            return _absent(device, problem)
        if trained.lost:
            log.warning("device %d has lost what it had not sent yet; it continues without it", device)
        seconds = min(trained.seconds, answer.seconds)
        cost = Cost(seconds, answer.seconds - seconds)
        sent = len(trained.content)
        return Reply(device, update, trained.samples, trained.loss, sent, cost=cost, kept=trained.kept)

    def _unpacked(self, content: bytes, job: Job) -> Array:
        """The update in a reply, or the sealed row."""
        if self._sealing is None:
            return unpack(content, self._desk.width, self._desk.least)
        cut = self._sealing.cut
        return blind.sealed(content, cut, cut.sent(job.round, job.plan.density), job.round, job.device)

    def _note(self, device: int, problem: str, content: RecordDict | None = None, samples: int | None = None) -> None:
        """Remember what a device reported last, for `fedfilt deploy status`."""
        before = self.seen.get(device, Seen())._replace(problem=problem)
        if content is not None:
            said = messages.said(content)
            ahead = None if math.isnan(said.ahead) else round(said.ahead, 1)
            before = before._replace(round=self._round, version=said.version, clock_ahead=ahead, at=time.time())
        if samples is not None:
            before = before._replace(samples=None if samples == messages.WITHHELD else samples)
        self.seen[device] = before


def _weighed(replies: list[Reply]) -> list[Reply]:
    """Replies with a number of samples each: a device that does not say how many counts like the median of others."""
    said = [reply.samples for reply in replies if reply.samples > 0]
    middle = int(np.median(said)) if said else 1
    return [reply._replace(samples=middle) if reply.samples == messages.WITHHELD else reply for reply in replies]


def _absent(device: int, why: str) -> Reply:
    return Reply(device, np.zeros(0, np.float32), 0, math.nan, absent=why)
