"""Names of hosts and of what model hubs hold, read so strictly that two readers cannot read them differently.

Imports nothing of ours but `opening` and `environment`.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TypeGuard
from urllib.parse import urlsplit

from .. import environment
from .opening import shown

HOST = re.compile(r"(?P<name>[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])\.?(:(?P<port>\d{1,5}))?", re.ASCII)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
PAGE_HOSTS = (
    "OTCA_PAGE_HOSTS"  # names, separated by commas, by which the user reaches ComfyUI's page or that of otca vote
)
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
    if "?" in url or "#" in url:  # by which a graph could choose what one of this machine's servers does
        raise ValueError(
            f"{shown(url)} has a part from ? or # on, which no server here takes. Fix: leave that part out"
        )
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


def name_in(host: str) -> str | None:
    """The name in a request's Host header, without its port; None for anything else."""
    match = HOST.fullmatch(host.lower())
    return match["name"] if match else None


def is_home(host: str) -> bool:
    """Whether a Host header has a name of this machine, or one that the user listed in OTCA_PAGE_HOSTS.

    A site of a stranger's can have its own name lead to this machine, and is then, to a browser, the same site as our page. What
    the name is, it cannot change.
    """
    listed = [part.strip().lower() for part in environment.read(PAGE_HOSTS).split(",")]
    name = name_in(host)
    return name is not None and (is_loopback(name) or name in listed)


def wandb_host(named_only: bool = False) -> str | None:
    """The host of Weights & Biases; with `named_only` only where the user named a server of his own."""
    base = environment.read("WANDB_BASE_URL", "" if named_only else "https://api.wandb.ai")
    try:
        return host_of(base)
    except ValueError:
        return None
