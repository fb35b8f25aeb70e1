"""Flower's internals are touched in one place, which says so in one sentence when they are not what it needs."""

import ast
import datetime
import importlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import httpx
import pytest

from helpers import ROOT, call, config_file

pytest.importorskip("flwr")

from fedfilt.engines.flower import _compat
from fedfilt.engines.flower._compat import NEEDED, SUPPORTED, Unsupported, internals

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


@pytest.mark.parametrize("purpose", NEEDED)
def test_the_installed_flower_has_all_that_a_purpose_needs(purpose):
    given = internals(purpose)
    for needed in NEEDED[purpose]:
        name = needed.partition(":")[2].partition("(")[0]
        assert "." in name or hasattr(given, name), name
        assert not needed.endswith(")") or "." in name or callable(getattr(given, name)), name


def one_sentence(error, name):
    text = str(error.value)
    assert text.startswith("Flower 1.")
    assert f"is not supported: {name} is not what fedfilt needs (" in text
    assert f"pip install '{SUPPORTED}'" in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("purpose", NEEDED)
def test_a_missing_name_is_named(monkeypatch, purpose):
    """Whichever is missing: something of a module, of a class, or a module."""
    internals(purpose)  # modules are attributes of their packages from now on
    for needed in NEEDED[purpose]:
        module, _, name = needed.partition("(")[0].partition(":")
        first, _, below = name.partition(".")
        with monkeypatch.context() as patch:
            if below:
                patch.setattr(f"{module}.{first}", type(first, (), {}))
            else:
                patch.delattr(f"{module}.{first}")
                if f"{module}.{first}" in sys.modules:  # it would be imported again
                    patch.setitem(sys.modules, f"{module}.{first}", None)
            with pytest.raises(Unsupported) as error:
                internals(purpose)
        one_sentence(error, f"{module}.{name}")
    internals(purpose)


@pytest.mark.parametrize(("purpose", "needed"), [(p, needed) for p in NEEDED for needed in NEEDED[p] if "(" in needed])
def test_a_changed_signature_is_named(monkeypatch, purpose, needed):
    module, _, name = needed.partition("(")[0].partition(":")
    *owners, last = name.split(".")
    owner = importlib.import_module(module)
    for step in owners:
        owner = getattr(owner, step)
    calls: list[object] = []
    other = calls.append if not needed.endswith("()") else "no longer a function"
    monkeypatch.setattr(owner, last, other)
    with pytest.raises(Unsupported) as error:
        internals(purpose)
    one_sentence(error, f"{module}.{name}")
    assert not calls


def test_a_missing_module_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.supercore.control", None)
    with pytest.raises(Unsupported) as error:
        internals("control")
    one_sentence(error, "flwr.supercore.control.ControlHttpClient")


@pytest.mark.parametrize("purpose", NEEDED)
def test_a_missing_flower_is_one_sentence(monkeypatch, purpose):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(_compat, "version", version)
    with pytest.raises(ValueError, match=r"this needs Flower \(flwr>=1\.41,<1\.43\): pip install 'fedfilt\[flower\]'$"):
        internals(purpose)


def test_an_unsupported_flower_ends_a_command_in_one_line(monkeypatch, tmp_path):
    from flwr.server.superlink.fleet.vce import vce_api

    monkeypatch.delattr(vce_api, "_register_nodes")
    experiment = config_file(tmp_path, engine={"name": "flower", "workers": 1})
    done = call("run", experiment, "--out", tmp_path / "run")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "vce_api._register_nodes is not what fedfilt needs" in said
    assert f"pip install '{SUPPORTED}'" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["_push_messages", "get_middleware"])
def test_an_unsupported_flower_ends_supernode_and_superlink_with_one_sentence(monkeypatch, name):
    """Before anything starts; it is what their logs hold."""
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate
    from flwr.superlink import extensions
    from flwr.supernode import start_client_internal

    from fedfilt.flower.deploy import superlink, supernode

    for module in (in_memory_corestate, sql_corestate):
        for constant in ("HEARTBEAT_DEFAULT_INTERVAL", "HEARTBEAT_PATIENCE"):
            monkeypatch.setattr(module, constant, getattr(module, constant))  # to be as before afterwards
    monkeypatch.setenv(superlink.MOST_BYTES, "1000")
    place, main = (start_client_internal, supernode) if name == "_push_messages" else (extensions, superlink)
    monkeypatch.delattr(place, name)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert f".{name} is not what fedfilt needs (" in str(ended.value)
    assert f"pip install '{SUPPORTED}'" in str(ended.value)


def test_what_is_supported_is_what_is_installed_with_fedfilt():
    assert f'flower = ["{SUPPORTED}"' in (ROOT / "pyproject.toml").read_text()


def test_flowers_internals_are_imported_in_one_place():
    """Everywhere else its public modules do."""
    others = {}
    for path in sorted((ROOT / "src" / "fedfilt").rglob("*.py")):
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                # names of a package may be modules below it
                found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names if a.name.islower()}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("flwr."):
                found.add(node.value)  # to be imported by name
        internal = {name for name in found if name.partition(".")[0] == "flwr"} - PUBLIC
        if internal:
            others[str(path.relative_to(ROOT / "src" / "fedfilt"))] = internal
    assert list(others) == ["engines/flower/_compat.py"]


# --- a device's own connection -------------------------------------------------------------------------------------


def test_what_a_device_signs_is_what_flower_checks(monkeypatch):
    """By Flower's own check on the SuperLink; a clock that is a minute ahead is refused, and the device knows it."""
    from fastapi import HTTPException
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supercore.protobuf.client import ProtobufRequestContext
    from flwr.superlink.routers.fleet.node_auth import authenticate_node

    private, public = generate_key_pairs()
    key = public_key_to_bytes(public)
    signing = _compat.Signing(internals("fleet"), private, key)

    def ask(claimed):
        context = ProtobufRequestContext("", None, httpx.Request("POST", "https://127.0.0.1/"))

        def checked(context):
            state = SimpleNamespace(protobuf_request=ActivateNodeRequest(public_key=claimed))
            date = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
            try:
                authenticate_node(SimpleNamespace(headers=context.request.headers, state=state))
                return httpx.Response(200, headers={"date": date})
            except HTTPException as error:
                return httpx.Response(error.status_code, headers={"date": date})

        return signing.intercept(context, checked).status_code

    assert signing.ahead is None
    assert ask(key) == 200
    assert abs(signing.ahead) < 2
    assert ask(b"of another") == 401

    class Ahead(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(seconds=60)

    real = _compat.time.time
    with monkeypatch.context() as patch:
        patch.setattr(_compat, "datetime", Ahead)
        patch.setattr(_compat.time, "time", lambda: real() + 60)
        assert ask(key) == 401
    assert 58 < signing.ahead < 62


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"code": 1, "detail": "no such node"}', "no such node"),
        ("<html>", "<html>"),
        ("[]", "[]"),
        ("3" * 500, "3" * 200),
    ],
)
def test_what_flower_says_about_an_error_is_found(body, words):
    assert _compat._detail(body) == words


def test_the_connection_of_a_device_loads_no_web_framework():
    code = "import sys; from fedfilt.engines.flower._compat import internals; internals('fleet'); "
    code += "print({'fastapi', 'pydantic', 'starlette', 'requests', 'sqlalchemy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
