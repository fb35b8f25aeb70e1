from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfilt.data.samples import Samples
from fedfilt.data.store import DataFile, DataMissing, Store


@dataclass(frozen=True)
class Diabetes:
    """The 442 patients that come with scikit-learn: ten measurements, and the progression of their diabetes in a year.

    Both are scaled to mean 0 and standard deviation 1. Every fifth patient is for testing. To predict the number, use
    training.loss = mse or mae.

    >>> Diabetes().load(Store()).x.shape
    (442, 10)
    """

    files: ClassVar[tuple[DataFile, ...]] = ()

    def load(self, store: Store) -> Samples:
        """Read the patients from the installed scikit-learn."""
        try:
            from sklearn.datasets import load_diabetes
        except ModuleNotFoundError:
            raise DataMissing("the patients come with scikit-learn: pip install 'fedfilt[digits]'") from None
        x, y = load_diabetes(return_X_y=True, scaled=False)
        x, y = ((values - values.mean(axis=0)) / values.std(axis=0) for values in (x, y))
        test = np.arange(len(y)) % 5 == 4
        return Samples("diabetes", x.astype(np.float32), y.astype(np.float32), 1, test)
