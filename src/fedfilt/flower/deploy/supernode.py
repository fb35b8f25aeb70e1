"""Flower's SuperNode, more patient: `python -m fedfilt.flower.deploy.supernode` with Flower's options."""

from fedfilt.engines.flower._compat import answer_all, be_patient, run_supernode


def main() -> None:
    """Start the SuperNode."""
    be_patient()
    answer_all()
    run_supernode()


if __name__ == "__main__":
    main()
