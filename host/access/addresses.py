"""Names of hosts and of what model hubs hold, read so strictly that two readers cannot read them differently.

Imports nothing of ours but `opening`.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TypeGuard
from urllib.parse import urlsplit

from .opening import shown

HOST = re.compile(r"(?P<name>[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])\.?(:(?P<port>\d{1,5}))?", re.ASCII)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_PORTS = {"http": 80, "https": 443}


def host_of(url: object) -> str:
    """`name:port` of an address as a request goes to it. Raises ValueError for what two readers could read differently."""
    wrong = f"{shown(url)} is not the address of a server. Fix: for example http://127.0.0.1:8189/score"
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or set(url) & set(" \\"):
        raise ValueError(wrong)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(wrong) from None
    if "@" in parts.netloc:
        raise ValueError(
            f"the address of {parts.hostname} carries a name or password, which would be saved with the workflow. Fix: put "
            "a token into an environment variable, and name that in token_variable"
        )
    match = HOST.fullmatch(parts.netloc.lower())
    port = int(match["port"] or _PORTS.get(parts.scheme, 0)) if match else 0
    if parts.scheme not in _PORTS or not match:
        raise ValueError(wrong)
    if not 0 < port < 65536:
        raise ValueError(f"{shown(url)} names a port that no server has. Fix: one from 1 to 65535")
    return f"{match['name']}:{port}"


def is_hub_id(name: object) -> TypeGuard[str]:
    """owner/name, as model hubs call what they hold."""
    return isinstance(name, str) and _REPOSITORY.fullmatch(name) is not None and ".." not in name


def is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def wandb_host(named_only: bool = False) -> str | None:
    """The host of Weights & Biases; with `named_only` only where the user named a server of his own."""
    base = os.environ.get("WANDB_BASE_URL", "" if named_only else "https://api.wandb.ai")
    try:
        return host_of(base)
    except ValueError:
        return None
