"""Signed capability records: what an agent says it can do, until when, in words nobody can forge.

A record binds a key (the hash of a capability), the agent, the end of its life and a body to a
token. Two schemes of tokens: "keyed", a keyed hash whose key belongs to the agent, and "ed25519",
real public-key signatures, for which the extra `cryptography` is needed.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Literal, NamedTuple

from orrery.base.errors import PlatformLacks

Scheme = Literal["keyed", "ed25519"]


class CapabilityRecord(NamedTuple):
    """One offer: `key` is where it is filed, `expires_ms` the time of the run when it ends."""

    key: int
    agent: int
    expires_ms: int
    body: bytes
    token: bytes


def key_of_capability(capability: int, bits: int) -> int:
    """Where a capability is filed: a hash of its name, the same on every machine."""
    word = hashlib.blake2b(f"capability {capability}".encode(), digest_size=8).digest()
    return int.from_bytes(word, "big") >> (64 - bits)


def sign(
    scheme: Scheme, key: int, agent: int, expires_ms: int, body: bytes = b""
) -> CapabilityRecord:
    """A record with the agent's token.

    >>> record = sign("keyed", key=5, agent=2, expires_ms=1000, body=b"translate")
    >>> genuine("keyed", record, key=5), genuine("keyed", record._replace(agent=3), key=5)
    (True, False)
    """
    words = _words(key, agent, expires_ms, body)
    if scheme == "keyed":
        token = hashlib.blake2b(words, key=_secret(agent), digest_size=16).digest()
    else:
        token = _private(agent).sign(words)
    return CapabilityRecord(key, agent, expires_ms, body, token)


def genuine(scheme: Scheme, record: CapabilityRecord, key: int) -> bool:
    """Whether a record is filed under this key and says what its agent signed."""
    if record.key != key or record.agent < 0:
        return False
    words = _words(record.key, record.agent, record.expires_ms, record.body)
    if scheme == "keyed":
        right = hashlib.blake2b(words, key=_secret(record.agent), digest_size=16).digest()
        return bool(right == record.token)
    public = _private(record.agent).public_key()
    try:
        public.verify(record.token, words)
    except _invalid_signature():
        return False
    return True


def _words(key: int, agent: int, expires_ms: int, body: bytes) -> bytes:
    return b"%d|%d|%d|" % (key, agent, expires_ms) + body


@functools.lru_cache(maxsize=1 << 16)
def _secret(agent: int) -> bytes:
    """The key of an agent; in virtual time a liar could compute it but has no line that does."""
    return hashlib.blake2b(f"secret of agent {agent}".encode(), digest_size=32).digest()


@functools.lru_cache(maxsize=1 << 12)
def _private(agent: int) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise PlatformLacks(
            'signature="ed25519" needs the package cryptography; pip install cryptography, '
            'or use signature="keyed"'
        ) from None
    return Ed25519PrivateKey.from_private_bytes(_secret(agent))


@functools.lru_cache(maxsize=1)
def _invalid_signature() -> type[Exception]:
    from cryptography.exceptions import InvalidSignature

    return InvalidSignature
