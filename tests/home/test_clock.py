"""The clock of a home, for one process or for all of them."""

import time

from fedfilt.home.clock import Clock


def test_processes_that_share_an_origin_agree():
    origin = time.time() - 10
    before = time.time()
    clocks = [Clock(500.0, origin=origin) for _ in range(2)]
    first, second = (clock.now() for clock in clocks)
    after = time.time()
    assert origin + 500 * (before - origin) <= first <= second <= origin + 500 * (after - origin)


def test_before_its_origin_it_is_earlier():
    origin = time.time() + 1000
    assert Clock(500.0, origin=origin).now() < time.time()
