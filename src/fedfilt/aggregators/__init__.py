"""Rules that turn the models and updates of all devices into their next models, one per file."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.aggregators.attention import Attention as Attention
    from fedfilt.aggregators.empirical_bayes import EmpiricalBayes as EmpiricalBayes
    from fedfilt.aggregators.fedadam import FedAdam as FedAdam
    from fedfilt.aggregators.fedamp import FedAMP as FedAMP
    from fedfilt.aggregators.fedavg import FedAvg as FedAvg
    from fedfilt.aggregators.fedavgm import FedAvgM as FedAvgM
    from fedfilt.aggregators.feddyn import FedDyn as FedDyn
    from fedfilt.aggregators.fedu import FedU as FedU
    from fedfilt.aggregators.fedyogi import FedYogi as FedYogi
    from fedfilt.aggregators.gfedfilt import GFedFilt as GFedFilt
    from fedfilt.aggregators.ifca import IFCA as IFCA
    from fedfilt.aggregators.local import Local as Local
    from fedfilt.aggregators.paper_literal import PaperLiteral as PaperLiteral
    from fedfilt.aggregators.room_average import RoomAverage as RoomAverage
    from fedfilt.aggregators.scaffold import Scaffold as Scaffold
    from fedfilt.aggregators.self_blend import SelfBlend as SelfBlend
    from fedfilt.aggregators.sfl import SFL as SFL

__getattr__, __dir__ = folder(__name__)
