"""What devices do for a blind server, around an engine whose devices do not do it."""

from collections.abc import Iterator, Sequence

from fedfilt._types import Array
from fedfilt.rounds.types import Engine, Reply, State, Tests
from fedfilt.system.blind import Cut, taken
from fedfilt.system.orders import Job


class Bounded:
    """Runs jobs on another engine, keeps the part of each update that a device would send, and counts its masked bytes.

    So an experiment gives the same bits here and on devices that mask their rows. With `keep`, what is not sent is
    kept for the next round.
    """

    def __init__(self, inner: Engine, cut: Cut, keep: bool = True) -> None:
        self._inner, self._cut, self._keep = inner, cut, keep

    def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
        """Replies with limited updates, NaN where nothing is sent."""
        by_device = {job.device: job for job in jobs}
        whole = [job._replace(plan=job.plan._replace(density=1.0), residual=None) for job in jobs]
        for reply in self._inner.train(whole, deadline):
            if reply.absent:
                yield reply
                continue
            job = by_device[reply.device]
            sent = self._cut.sent(job.round, job.plan.density)
            update, left = taken(reply.update, job.residual, job.model, self._cut, sent, self._keep)
            yield reply._replace(update=update, size=self._cut.bytes_of(sent), residual=left)

    def test(self, state: State) -> Tests:
        """Tests run on the other engine."""
        return self._inner.test(state)

    def personal(self, state: State) -> Array:
        """The models that devices decide with, where the other engine knows them; else their rows."""
        known = getattr(self._inner, "personal", None)
        found: Array = state.models if known is None else known(state)
        return found
