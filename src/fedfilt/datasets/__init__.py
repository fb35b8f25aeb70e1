"""Sources of samples, one per file."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.datasets.digits import Digits as Digits
    from fedfilt.datasets.dsads import Dsads as Dsads
    from fedfilt.datasets.emnist import Emnist as Emnist
    from fedfilt.datasets.fashion_mnist import FashionMnist as FashionMnist
    from fedfilt.datasets.femnist import Femnist as Femnist
    from fedfilt.datasets.hapt import Hapt as Hapt
    from fedfilt.datasets.mnist import Mnist as Mnist
    from fedfilt.datasets.mnist_writers import MnistWriters as MnistWriters
    from fedfilt.datasets.own import Own as Own
    from fedfilt.datasets.watch import Watch as Watch

__getattr__, __dir__ = folder(__name__)
