from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, DataMissing, Store


@dataclass(frozen=True)
class Digits:
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn. Every fifth is for testing.

    >>> Digits().load(Store()).x.shape
    (1797, 1, 8, 8)
    """

    files: ClassVar[tuple[DataFile, ...]] = ()

    def load(self, store: Store) -> Samples:
        """Read the digits from the installed scikit-learn."""
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError:
            raise DataMissing("the digits come with scikit-learn: pip install 'fedfilt[digits]'") from None
        x, y = load_digits(return_X_y=True)
        pixels = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        return Samples("digits", pixels, y.astype(np.int64), 10, np.arange(len(y)) % 5 == 4)
