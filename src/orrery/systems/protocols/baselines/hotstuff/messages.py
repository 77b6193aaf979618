"""What HotStuff replicas keep and send: blocks, certificates, and the chain that they form."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from orrery.base.codec import encode
from orrery.systems.protocols.baselines.dolev_strong import sign, signed
from orrery.systems.protocols.problems.total_order import Request

Batch = tuple[Request, ...]
TOKEN_B = 48  # an aggregated BLS signature


class Certificate(msgspec.Struct, frozen=True, array_like=True):
    """A quorum's word: votes for the block of a view or, with no block, wishes for a view.

    `signers` is a bitmap and `token` one aggregate of their signatures, as in BLS multi-signatures,
    so a certificate has n / 8 + 48 bytes.
    """

    view: int
    block: bytes
    signers: bytes
    token: bytes


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A proposal: its place in the chain, the certificate of its parent, and requests."""

    view: int
    height: int
    justify: Certificate
    batch: Batch

    @property
    def parent(self) -> bytes:
        """The name of the block that this one extends: always the one that it certifies."""
        return self.justify.block


def name_of(block: Block) -> bytes:
    """16 bytes that stand for a block and, through its parent, for all before it."""
    return hashlib.blake2b(encode(block), digest_size=16).digest()


ROOT_BLOCK = Block(0, 0, Certificate(-1, b"", b"", b""), ())
ROOT = name_of(ROOT_BLOCK)
FIRST = Certificate(0, ROOT, b"", b"")  # that of the root, which needs no votes


def text_of(view: int, block: bytes) -> bytes:
    """What is signed: a vote for a block, or the wish for a view when there is none."""
    return b"%s %d %s" % (b"vote" if block else b"wish", view, block)


def vote(signer: int, view: int, block: bytes) -> bytes:
    """The signature of one replica under a vote or a wish."""
    return sign(signer, text_of(view, block))


def is_vote(signer: int, view: int, block: bytes, token: bytes) -> bool:
    """Whether a replica signed this vote or wish."""
    return signed(signer, text_of(view, block), token)


def certificate(view: int, block: bytes, votes: Mapping[int, bytes]) -> Certificate:
    """The certificate that these signatures make."""
    bits = sum(1 << signer for signer in votes)
    signers = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return Certificate(view, block, signers, _together(votes[i] for i in sorted(votes)))


def _together(tokens: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(tokens), digest_size=TOKEN_B).digest()


def signers_of(given: Certificate) -> list[int]:
    """Who signed."""
    bits = int.from_bytes(given.signers, "little")
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


# A pure function: every replica of a simulated world checks the same certificate once.
@functools.lru_cache(maxsize=1 << 12)
def is_certified(given: Certificate, size: int, quorum: int) -> bool:
    """Whether so many of `size` replicas signed a certificate. O(n) hashes."""
    if given == FIRST:
        return True
    if given.view < 1 or len(given.signers) > (size + 7) // 8:
        return False
    who = signers_of(given)
    if len(who) < quorum or who[-1] >= size:
        return False
    text = text_of(given.view, given.block)
    return _together(sign(i, text) for i in who) == given.token


class Chain:
    """The blocks that a replica holds, by name, and which of them it has applied.

    A block may come before its ancestors; `gap` names the first that is missing. Walks go back no
    further than what is applied, so they take as many steps as there are blocks in doubt.
    """

    def __init__(self) -> None:
        self.blocks: dict[bytes, Block] = {ROOT: ROOT_BLOCK}
        self.applied: list[bytes] = [ROOT]  # by height

    @property
    def height(self) -> int:
        """That of the last applied block."""
        return len(self.applied) - 1

    def gap(self, name: bytes) -> bytes | None:
        """The nearest ancestor that is not held, the block itself included; None: all are."""
        while True:
            block = self.blocks.get(name)
            if block is None:
                return name
            if block.height <= self.height:
                return None
            name = block.parent

    def path(self, name: bytes) -> list[tuple[bytes, Block]] | None:
        """The blocks after the last applied one up to this one; None where it is no descendant."""
        found = []
        while name != self.applied[-1]:
            block = self.blocks.get(name)
            if block is None or block.height <= self.height:
                return None
            found.append((name, block))
            name = block.parent
        found.reverse()
        return found

    def extends(self, name: bytes, ancestor: bytes) -> bool:
        """Whether a block is, or descends from, another one."""
        known = self.blocks.get(ancestor)
        lowest = self.height if known is None else known.height
        while name != ancestor:
            block = self.blocks.get(name)
            if block is None or block.height <= lowest:
                return False
            name = block.parent
        return True


class Voted(msgspec.Struct, frozen=True, array_like=True):
    """What a replica has on disk before it votes: the block, its lock then, and its way in."""

    block: Block
    lock: Certificate
    proof: Certificate | None
