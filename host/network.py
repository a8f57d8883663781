"""The requests that the pack itself makes: all of them go by a session that is made here, to servers that the user allowed
(`access/permissions.py`). What the model hub's library and Weights & Biases' fetch or send is theirs.
"""

from __future__ import annotations

import asyncio

import aiohttp

Session = aiohttp.ClientSession
Response = aiohttp.ClientResponse
FAILED = (aiohttp.ClientError, asyncio.TimeoutError)  # what a request raises that got no answer


def limit(total: float | None, connect: float | None = None, silence: float | None = None) -> aiohttp.ClientTimeout:
    """How long one request may take, in seconds; None: without end.

    Args:
        total: from its beginning until the whole answer is read. Only this ends a server that drips a byte a second.
        connect: until there is a connection.
        silence: between two pieces of the answer.
    """
    return aiohttp.ClientTimeout(total=total, connect=connect, sock_read=silence)


def session(token: str, time: aiohttp.ClientTimeout) -> Session:
    """Requests to one server, each within `time` unless it has a `limit` of its own; `token`: a bearer token, "" for none.

    No proxy of the environment is asked. Answers are wanted as they are, since aiohttp would decompress them without a limit.
    """
    headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}
    return Session(headers=headers, timeout=time, auto_decompress=False, trust_env=False)


async def read_at_most(response: Response, most: int) -> tuple[bytes, bool]:
    """The first `most` bytes of an answer, and whether that is all of it. Nothing of a compressed answer is read."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
        response.close()
        return b"", False
    try:
        content = await response.content.readexactly(most + 1)
    except asyncio.IncompleteReadError as end:
        return end.partial, True
    response.close()  # else the rest would be waited for
    return content[:most], False
