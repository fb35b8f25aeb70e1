"""What passes between the edge server and the devices in a round."""

from typing import NamedTuple

from fedfilt.checks import Array


class Updates(NamedTuple):
    """What all devices learnt in a round: one row per device, in device order.

    A device that is absent, or has no samples, has a row of zeros and the weight 0: it contributes nothing.
    """

    rows: Array  # (K, B) trained model minus the model the device was given
    weights: Array  # (K,) samples behind each row
