"""systemd units that run as a separate user and can do little besides their work."""

import shlex
from pathlib import Path

USER = "fedfilt"  # that runs all units
HOMES = ("/home", "/root", "/run/user")

UNIT = """[Unit]
Description={what}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
{reload}User={user}
Restart=on-failure
RestartSec=5
LimitNOFILE=65536
UMask=0077

# It reads the system, writes to its own folder{others}, uses the network, and does nothing else.
ReadWritePaths={writes}
ProtectSystem=strict
ProtectHome={homes}
PrivateTmp=true
PrivateDevices=true
ProtectClock=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectProc=invisible
NoNewPrivileges=true
CapabilityBoundingSet=
AmbientCapabilities=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
LockPersonality=true
RemoveIPC=true
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def unit(what: str, command: str, folder: Path, *, also: Path | None = None, reload: str = "") -> str:
    """A unit for a command that works in a folder, and perhaps in `also`; `reload` is the signal to load settings.

    A folder or program in somebody's home can be read if that person grants access.
    """
    words = [str(folder), *shlex.split(command)]
    inside = any(word.startswith(tuple(f"{home}/" for home in HOMES)) for word in words)
    writes = _quoted(folder) if also is None else f"{_quoted(folder)} {_quoted(also, missing=True)}"
    return UNIT.format(
        what=what,
        command=command.replace("%", "%%").replace("$", "$$"),  # no specifiers or variables of systemd
        reload=f"ExecReload=kill -{reload} $MAINPID\n" if reload else "",
        user=USER,
        others="" if also is None else f" and {also.name}",
        writes=writes,
        homes="read-only" if inside else "true",
    )


def _quoted(path: Path, missing: bool = False) -> str:
    """A path in the form systemd expects in a list; it may be `missing`."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{"-" if missing else ""}{text}"'
