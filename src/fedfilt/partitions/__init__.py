"""Rules that deal samples to devices, one per file."""

from typing import TYPE_CHECKING

from fedfilt._parts import folder

if TYPE_CHECKING:  # for editors and type checkers; a new file is found without being listed here
    from fedfilt.partitions.cold import Cold as Cold
    from fedfilt.partitions.dirichlet import Dirichlet as Dirichlet
    from fedfilt.partitions.labels import Labels as Labels
    from fedfilt.partitions.relabelled import Relabelled as Relabelled
    from fedfilt.partitions.room_labels import RoomLabels as RoomLabels
    from fedfilt.partitions.rotated import Rotated as Rotated
    from fedfilt.partitions.unequal import Unequal as Unequal
    from fedfilt.partitions.uniform import Uniform as Uniform
    from fedfilt.partitions.wearers import Wearers as Wearers
    from fedfilt.partitions.writers import Writers as Writers

__getattr__, __dir__ = folder(__name__)
