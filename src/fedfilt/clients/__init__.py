"""What a device does in a round, one method per file."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.clients.apfl import APFL as APFL
    from fedfilt.clients.averaged import Averaged as Averaged
    from fedfilt.clients.ditto import Ditto as Ditto
    from fedfilt.clients.fedamp import FedAMP as FedAMP
    from fedfilt.clients.fedbn import FedBN as FedBN
    from fedfilt.clients.feddyn import FedDyn as FedDyn
    from fedfilt.clients.fedper import FedPer as FedPer
    from fedfilt.clients.fedprox import FedProx as FedProx
    from fedfilt.clients.fedrep import FedRep as FedRep
    from fedfilt.clients.finetune import FineTune as FineTune
    from fedfilt.clients.ifca import IFCA as IFCA
    from fedfilt.clients.label_prior import LabelPrior as LabelPrior
    from fedfilt.clients.lg_fedavg import LGFedAvg as LGFedAvg
    from fedfilt.clients.per_fedavg import PerFedAvg as PerFedAvg
    from fedfilt.clients.pfedme import PFedMe as PFedMe
    from fedfilt.clients.plain import Plain as Plain
    from fedfilt.clients.scaffold import Scaffold as Scaffold
    from fedfilt.clients.two_level import TwoLevel as TwoLevel

__getattr__, __dir__ = folder(__name__)
