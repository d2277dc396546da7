"""Signatures of bundles and site folders, in the format of OpenSSF Model Signing 1.0.

`signature.json` lies beside the document it vouches for (`manifest.yaml`, `site.yaml`), which in
turn holds the checksum of every other file. It is a Sigstore bundle around a DSSE envelope around
an in-toto statement, signed with an elliptic-curve key; `model_signing verify key` accepts it, and
its signatures are accepted here. docs/signing.md explains the choice, keys and their rotation.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.errors import PenumbraError
from penumbra.files import read_regular, write_atomically
from penumbra.safe_yaml import LARGEST
from penumbra.text import printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

SIGNATURE = "signature.json"
LARGEST_SIGNATURE = 1 << 18  # bytes; a bundle of four files has 2 kB
LARGEST_KEY = 1 << 14

_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"
# What is not signed: the signature itself, and the model card, which stays open to corrections.
_NOT_SIGNED = (SIGNATURE, "README.md")


def new_key(file: Path) -> Path:
    """Write a new private key, readable by its owner only; returns the file of the public key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public = file.with_suffix(".pub")
    if public == file:
        raise PenumbraError(f"{file} is the name of a public key: end the private key's in .pem")
    for existing in (file, public):
        if existing.exists():
            raise PenumbraError(f"{existing} exists: choose another name, no key is replaced")
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_atomically(file, private, mode=0o600)
    write_atomically(public, _pem(key.public_key()))
    return public


def sign(folder: Path, document: str, files: Mapping[str, str], key_file: Path) -> Path:
    """Sign `document` of `folder` and the `files` it lists with their SHA-256; atomically."""
    key = _private_key(key_file)
    try:
        content = read_regular(folder / document, LARGEST)
    except FileNotFoundError as error:
        raise PenumbraError(f"{folder / document} is missing: there is nothing to sign") from error
    digests = {**files, document: hashlib.sha256(content).hexdigest()}
    payload = json.dumps(_statement(folder.resolve().name, digests)).encode()
    signature = {
        "mediaType": _MEDIA_TYPE,
        "verificationMaterial": {
            "publicKey": {"hint": _key_id(key.public_key())},
            "tlogEntries": [],
        },
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [
                {
                    "sig": base64.b64encode(_sign(key, _signed_bytes(payload))).decode(),
                    "keyid": "",
                }
            ],
        },
    }
    write_atomically(folder / SIGNATURE, json.dumps(signature, indent=2) + "\n")
    return folder / SIGNATURE


def verify_signature(
    folder: Path, trusted_keys: Sequence[Path], document: str = "manifest.yaml"
) -> bytes:
    """The content of `document`, signed by one of the trusted keys; PenumbraError otherwise.

    The returned bytes are those that were verified: parse them, and do not read the file again.
    The other files of the folder are covered by the checksums in the document.
    """
    if not trusted_keys:
        raise PenumbraError(f"no key to verify {folder} with: name at least one public key")
    keys = [_public_key(file) for file in trusted_keys]
    file = folder / SIGNATURE
    try:
        data = read_regular(file, LARGEST_SIGNATURE)
    except FileNotFoundError as error:
        raise PenumbraError(
            f"{folder} is not signed: sign it (penumbra sign {folder} --key KEY.pem), or unset "
            "the trusted keys"
        ) from error
    try:
        payload, signature = _envelope(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _malformed(file, error) from error
    if not any(_is_signed_by(key, signature, _signed_bytes(payload)) for key in keys):
        raise PenumbraError(
            f"{file} is not a signature of a trusted key ({_names(trusted_keys)}): the folder was "
            "altered, or add the key of whoever signed it"
        )
    try:
        expected = _digest(json.loads(payload), document)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _malformed(file, error) from error
    try:
        content = read_regular(folder / document, LARGEST)
    except FileNotFoundError as error:
        raise PenumbraError(f"{folder / document} is missing: copy the folder again") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise PenumbraError(
            f"{folder / document} was altered after it was signed: copy the folder again, or sign "
            "it again"
        )
    return content


def _statement(name: str, digests: Mapping[str, str]) -> dict[str, Any]:
    """The in-toto statement: every file, in alphabetical order, and a digest of their digests."""
    ordered = sorted(digests.items())
    whole = hashlib.sha256(b"".join(bytes.fromhex(digest) for _, digest in ordered))
    return {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": whole.hexdigest()}}],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": list(_NOT_SIGNED),
            },
            "resources": [
                {"name": file, "algorithm": "sha256", "digest": digest} for file, digest in ordered
            ],
        },
    }


def _envelope(signature: Any) -> tuple[bytes, bytes]:
    """The payload of the DSSE envelope, still to be verified, and its signature."""
    if signature["mediaType"] != _MEDIA_TYPE:
        raise ValueError(f"its type is {signature['mediaType']!r}, not {_MEDIA_TYPE}")
    envelope = signature["dsseEnvelope"]
    if envelope["payloadType"] != _PAYLOAD_TYPE:
        raise ValueError(f"its payload is {envelope['payloadType']!r}, not {_PAYLOAD_TYPE}")
    (entry,) = envelope["signatures"]
    return (
        base64.b64decode(envelope["payload"], validate=True),
        base64.b64decode(entry["sig"], validate=True),
    )


def _digest(statement: Any, document: str) -> str:
    """The SHA-256 of `document` in a verified statement."""
    for key, expected in (("_type", _STATEMENT_TYPE), ("predicateType", _PREDICATE_TYPE)):
        if statement[key] != expected:
            raise ValueError(f"its {key} is {statement[key]!r}, not {expected}")
    found = [
        resource["digest"]
        for resource in statement["predicate"]["resources"]
        if resource["name"] == document and resource["algorithm"] == "sha256"
    ]
    if len(found) != 1 or not isinstance(found[0], str):
        raise ValueError(f"it lists {document} {len(found)} times")
    return found[0]


def _signed_bytes(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what is signed is the payload together with its type."""
    return f"DSSEv1 {len(_PAYLOAD_TYPE)} {_PAYLOAD_TYPE} {len(payload)} ".encode() + payload


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, _algorithm(key.curve))


def _is_signed_by(key: ec.EllipticCurvePublicKey, signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, data, _algorithm(key.curve))
    except InvalidSignature:
        return False
    return True


def _algorithm(curve: ec.EllipticCurve) -> ec.ECDSA:
    """ECDSA with the hash that Sigstore pairs with the curve."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    by_size: dict[int, hashes.HashAlgorithm] = {
        256: hashes.SHA256(),
        384: hashes.SHA384(),
        521: hashes.SHA512(),
    }
    return ec.ECDSA(by_size[curve.key_size])


def _private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    data = _key_data(file, "private")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError as error:  # it is encrypted
        raise PenumbraError(
            f"{file} is encrypted: decrypt it for signing (openssl pkey -in {file})"
        ) from error
    except Exception as error:  # of several unrelated classes
        raise _not_a_key(file, "private") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _supported(key.curve):
        raise _not_a_key(file, "private")
    return key


def _public_key(file: Path) -> ec.EllipticCurvePublicKey:
    data = _key_data(file, "public")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_public_key(data)
    except Exception as error:  # of several unrelated classes
        raise _not_a_key(file, "public") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not _supported(key.curve):
        raise _not_a_key(file, "public")
    return key


def _supported(curve: ec.EllipticCurve) -> bool:
    return curve.name in ("secp256r1", "secp384r1", "secp521r1")


def _key_data(file: Path, kind: str) -> bytes:
    try:
        return read_regular(file.expanduser(), LARGEST_KEY, follow=True)
    except FileNotFoundError as error:
        raise PenumbraError(
            f"no {kind} key at {file}: make a pair with `penumbra sign --new-key KEY.pem`"
        ) from error


def _not_a_key(file: Path, kind: str) -> PenumbraError:
    return PenumbraError(
        f"{file} is not the {kind} key of a NIST curve (P-256, P-384, P-521) in PEM format: make a "
        "pair with `penumbra sign --new-key KEY.pem`"
    )


def _key_id(key: ec.EllipticCurvePublicKey) -> str:
    return hashlib.sha256(_pem(key)).hexdigest()


def _pem(key: ec.EllipticCurvePublicKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _names(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files))


def _malformed(file: Path, error: Exception) -> PenumbraError:
    why = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
    return PenumbraError(
        f"{file} is not a signature ({printable(' '.join(why.split()))}): sign the folder again"
    )
