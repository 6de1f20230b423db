"""Signatures by a node's CURVE key, for words that others pass on: XEdDSA (Signal, revision 1, 2016).

A CURVE key is a point of Curve25519. The same point on its Edwards form verifies as an Ed25519 key does, so that who
knows a node's public key needs no second one to know what the node said. Signing computes in Python, in a time that
follows the key: it is done when a person revokes a node, never at another node's request.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pyagent.core.cluster.cluster_state import decode_key

if TYPE_CHECKING:
    from pyagent.infrastructure.cluster.keys import NodeKeys

SIGNATURE_BYTES = 64
_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_NONCE_PREFIX = b"\xfe" + b"\xff" * 31


def sign(keys: NodeKeys, message: bytes) -> bytes:
    """Return the 64 bytes of a signature."""
    scalar = _clamped(decode_key(keys.secret))
    point = _times_base(scalar)
    if point[31] & 0x80:  # the verifier takes the point with the even x
        scalar = -scalar
    scalar %= _ORDER
    key = point[:31] + bytes([point[31] & 0x7F])
    nonce = _hashed(_NONCE_PREFIX, scalar.to_bytes(32, "little"), message, secrets.token_bytes(64))
    commitment = _times_base(nonce)
    challenge = _hashed(commitment, key, message)
    return commitment + ((nonce + challenge * scalar) % _ORDER).to_bytes(32, "little")


def is_signed(public: str, message: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key signed a message; False for what is no key or no signature."""
    try:
        u = int.from_bytes(decode_key(public), "little") % 2**255
        if u >= _P - 1:  # no point, or one without an Edwards form
            return False
        y = (u - 1) * pow(u + 1, -1, _P) % _P
        Ed25519PublicKey.from_public_bytes(y.to_bytes(32, "little")).verify(signature, message)
    except (ValueError, InvalidSignature):
        return False
    return True


def _clamped(secret: bytes) -> int:
    """Return the scalar that X25519 makes of a secret key (RFC 7748, section 5)."""
    return int.from_bytes(secret, "little") & ((1 << 254) - 8) | (1 << 254)


def _hashed(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % _ORDER


def _times_base(scalar: int) -> bytes:
    """Return the base point times a scalar, as Ed25519 writes it: y, and the sign of x in the last bit."""
    from spake2 import ed25519_basic  # what joining takes

    untyped: Any = ed25519_basic
    point: bytes = untyped.Base.scalarmult(scalar).to_bytes()
    return point
