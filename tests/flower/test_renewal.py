"""Certificates last a year and are renewed in time; units run as a user of their own, with little around them."""

import logging
import math
import os
import pwd
import re
import shlex
import shutil
import socket
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography import x509

from brokers import WAIT, Broker, home_written, needs_mosquitto
from fedfilt.flower.deploy import certificates
from fedfilt.flower.deploy.certificates import days_left
from fedfilt.flower.deploy.renewal import lasting, renew_all, renew_device, renew_due
from fedfilt.flower.deploy.units import unit
from fedfilt.home.mqtt import Keys, Mqtt
from helpers import SLOW, call, until

DEVICES = [f"device-{number:03d}" for number in range(4)]
HERE = ["the edge server", "the broker", "edge on the broker", "edge-ears on the broker", "people on the broker"]


@pytest.fixture(scope="module")
def written_home(tmp_path_factory):
    return home_written(tmp_path_factory.mktemp("home"))


@pytest.fixture
def building(written_home, tmp_path):
    """A home of our own, to renew."""
    shutil.copytree(written_home, tmp_path / "building")
    return tmp_path / "building"


def later(days):
    return datetime.now(UTC) + timedelta(days=days)


def serials(building):
    """By file, the number of every certificate of an edge server and its broker."""
    found = sorted([*(building / "server").rglob("*.crt"), *(building / "broker").rglob("*.crt")])
    return {
        str(path.relative_to(building)): x509.load_pem_x509_certificate(path.read_bytes()).serial_number
        for path in found
    }


def test_certificates_last_a_year_and_their_authority_ten(building):
    found = lasting(building)
    assert set(found) == {*HERE, "the authority", "Home Assistant", *DEVICES}
    assert {round(days) for whose, days in found.items() if whose != "the authority"} == {365}
    assert round(found["the authority"]) == 3650


def test_what_ends_soon_is_renewed_where_the_key_of_the_authority_is(building, caplog):
    caplog.set_level(logging.INFO, "fedfilt")
    server, before = building / "server", serials(building)
    renew_due(server, later(300))
    assert serials(building) == before
    key = server / "certificates" / "ca.key"
    key.rename(building / "offline")
    renew_due(server, later(340))
    assert serials(building) == before
    assert "expires in 25 days: put ca.key back into" in caplog.text
    (building / "offline").rename(key)
    renew_due(server, later(340))
    changed = {path for path, serial in serials(building).items() if before[path] != serial}
    keys = {f"server/mqtt/{name}.crt" for name in ("edge", "edge-ears", "people")}
    assert changed == {"server/certificates/server.crt", "broker/server.crt", *keys}
    authority = x509.load_pem_x509_certificate((server / "certificates" / "ca.crt").read_bytes())
    for path in changed:
        made = x509.load_pem_x509_certificate((building / path).read_bytes())
        made.verify_directly_issued_by(authority)
        ssl.create_default_context().load_cert_chain(building / path, (building / path).with_suffix(".key"))
        assert (building / path).with_suffix(".key").stat().st_mode & 0o077 == 0
    assert caplog.text.count("was renewed") == 5


def test_commands_renew_by_hand_and_say_what_to_carry_where(building, monkeypatch):
    before = serials(building)
    done = call("deploy", "renew", "--building", building)
    assert done.stdout.splitlines() == [f"{whose} has a new certificate and loads it by itself" for whose in HERE]
    assert call("home", "update", building).stdout == "nothing has changed\n"
    monkeypatch.setattr(certificates, "DAYS", 40)
    renew_device(building, "device-001")
    told = call("deploy", "status", "--building", building).stdout
    assert re.findall(r"the certificate of (\S+) expires in (\d+) days", told) == [("device-001", "39")]
    monkeypatch.undo()
    told = " ".join(call("home", "update", building).stdout.split())
    folder = building / "devices" / "device-001" / "mqtt"
    assert told == f"device-001 has a new certificate; copy {folder} into its folder on the device"
    assert days_left(folder / "client.crt") > 364
    assert serials(building)["server/mqtt/devices/device-002.crt"] == before["server/mqtt/devices/device-002.crt"]
    shutil.rmtree(building / "devices" / "device-002")  # it was moved to the device
    told = call("home", "update", building, "--renew").stdout
    assert [line.split(" has ")[0] for line in told.splitlines()] == [*HERE, "Home Assistant", *DEVICES]
    assert (building / "devices" / "device-002" / "mqtt" / "client.key").exists()
    assert min(lasting(building).values()) > 364


@needs_mosquitto
@pytest.mark.slow(6)
def test_a_broker_and_its_clients_take_up_new_certificates_without_a_restart(tmp_path, kept, monkeypatch):
    building = home_written(tmp_path)
    broker = Broker(building, kept)
    context = ssl.create_default_context(cafile=building / "broker" / "ca.crt")
    own = building / "server" / "mqtt"
    context.load_cert_chain(own / "people.crt", own / "people.key")

    def serial():
        plain = socket.create_connection(broker.where, WAIT)
        with plain, context.wrap_socket(plain, server_hostname=broker.where.host) as one:
            return one.getpeercert()["serialNumber"]

    before = serial()
    renew_all(building / "server")
    until(lambda: serial() != before, "the broker has its new certificate", WAIT)
    monkeypatch.setattr(certificates, "DAYS", 0)  # has ended when it is made
    folder = renew_device(building, "device-000")
    watch = Mqtt(broker.where.host, broker.where.port, "device-000", keys=Keys.of(folder))
    try:
        assert not watch.wait(1.5)
        monkeypatch.undo()
        renew_device(building, "device-000")
        assert watch.wait(WAIT)
    finally:
        watch.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("words", [["deploy", "renew", "--building"], ["home", "update"]])
def test_root_does_not_write_to_the_folder_of_another_user(building, words):
    before = serials(building)
    os.chown(building / "server", pwd.getpwnam("nobody").pw_uid, -1)
    done = call(*words, building)
    assert done.returncode == 1
    assert "belongs to nobody: run this as that user, with sudo -u nobody" in " ".join(done.stderr.split())
    assert serials(building) == before


ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here (Debian: apt-get install systemd)")
@pytest.mark.parametrize(
    "path",
    ["server/fedfilt-server", "server/fedfilt-home", "broker/fedfilt-broker", "devices/device-000/fedfilt-device-000"],
)
def test_systemd_takes_the_units_and_finds_little_exposed(written_home, tmp_path, path):
    file = tmp_path / f"{path.rpartition('/')[2]}.service"
    text = (written_home / f"{path}.service").read_text()
    assert "User=fedfilt\n" in text
    assert re.search(r'ReadWritePaths="[^"]+/(server|broker|device-000)"', text)
    program = re.search(r"(?m)^ExecStart=(\S+)", text).group(1)
    file.write_text(text if Path(program).exists() else text.replace(program, "/bin/true"))  # no broker here
    for words in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(
            [str(ANALYZE), *words, str(file)], capture_output=True, text=True, timeout=SLOW, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown" not in done.stderr, done.stderr


def test_a_folder_with_any_name_means_itself_to_systemd():
    """Signs of systemd's own: specifiers, variables, quotes."""
    text = unit(
        "a device", f"/usr/bin/fedfilt device {shlex.quote('/srv/my ${HOME} 50%')}", Path('/srv/my ${HOME} 50%"')
    )
    assert "ExecStart=/usr/bin/fedfilt device '/srv/my $${HOME} 50%%'\n" in text
    assert 'ReadWritePaths="/srv/my ${HOME} 50%%\\""\n' in text


def test_days_of_a_device_whose_certificate_nobody_kept_are_not_known(building):
    shutil.rmtree(building / "server" / "mqtt" / "devices")
    shutil.rmtree(building / "devices" / "device-003")
    found = lasting(building)
    assert "device-003" not in found
    assert not any(math.isnan(days) for days in found.values())
