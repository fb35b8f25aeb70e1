"""Flower's SuperNode, more patient: `python -m fedfilt.flower.supernode`, options as Flower's.

Flower starts a process for every message and, if it is not heard of within 30 s, another beside it. On a device that is
slow or busy each makes the others slower, until none gets there in time.
"""

START = 300.0  # seconds that the process of an app may take to start
SILENCE = 60.0  # seconds without a sign of life after which it is given up; as Flower has it


def be_patient() -> None:
    """Let the apps that this process starts, as a SuperNode or a SuperLink, take their time."""
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate

    for states in (in_memory_corestate, sql_corestate):
        states.HEARTBEAT_DEFAULT_INTERVAL = START  # type: ignore[attr-defined]
        states.HEARTBEAT_PATIENCE = SILENCE / START  # type: ignore[attr-defined]


def main() -> None:
    """Start the SuperNode."""
    from flwr.supernode.cli import flower_supernode

    be_patient()
    flower_supernode()


if __name__ == "__main__":
    main()
