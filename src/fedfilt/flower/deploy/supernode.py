"""Flower's SuperNode, more patient: `python -m fedfilt.flower.deploy.supernode` with Flower's options."""

import sys

from fedfilt.engines.flower._compat import Unsupported, answer_all, be_patient, run_supernode


def main() -> None:
    """Start the SuperNode; with an unknown version of Flower, report that instead."""
    try:
        be_patient()
        answer_all()
        run_supernode()
    except Unsupported as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
