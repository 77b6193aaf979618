"""Signatures that nodes put under what they say: tokens in virtual time, Ed25519 for real.

A token is a digest of the signer's number and the text. Anyone could compute it, so it is
unforgeable by discipline only: a lying node is handed the keys of its own number and nothing else.
Ed25519 signatures are real ones of the package `cryptography`. Both are 64 bytes long.

Keys come from a trusted dealer: they are derived from a word and the node's number, which is enough
to try a protocol and nothing for use in earnest, where each machine draws its own.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Literal

from orrery.base.errors import PlatformLacks

TOKEN_B = 64
Scheme = Literal["auto", "token", "ed25519"]


class Keys:
    """The keys that one node holds: its own to sign with, everybody's to check with."""

    def __init__(self, me: int, word: str = "orrery") -> None:
        self.me = me
        self.word = word

    def sign(self, text: bytes) -> bytes:
        """This node's signature under a text."""
        raise AssertionError("a scheme says how it signs")

    def good(self, signer: int, text: bytes, token: bytes) -> bool:
        """Whether a signature is that node's under that text; rubbish is not, and never an error.

        >>> TokenKeys(0).good(3, b"yes", TokenKeys(3).sign(b"yes"))
        True
        >>> TokenKeys(0).good(4, b"yes", TokenKeys(3).sign(b"yes"))
        False
        """
        raise AssertionError("a scheme says how it checks")


class TokenKeys(Keys):
    """Tagged tokens: one keyed hash each, for virtual time."""

    def sign(self, text: bytes) -> bytes:
        return _token(self.word, self.me, text)

    def good(self, signer: int, text: bytes, token: bytes) -> bool:
        return 0 <= signer < 1 << 32 and token == _token(self.word, signer, text)


class RealKeys(Keys):
    """Ed25519, for real processes; about 50 us to sign and 130 us to check."""

    def __init__(self, me: int, word: str = "orrery") -> None:
        super().__init__(me, word)
        self._private = _private(word, me)

    def sign(self, text: bytes) -> bytes:
        signature: bytes = self._private.sign(text)
        return signature

    def good(self, signer: int, text: bytes, token: bytes) -> bool:
        if not 0 <= signer < 1 << 32 or len(token) != TOKEN_B:
            return False
        from cryptography.exceptions import InvalidSignature

        try:
            _public(self.word, signer).verify(token, text)
        except InvalidSignature:
            return False
        return True


def keys_for(node: Any, scheme: Scheme, word: str = "orrery") -> Keys:
    """The keys of a running node; "auto" is tokens in virtual time and Ed25519 on real engines."""
    if scheme == "auto":
        scheme = "token" if in_virtual_time(node) else "ed25519"
    return (TokenKeys if scheme == "token" else RealKeys)(node.id, word)


def keys_like(me: int, token: bytes, text: bytes) -> Keys:
    """The keys of a lying node, of the scheme in which it was seen to sign a text."""
    keys = TokenKeys(me)
    return keys if keys.good(me, text, token) else RealKeys(me)


def in_virtual_time(node: Any) -> bool:
    """Whether the clock under a running node is a modelled one: its host class tells."""
    return any(cls.__name__ == "VirtualHost" for cls in type(node).__mro__)


def _token(word: str, signer: int, text: bytes) -> bytes:
    return hashlib.blake2b(text, key=word.encode()[:64], salt=signer.to_bytes(16, "big")).digest()


@functools.lru_cache(maxsize=4096)
def _private(word: str, node: int) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise PlatformLacks(
            "Ed25519 signatures need the package cryptography: pip install 'orrery[sign]', "
            'or set signature = "token"'
        ) from None
    secret = hashlib.blake2b(f"{word} {node}".encode(), digest_size=32).digest()
    return Ed25519PrivateKey.from_private_bytes(secret)


@functools.lru_cache(maxsize=4096)
def _public(word: str, node: int) -> Any:
    return _private(word, node).public_key()
