"""Models, one per file: each lists its layers for an input shape and a number of classes."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.models.cnn1d import CNN1d as CNN1d
    from fedfilt.models.logistic import Logistic as Logistic
    from fedfilt.models.mlp import MLP as MLP
    from fedfilt.models.motifs import Motifs as Motifs
    from fedfilt.models.paper_cnn import PaperCNN as PaperCNN

__getattr__, __dir__ = folder(__name__)
