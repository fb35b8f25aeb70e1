"""What devices do by themselves for a server that cannot look, around an engine whose devices do not."""

from collections.abc import Iterable, Iterator, Sequence

from fedfilt._types import Array
from fedfilt.rounds.types import Engine, Reply, Tests
from fedfilt.system.blind import bounded, masked_bytes
from fedfilt.system.orders import Job, Plan


class Bounded:
    """Runs jobs on another engine, bounds each update as a device would, and counts the bytes of its masked row.

    So an experiment gives the same bits here and on devices that mask their rows.
    """

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Replies with bounded updates."""
        check_dense(job.plan for job in jobs)
        models = {job.device: job.model for job in jobs}
        for reply in self._inner.train(jobs, deadline):
            if reply.absent:
                yield reply
                continue
            update = bounded(reply.update, models[reply.device])
            yield reply._replace(update=update, size=masked_bytes(len(update)))

    def test(self, models: Array) -> Tests:
        """Testing is the other engine's."""
        return self._inner.test(models)


def check_dense(plans: Iterable[Plan]) -> None:
    """Refuse plans by which only some values are sent."""
    low = min((plan.density for plan in plans), default=1.0)
    if low < 1:
        raise ValueError(
            f"privacy.blind = true needs whole rows, density 1: which values a device sends would be seen; got {low:g}"
        )
