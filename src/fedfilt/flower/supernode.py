"""Flower's SuperNode, more patient and more careful: `python -m fedfilt.flower.supernode`, options as Flower's.

Flower starts a process for every message and, if it is not heard of within 30 s, another beside it. On a device that is
slow or busy each makes the others slower, until none gets there in time.

If a run ends while one of its messages is being fetched, Flower passes over the message but not over the work on it.
It then takes the reply to that one for the reply to the next, and never sends the next.
"""

from typing import Any

START = 300.0  # seconds that the process of an app may take to start
SILENCE = 60.0  # seconds without a sign of life after which it is given up; as Flower has it


def be_patient() -> None:
    """Let the apps that this process starts, as a SuperNode or a SuperLink, take their time."""
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate

    for states in (in_memory_corestate, sql_corestate):
        states.HEARTBEAT_DEFAULT_INTERVAL = START  # type: ignore[attr-defined]
        states.HEARTBEAT_PATIENCE = SILENCE / START  # type: ignore[attr-defined]


def answer_all() -> None:
    """Before it asks for another message, let this process send the replies to all that it has received."""
    from flwr.supernode import start_client_internal as internal

    push = internal._push_messages

    def push_all(state: Any, **options: Any) -> None:
        push(state=state, **options)
        while any(not kept.message.metadata.reply_to_message_id for kept in list(state.msg_store.values())):
            push(state=state, **options)

    internal._push_messages = push_all  # type: ignore[assignment]


def main() -> None:
    """Start the SuperNode."""
    from flwr.supernode.cli import flower_supernode

    be_patient()
    answer_all()
    flower_supernode()


if __name__ == "__main__":
    main()
