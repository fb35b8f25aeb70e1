"""All use of Flower's internals: what is not part of its public API, and the few places where we change it.

Flower may move any of this in a new version. Each name is looked up with the parameters that we pass, before anything
starts; what is not as expected ends with one sentence that says which versions of Flower are supported.
"""

import hashlib
import inspect
import json
import logging
import re
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

log = logging.getLogger("fedfilt")

SUPPORTED = "flwr>=1.41,<1.43"
MISSING = f"this needs Flower ({SUPPORTED}): pip install 'fedfilt[flower]'"
START = 300.0  # seconds that the process of an app may take to start
HEARTBEAT = 30.0  # seconds within which a device says that it is there; as Flower has it
SILENCE = 60.0  # seconds without a sign of life after which it is given up; as Flower has it
MOST_OBJECTS = 8  # that a reply may consist of; ours have three
PROMPT = 2.0  # seconds within which an answer comes that says how late it is
UPLOAD = 60.0  # seconds from a reply's first object to its last
INBOX = "_fedfilt_inbox"  # attribute of a grid: replies that were announced

# purpose -> internals of Flower as module:name(parameters that we pass)
NEEDED = {
    "grid": (
        "flwr.app:Metadata",
        "flwr.app.message:make_message(metadata, error)",
        "flwr.common.constant:ErrorCode",
        "flwr.proto.message_pb2:ConfirmMessageReceivedRequest",
        "flwr.proto.message_pb2:PullObjectRequest",
        "flwr.proto.runtime_pb2:PullAppMessagesRequest",
        "flwr.supercore.constant:SYSTEM_MESSAGE_TYPE",
        "flwr.supercore.inflatable.inflatable_object:iterate_object_tree(tree)",
        "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents(object_id, object_contents)",
        "flwr.superlink.grid:InMemoryGrid(state_factory)",
        "flwr.superlink.grid.http_grid:HttpGrid",
        "flwr.superlink.grid.http_grid:HttpGrid._runtime_client",
    ),
    "patience": (
        "flwr.supercore.corestate:in_memory_corestate",
        "flwr.supercore.corestate:sql_corestate",
        "flwr.supercore.corestate.in_memory_corestate:HEARTBEAT_DEFAULT_INTERVAL",
        "flwr.supercore.corestate.in_memory_corestate:HEARTBEAT_PATIENCE",
        "flwr.supercore.corestate.sql_corestate:HEARTBEAT_DEFAULT_INTERVAL",
        "flwr.supercore.corestate.sql_corestate:HEARTBEAT_PATIENCE",
    ),
    "supernode": (
        "flwr.supernode:start_client_internal",
        "flwr.supernode.start_client_internal:_push_messages(state, object_store, send, push_object)",
        "flwr.supernode.cli:flower_supernode()",
    ),
    "superlink": (
        "flwr.superlink:extensions",
        "flwr.superlink.extensions:get_middleware()",
        "flwr.superlink.cli:flower_superlink()",
    ),
    "fleet": (
        "flwr.app.message:remove_content_from_message(message)",
        "flwr.common.constant:TIMESTAMP_HEADER",
        "flwr.common.serde:message_from_proto",
        "flwr.common.serde:message_to_proto",
        "flwr.proto.fleet_pb2:ActivateNodeRequest",
        "flwr.proto.fleet_pb2:DeactivateNodeRequest",
        "flwr.proto.fleet_pb2:PullMessagesRequest",
        "flwr.proto.fleet_pb2:PushMessagesRequest",
        "flwr.proto.fleet_pb2:RegisterNodeFleetRequest",
        "flwr.proto.heartbeat_pb2:SendNodeHeartbeatRequest",
        "flwr.proto.message_pb2:ConfirmMessageReceivedRequest",
        "flwr.proto.message_pb2:PullObjectRequest",
        "flwr.proto.message_pb2:PushObjectRequest",
        "flwr.proto.node_pb2:Node",
        "flwr.supercore.constant:FLEET_HTTP_PUBLIC_KEY_HEADER",
        "flwr.supercore.constant:FLEET_HTTP_SIGNATURE_HEADER",
        "flwr.supercore.constant:FLWR_COMPONENT_NAME_METADATA_KEY",
        "flwr.supercore.constant:FLWR_PACKAGE_NAME_METADATA_KEY",
        "flwr.supercore.constant:FLWR_PACKAGE_VERSION_METADATA_KEY",
        "flwr.supercore.inflatable.inflatable_object:get_all_nested_objects(obj)",
        "flwr.supercore.inflatable.inflatable_object:get_object_tree(obj)",
        "flwr.supercore.inflatable.inflatable_object:iterate_object_tree(tree)",
        "flwr.supercore.inflatable.inflatable_object:no_object_id_recompute()",
        "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents(object_id, object_contents)",
        "flwr.supercore.primitives.asymmetric:generate_key_pairs()",
        "flwr.supercore.primitives.asymmetric:public_key_to_bytes(public_key)",
        "flwr.supercore.primitives.asymmetric:sign_message(private_key, message)",
        "flwr.supercore.protobuf.client:ProtobufRequestContext(rpc_method, message, request)",
        "flwr.supernode.fleet_http_client:FleetHttpClient",
        "flwr.supernode.fleet_http_client:FleetHttpClient.from_server_address(server_address, insecure, "
        "root_certificates, interceptors)",
    ),
    "control": (
        "flwr.cli.build:build_fab_from_disk(app)",
        "flwr.common.serde:fab_to_proto(fab)",
        "flwr.supercore.fab:Fab(hash_str, content, verifications)",
        "flwr.supercore.control:ControlHttpClient",
        "flwr.supercore.control:ControlHttpClient.from_server_address(server_address, insecure, root_certificates)",
        "flwr.supercore.interceptors:RuntimeVersionHttpInterceptor(component_name)",
        "flwr.proto.control_pb2:ListNodesRequest",
        "flwr.proto.control_pb2:ListRunsRequest",
        "flwr.proto.control_pb2:RegisterNodeRequest",
        "flwr.proto.control_pb2:StartRunRequest",
        "flwr.proto.control_pb2:StopRunRequest",
        "flwr.proto.control_pb2:UnregisterNodeRequest",
    ),
    "simulation": (
        "flwr.common.constant:SUPERLINK_NODE_ID",
        "flwr.proto.task_pb2:Task",
        "flwr.server.superlink.fleet.vce:vce_api",
        "flwr.server.superlink.fleet.vce.vce_api:_register_nodes(num_nodes, state_factory)",
        "flwr.server.superlink.fleet.vce.vce_api:_register_node_info_stores(nodes_mapping, run, app_dir)",
        "flwr.server.superlink.fleet.vce.vce_api:run_api(app_fn, backend_fn, nodes_mapping, state_factory, "
        "node_info_stores, f_stop, metrics)",
        "flwr.server.superlink.fleet.vce.metrics:VceMetrics",
        "flwr.server.superlink.linkstate:LinkStateFactory(database, federation_manager, objectstore_factory)",
        "flwr.server.superlink.linkstate.in_memory_linkstate:RunRecord",
        "flwr.supercore.constant:FLWR_IN_MEMORY_DB_NAME",
        "flwr.supercore.constant:NOOP_FEDERATION_ID",
        "flwr.supercore.object_store:ObjectStoreFactory",
        "flwr.supercore.run:Run",
        "flwr.supercore.run:Run.create_empty(run_id)",
        "flwr.supercore.task_identity:TaskIdentity",
        "flwr.superlink.federation:NoOpFederationManager",
        "flwr.superlink.grid:InMemoryGrid(state_factory)",
    ),
}


class Unsupported(ValueError):
    """A version of Flower that this version of fedfilt does not know."""


def internals(purpose: str) -> SimpleNamespace:
    """What a purpose needs of Flower, by name; `Unsupported` names the first that is not as expected."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise ValueError(MISSING) from None
    given = SimpleNamespace()
    for needed in NEEDED[purpose]:
        module, name, parameters = re.fullmatch(r"([\w.]+):([\w.]+)(?:\((.*)\))?", needed).groups()  # type: ignore[union-attr]
        try:
            value = _look_up(module, name)
            if parameters is not None:
                inspect.signature(value).bind_partial(**dict.fromkeys(parameters.split(", ") if parameters else ()))
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise Unsupported(
                f"Flower {found} is not supported: {module}.{name} is not what fedfilt needs ({error}); "
                f"install a supported version: pip install '{SUPPORTED}'"
            ) from None
        if "." not in name and not hasattr(given, name):
            setattr(given, name, value)
    return given


def _look_up(module: str, name: str) -> Any:
    """What a module has under a name: something of its own, or a module below it."""
    value: Any = import_module(module)
    if not hasattr(value, name.partition(".")[0]):
        with suppress(ModuleNotFoundError):
            import_module(f"{module}.{name}")
    for step in name.split("."):
        value = getattr(value, step)
    return value


# --- replies ------------------------------------------------------------------------------------------------------


def guard_replies() -> None:
    """Make Flower's HTTP grid fetch every reply on its own, and take one that cannot be read as its sender's failure.

    Flower announces a reply before its objects are there, and its grid waits for those of one reply before it turns to
    the next: a device that announces and sends nothing would make all others late. And a reply that it cannot read
    would end the run.
    """
    flower = internals("grid")
    flower.HttpGrid.pull_messages = lambda grid, message_ids: _pull_messages(flower, grid, message_ids)


def hurry(grid: Any) -> None:
    """Let the next look ask for all that was announced, also for what was not there a moment ago."""
    for one in getattr(grid, INBOX, {}).values():
        one.again = 0.0


@dataclass
class _Announced:
    """A reply that was announced, with as many of its objects as there are yet."""

    answers: str  # id of the message
    wanted: list[str]  # ids of the objects; the reply itself is the last
    contents: dict[str, bytes]
    since: float  # monotonic
    again: float = 0.0  # when it is looked for again
    pause: float = 0.05


def _pull_messages(flower: SimpleNamespace, grid: Any, message_ids: Iterable[str]) -> list[Any]:
    """The replies that are there; never waits for one."""
    asked = set(message_ids)
    inbox: dict[str, _Announced] = grid.__dict__.setdefault(INBOX, {})
    for name in [name for name, one in inbox.items() if one.answers not in asked]:
        del inbox[name]  # nobody waits for it any more
    new = asked - {one.answers for one in inbox.values()}  # Flower announces a reply once
    if new:
        got = grid._runtime_client.PullMessages(flower.PullAppMessagesRequest(message_ids=sorted(new)))
        for head, tree in zip(got.messages_list, got.message_object_trees, strict=True):
            told = head.metadata
            if told.reply_to_message_id not in new:
                log.warning("a reply that answers no open message is ignored (repeated, stale or foreign)")
                continue
            wanted = [one.object_id for one in flower.iterate_object_tree(tree)]
            inbox[told.message_id] = _Announced(told.reply_to_message_id, wanted, {}, time.monotonic())
    found = {name: _fetched(flower, grid, one) for name, one in list(inbox.items()) if one.again <= time.monotonic()}
    for name in [name for name, message in found.items() if message is not None]:
        del inbox[name]
    return [message for message in found.values() if message is not None]


def _fetched(flower: SimpleNamespace, grid: Any, one: _Announced) -> Any:
    """A reply, or the failure of its sender if it cannot be read or took too long; None while it is not there."""
    from flwr.app import Message, RecordDict
    from httpx import HTTPError

    client, run, root = grid._runtime_client, grid.run.run_id, one.wanted[-1]
    try:
        if len(one.wanted) > MOST_OBJECTS:
            raise ValueError(f"it must consist of at most {MOST_OBJECTS} objects, got {len(one.wanted)}")
        for name in (name for name in one.wanted if name not in one.contents):
            answer = client.PullObject(flower.PullObjectRequest(node=grid.node, run_id=run, object_id=name))
            if not answer.object_found:
                raise ValueError("the edge server no longer has it")
            if not answer.object_available:
                if time.monotonic() - one.since > UPLOAD:
                    raise ValueError(f"it was announced but not sent within {UPLOAD:g} s")
                one.again, one.pause = time.monotonic() + one.pause, min(2 * one.pause, 1.0)
                return None
            one.contents[name] = answer.object_content
        message = flower.inflate_object_from_contents(root, dict(one.contents))
        if not isinstance(message, Message):
            raise TypeError(f"it must be a Message, got {type(message).__name__}")
        if message.has_content() and not isinstance(message.content, RecordDict):
            raise TypeError(f"it must hold a RecordDict, got {type(message.content).__name__}")
    except HTTPError:
        raise
    except Exception as error:  # whatever the bytes of a stranger bring about
        problem = short(f"{type(error).__name__}: {error}")
        log.warning("cannot read a reply: %s", problem)
        return _failure(flower, grid, one.answers, f"its reply cannot be read: {problem}")
    confirmed = flower.ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=root)
    client.ConfirmMessageReceived(confirmed)
    message.metadata.__dict__["_message_id"] = root
    return message


def _failure(flower: SimpleNamespace, grid: Any, answers: str, why: str) -> Any:
    """A reply that says why there is none, as Flower makes them itself."""
    from flwr.app import Error

    own = grid.node.node_id
    metadata = flower.Metadata(
        run_id=grid.run.run_id,
        message_id="",
        src_node_id=own,
        dst_node_id=own,
        message_type=flower.SYSTEM_MESSAGE_TYPE,
        group_id="",
        ttl=0,
        reply_to_message_id=answers,
        created_at=time.time(),
    )
    return flower.make_message(metadata=metadata, error=Error(flower.ErrorCode.MESSAGE_UNAVAILABLE, why))


def short(text: str) -> str:
    """What a device said, as one line that is fit for a log.

    >>> short("out of\\n\\x1b[2Jbattery " + "!" * 1000)[:30]
    'out of ?[2Jbattery !!!!!!!!!!!'
    """
    line = " ".join(text[:1000].split())
    line = line if len(line) <= 200 else f"{line[:197]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def is_simulated(grid: Any) -> bool:
    """Whether a grid is of Flower's simulation, in this process."""
    return isinstance(grid, internals("grid").InMemoryGrid)


# --- SuperNode and SuperLink --------------------------------------------------------------------------------------


def be_patient() -> None:
    """Let the apps that this process starts, as a SuperNode or a SuperLink, take their time.

    Flower starts a process for every message and, if it does not report within 30 s, another beside it. On a device
    that is slow or busy each makes the others slower, until none gets there in time.
    """
    flower = internals("patience")
    for states in (flower.in_memory_corestate, flower.sql_corestate):
        states.HEARTBEAT_DEFAULT_INTERVAL = START
        states.HEARTBEAT_PATIENCE = SILENCE / START


def answer_all() -> None:
    """Before it asks for another message, let this process send the replies to all that it has received.

    If a run ends while one of its messages is being fetched, Flower drops the message but not the work on it. It then
    takes the reply to that one for the reply to the next, and never sends the next.
    """
    internal = internals("supernode").start_client_internal
    push = internal._push_messages

    def push_all(state: Any, **options: Any) -> None:
        push(state=state, **options)
        while any(not kept.message.metadata.reply_to_message_id for kept in list(state.msg_store.values())):
            push(state=state, **options)

    internal._push_messages = push_all


def run_supernode() -> None:
    """Flower's SuperNode, with the options of the command line."""
    internals("supernode").flower_supernode()


def run_superlink(serve: Callable[[Any, dict[str, Any]], None], *in_front: Any) -> None:
    """Flower's SuperLink, with the options of the command line and middleware in front of all it serves.

    `serve` takes the place of `uvicorn.run`, which Flower calls with its app and options.
    """
    import uvicorn

    flower = internals("superlink")
    uvicorn.run = lambda app, **options: serve(app, options)
    given = flower.extensions.get_middleware
    flower.extensions.get_middleware = lambda: (*in_front, *given())
    flower.flower_superlink()


# --- a device's own connection ------------------------------------------------------------------------------------


class Refused(OSError):
    """The edge server refuses this device, or its answer is not what it should be."""


class Unreachable(Refused):
    """The edge server does not answer at all: it may be restarting, or the network is down."""


class Signing:
    """Signs every request to the Fleet API as Flower does, and learns from the answers how wrong the clock is.

    Flower's own class for this loads the web framework of its server: 15 MB, and half of a device's start.
    """

    def __init__(self, flower: SimpleNamespace, private: Any, public: bytes) -> None:
        self._flower, self._private = flower, private
        self._headers = {
            flower.FLWR_PACKAGE_NAME_METADATA_KEY: "flwr",
            flower.FLWR_PACKAGE_VERSION_METADATA_KEY: version("flwr"),
            flower.FLWR_COMPONENT_NAME_METADATA_KEY: "SuperNode",
            flower.FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode(),
        }
        self.ahead: float | None = None  # seconds by which this clock is ahead of the server's

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Send a request with the device's key and a time that is signed with it."""
        stamp = datetime.now(UTC).isoformat()
        signature = self._flower.sign_message(self._private, stamp.encode())
        signed = {
            self._flower.TIMESTAMP_HEADER: stamp,
            self._flower.FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
        }
        context.request.headers.update(self._headers | signed)
        before = time.time()
        answer = call_next(context)
        taken = time.time() - before
        if taken < PROMPT:
            with suppress(KeyError, ValueError):  # a Date counts whole seconds, and the server renews it once a second
                there = parsedate_to_datetime(answer.headers["date"]).timestamp() + 1.0
                self.ahead = before + taken / 2 - there
        return answer


def _detail(text: str) -> str:
    """What Flower says about an error, in the body of its answer."""
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        return text[:200]


class Fleet:
    """A device's connection to the SuperLink over Flower's Fleet API, without a SuperNode: jobs in, replies out.

    The app bundle of a run, which is code, is never fetched. `key` is the device's private key as `deploy write` makes
    it; without one the device registers itself under a new key, where the server allows that.
    """

    def __init__(self, address: str, authority: bytes | None, key: bytes | None) -> None:
        self._flower = flower = internals("fleet")
        if key is None:
            private, public = flower.generate_key_pairs()
        else:
            from cryptography.hazmat.primitives.serialization import load_ssh_private_key

            private = load_ssh_private_key(key, None)
            public = private.public_key()
        self._registers, self._key = key is None, flower.public_key_to_bytes(public)
        self._signing = Signing(flower, private, self._key)
        self._client = flower.FleetHttpClient.from_server_address(
            address, authority is None, authority, [self._signing]
        )
        self._node: Any = None
        self._pulled: tuple[Any, Any, dict[str, bytes]] | None = None  # an order that is being fetched
        self._lost: Exception | None = None
        self._closed = threading.Event()

    def __enter__(self) -> "Fleet":
        flower = self._flower
        try:
            if self._registers:
                self._ask(self._client.RegisterNode, flower.RegisterNodeFleetRequest(public_key=self._key))
            request = flower.ActivateNodeRequest(public_key=self._key, heartbeat_interval=HEARTBEAT)
            self._node = flower.Node(node_id=self._ask(self._client.ActivateNode, request).node_id)
        except BaseException:
            self._client.close()
            raise
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        with suppress(Refused):  # then it will be missed
            self._ask(self._client.DeactivateNode, self._flower.DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def receive(self) -> Any:
        """The next job as a Flower Message, None if there is none now.

        The server hands an order out once. If it cannot be reached in between, the next call goes on with that order.
        """
        if self._lost is not None:
            raise self._lost
        flower = self._flower
        if self._pulled is None:
            got = self._ask(self._client.PullMessages, flower.PullMessagesRequest(node=self._node))
            if not got.messages_list:
                return None
            self._pulled = flower.message_from_proto(got.messages_list[0]), got.message_object_trees[0], {}
        head, tree, contents = self._pulled
        run = head.metadata.run_id
        wanted = [one.object_id for one in flower.iterate_object_tree(tree)]
        if len(wanted) > MOST_OBJECTS:
            raise Refused(f"a job must consist of at most {MOST_OBJECTS} objects, got {len(wanted)}")
        for name in (name for name in wanted if name not in contents):
            request = flower.PullObjectRequest(node=self._node, run_id=run, object_id=name)
            contents[name] = self._object(request)
        message = flower.inflate_object_from_contents(tree.object_id, contents)
        message.metadata.__dict__["_message_id"] = tree.object_id
        confirmed = flower.ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=tree.object_id)
        self._ask(self._client.ConfirmMessageReceived, confirmed)
        self._pulled = None
        return message

    def send(self, reply: Any, seconds: float) -> None:
        """Send the reply to a job that took this many seconds."""
        flower, run = self._flower, reply.metadata.run_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with flower.no_object_id_recompute():
            tree = flower.get_object_tree(reply)
            objects = {name: one.deflate() for name, one in flower.get_all_nested_objects(reply).items()}
            head = flower.remove_content_from_message(reply) if reply.has_content() else reply
            request = flower.PushMessagesRequest(
                node=self._node,
                messages_list=[flower.message_to_proto(head)],
                message_object_trees=[tree],
                clientapp_runtime_list=[seconds],
            )
            answer = self._ask(self._client.PushMessages, request)
        wanted = set(answer.objects_to_push)
        for name, content in objects.items():
            if name in wanted:
                self._ask(
                    self._client.PushObject,
                    flower.PushObjectRequest(
                        node=self._node,
                        run_id=run,
                        session_id=answer.session_id,
                        object_id=name,
                        object_content=content,
                    ),
                )

    def clock_ahead(self) -> float | None:
        """How many seconds this clock is ahead of the server's, to the second; None if unknown."""
        return self._signing.ahead

    def _object(self, request: Any) -> bytes:
        """One object of an order; the server may still be writing it."""
        end, pause = time.monotonic() + UPLOAD, 0.1
        while True:
            answer = self._ask(self._client.PullObject, request)
            if not answer.object_found:
                raise Refused("the edge server no longer has the job it sent")
            if answer.object_available:
                return bytes(answer.object_content)
            if time.monotonic() > end:
                raise Refused("the edge server did not deliver its job in time")
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _ask(self, call: Callable[[Any], Any], request: Any) -> Any:
        import httpx

        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            raise Refused(short(f"{error.response.status_code}: {_detail(error.response.text)}")) from None
        except httpx.TransportError as error:
            raise Unreachable(short(f"{type(error).__name__}: {error}")) from None
        except (httpx.HTTPError, RuntimeError) as error:
            raise Refused(short(f"{type(error).__name__}: {error}")) from None

    def _beat(self) -> None:
        """Tell the server that this device is online."""
        request = self._flower.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        while not self._closed.wait(0.6 * HEARTBEAT):
            try:
                if not self._ask(self._client.SendNodeHeartbeat, request).success:
                    self._lost = Refused("the edge server no longer knows this device")
                    return
            except Unreachable:
                continue  # whoever asks for orders will say so
            except Refused as error:
                self._lost = error
                return


# --- control ------------------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """A node as the SuperLink knows it."""

    id: int
    name: str
    public_key: bytes  # PEM
    online: bool


class Control:
    """What the edge server tells its own SuperLink: register a key, start a run, say how a run is.

    The same requests as of the commands `flwr supernode register`, `flwr run` and `flwr list`, without a new process.
    """

    def __init__(self, address: str, authority: Path | None) -> None:
        self._flower = flower = internals("control")
        self._client = flower.ControlHttpClient.from_server_address(
            address,
            authority is None,
            None if authority is None else authority.read_bytes(),
            [flower.RuntimeVersionHttpInterceptor(component_name="fedfilt")],
        )

    def nodes(self) -> list[Node]:
        """The nodes that are registered."""
        found = self._client.ListNodes(self._flower.ListNodesRequest()).nodes_info
        return [
            Node(node.node_id, node.name, bytes(node.public_key), node.status == "online")
            for node in found
            if node.status != "unregistered"
        ]

    def unregister(self, node_id: int) -> None:
        """Unregister a node; Flower never accepts its key again."""
        self._client.UnregisterNode(self._flower.UnregisterNodeRequest(node_id=node_id))

    def register(self, name: str, public_key: bytes) -> None:
        """Register the device that holds this key (PEM) under this name."""
        self._client.RegisterNode(self._flower.RegisterNodeRequest(public_key=public_key, name=name))

    def start(self, app: Path) -> int:
        """Start a run of a Flower app and return its id."""
        content = self._flower.build_fab_from_disk(app)
        fab = self._flower.Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = self._flower.StartRunRequest(fab=self._flower.fab_to_proto(fab))
        return int(self._client.StartRun(request).run_id)

    def stop(self, run_id: int) -> None:
        """End a run."""
        self._client.StopRun(self._flower.StopRunRequest(run_id=run_id))

    def run(self, run_id: int) -> Any:
        """The state of a run: `status.status` is "finished" at its end, `status.details` says why."""
        return self._client.ListRuns(self._flower.ListRunsRequest(run_id=run_id)).run_dict[run_id]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


# --- simulation ---------------------------------------------------------------------------------------------------


@contextmanager
def simulation(make: Callable[[], Any], backend: Any, count: int, app: Path | None = None) -> Iterator[Any]:
    """Flower's own grid and queues for so many nodes in this process; `backend` runs the app that `make` makes."""
    flower = internals("simulation")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run = flower.Run.create_empty(run_id=secrets.randbits(62) + 1)
    run.primary_task_id, run.federation_id = secrets.randbits(62) + 1, flower.NOOP_FEDERATION_ID
    factory = flower.LinkStateFactory(
        flower.FLWR_IN_MEMORY_DB_NAME, flower.NoOpFederationManager(), flower.ObjectStoreFactory()
    )
    state = factory.state()
    state.run_ids[run.run_id] = flower.RunRecord(run=run)
    state.task_store[run.primary_task_id] = flower.Task(task_id=run.primary_task_id, run_id=run.run_id)
    api = flower.vce_api
    nodes = api._register_nodes(num_nodes=count, state_factory=factory)
    stores = api._register_node_info_stores(nodes_mapping=nodes, run=run, app_dir=str(app) if app else None)
    identity = flower.TaskIdentity
    identity.task_id, identity.run_id, identity.node_id = run.primary_task_id, run.run_id, flower.SUPERLINK_NODE_ID
    grid = flower.InMemoryGrid(state_factory=factory)
    grid.set_run(run)
    stop = threading.Event()
    arguments = make, lambda: backend, nodes, factory, stores, stop, flower.VceMetrics()
    thread = threading.Thread(target=api.run_api, args=arguments, daemon=True)
    thread.start()
    try:
        yield grid
    finally:
        stop.set()
        thread.join()
