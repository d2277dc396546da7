"""With trusted keys a bundle loads only as one of them signed it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil

import pytest
import tiny_bundles
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from penumbra import bundle as bundle_module
from penumbra.bundle import load_bundle, rewrite_bundle
from penumbra.cli.main import main
from penumbra.errors import PenumbraError
from penumbra.signatures import SIGNATURE, new_key, sign, verify_signature


@pytest.fixture
def key(tmp_path):
    """The files of a private and a public key."""
    return tmp_path / "fleet.pem", new_key(tmp_path / "fleet.pem")


@pytest.fixture
def signed(tmp_path, key):
    bundle = tiny_bundles.segmentation(tmp_path / "street")
    sign(bundle.path, "manifest.yaml", bundle.files, key[0])
    return bundle.path


def refusal(folder, *trusted) -> str:
    with pytest.raises(PenumbraError) as caught:
        load_bundle(folder, trusted)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    return message


def edit_signature(folder, change) -> None:
    file = folder / SIGNATURE
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_a_signed_bundle_is_loaded(signed, key):
    assert load_bundle(signed, [key[1]]).name == "street"
    assert verify_signature(signed, [key[1]]) == (signed / "manifest.yaml").read_bytes()


def test_the_private_key_is_its_owners_only(key):
    assert key[0].stat().st_mode & 0o777 == 0o600
    for name in key:
        with pytest.raises(PenumbraError, match="exists: .* no key is replaced"):
            new_key(name.with_suffix(".pem"))
    with pytest.raises(PenumbraError, match="name of a public key"):
        new_key(key[1])


def test_an_independent_reading_of_the_format(signed, key):
    """DSSE's specification, word by word: what is signed, and the checksums in the statement."""
    envelope = json.loads((signed / SIGNATURE).read_text())["dsseEnvelope"]
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    encoded = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    public = serialization.load_pem_public_key(key[1].read_bytes())
    value = base64.b64decode(envelope["signatures"][0]["sig"])
    public.verify(value, encoded, ec.ECDSA(hashes.SHA256()))
    with pytest.raises(InvalidSignature):
        public.verify(value, payload, ec.ECDSA(hashes.SHA256()))
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    found = {r["name"]: r["digest"] for r in statement["predicate"]["resources"]}
    on_disk = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in signed.iterdir()}
    del on_disk[SIGNATURE]
    assert found == on_disk
    whole = b"".join(bytes.fromhex(found[name]) for name in sorted(found))
    assert statement["subject"][0]["digest"]["sha256"] == hashlib.sha256(whole).hexdigest()


def test_an_unsigned_bundle_is_refused_only_where_keys_are_trusted(signed, key):
    (signed / SIGNATURE).unlink()
    assert load_bundle(signed).name == "street"
    assert "is not signed: sign it" in refusal(signed, key[1])


def test_another_key_is_refused_and_rotation_works(tmp_path, signed, key):
    other = new_key(tmp_path / "other.pem")
    assert "is not a signature of a trusted key" in refusal(signed, other)
    assert load_bundle(signed, [other, key[1]]).name == "street"  # both, while keys are rotated
    assert "no public key at" in refusal(signed, key[1], tmp_path / "lost.pub")


def test_a_forger_can_correct_checksums_but_not_the_signature(signed, key):
    """Thresholds raised: without a signature nobody notices, with one the bundle is refused."""
    file = signed / "manifest.yaml"
    file.write_text(file.read_text().replace("name: street", "name: strait"))
    assert load_bundle(signed).name == "strait"
    assert "manifest.yaml was altered after it was signed" in refusal(signed, key[1])


@pytest.mark.parametrize("name", ["model.onnx", "weights.safetensors"])
def test_an_altered_file_is_refused(signed, key, name):
    (signed / name).write_bytes(b"")
    assert f"{name} (0 bytes) is not the file that was exported" in refusal(signed, key[1])


def test_a_signature_of_another_bundle_is_refused(tmp_path, signed, key):
    other = tiny_bundles.depth(tmp_path / "depth").path
    shutil.copy(signed / SIGNATURE, other)
    assert "was altered after it was signed" in refusal(other, key[1])


def test_a_rewritten_bundle_has_lost_its_signature(signed, key):
    rewrite_bundle(load_bundle(signed), name="again")
    assert "is not signed" in refusal(signed, key[1])


def test_nothing_is_parsed_before_the_signature_is_verified(signed, key, monkeypatch):
    """An invalid manifest is never reached, and the bytes verified are the bytes parsed."""
    file = signed / "manifest.yaml"
    right = file.read_bytes()
    file.write_bytes(b"[" * 1000)
    assert "was altered after it was signed" in refusal(signed, key[1])
    file.write_bytes(right)
    genuine = bundle_module.verify_signature

    def swap(*arguments):
        data = genuine(*arguments)
        file.write_text("name: something else")
        return data

    monkeypatch.setattr(bundle_module, "verify_signature", swap)
    assert load_bundle(signed, [key[1]]).name == "street"


def drop(*path):
    def change(content):
        for step in path[:-1]:
            content = content[step]
        del content[path[-1]]

    return change


def put(value, *path):
    def change(content):
        for step in path[:-1]:
            content = content[step]
        content[path[-1]] = value

    return change


ENVELOPE = "dsseEnvelope"


@pytest.mark.parametrize(
    "change",
    [
        drop("mediaType"),
        drop(ENVELOPE),
        drop(ENVELOPE, "payload"),
        drop(ENVELOPE, "signatures", 0),
        drop(ENVELOPE, "signatures", 0, "sig"),
        put("text/plain", "mediaType"),
        put("text/plain", ENVELOPE, "payloadType"),
        put("§", ENVELOPE, "payload"),
        put(7, ENVELOPE, "payload"),
        put([], ENVELOPE),
        put(None, ENVELOPE, "signatures"),
        put([{}, {}], ENVELOPE, "signatures"),
    ],
)
def test_a_malformed_signature(signed, key, change):
    edit_signature(signed, change)
    assert "signature.json is not a signature (" in refusal(signed, key[1])


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "is not a signature"),
        (b"[]", "is not a signature"),
        (b"[" * 100_000, "is not a signature"),
        (b"1" * 5_000, "is not a signature"),
        (b"\xff", "is not a signature"),
        (b" " * ((1 << 18) + 1), "more than 262144 bytes"),
    ],
)
def test_a_file_that_is_no_signature(signed, key, content, reason):
    (signed / SIGNATURE).write_bytes(content)
    assert reason in refusal(signed, key[1])


def test_a_signature_file_that_blocks(signed, key):
    (signed / SIGNATURE).unlink()
    os.mkfifo(signed / SIGNATURE)
    assert "is a FIFO" in refusal(signed, key[1])


@pytest.mark.parametrize("place", ["payload", "sig"])
def test_any_other_byte_is_refused(signed, key, place):
    content = json.loads((signed / SIGNATURE).read_text())
    entry = content[ENVELOPE] if place == "payload" else content[ENVELOPE]["signatures"][0]
    right = bytearray(base64.b64decode(entry[place]))
    for position in range(0, len(right), 7):
        changed = bytearray(right)
        changed[position] ^= 1
        entry[place] = base64.b64encode(changed).decode()
        (signed / SIGNATURE).write_text(json.dumps(content))
        assert "is not a signature of a trusted key" in refusal(signed, key[1])


def test_a_genuine_signature_of_something_else(tmp_path, signed, key):
    """Signed by the right key, but it does not list the manifest."""
    sign(signed, "model.onnx", {}, key[0])
    assert "it lists manifest.yaml 0 times" in refusal(signed, key[1])


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()], ids=lambda c: c.name)
def test_keys_of_other_tools(tmp_path, signed, curve):
    """As `openssl ecparam -genkey` writes them."""
    private = ec.generate_private_key(curve)
    pem, pub = tmp_path / "own.pem", tmp_path / "own.pub"
    pem.write_bytes(private_pem(private))
    pub.write_bytes(public_pem(private.public_key()))
    sign(signed, "manifest.yaml", load_bundle(signed).files, pem)
    assert load_bundle(signed, [pub]).name == "street"


def private_pem(key, encryption=None) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        encryption or serialization.NoEncryption(),
    )


def public_pem(key) -> bytes:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def test_keys_that_cannot_be_used(tmp_path, signed, key):
    wrong = tmp_path / "wrong"
    for content in (b"", b"\xff" * 99, key[0].read_bytes(), b"-----BEGIN PUBLIC KEY-----\nx\n"):
        wrong.write_bytes(content)
        assert "is not the public key of a NIST curve" in refusal(signed, wrong)
    edwards = ed25519.Ed25519PrivateKey.generate()
    wrong.write_bytes(public_pem(edwards.public_key()))
    assert "is not the public key of a NIST curve" in refusal(signed, wrong)
    wrong.write_bytes(b"x" * 20_000)
    assert "more than 16384 bytes" in refusal(signed, wrong)
    for content in (private_pem(edwards), key[1].read_bytes()):
        wrong.write_bytes(content)
        with pytest.raises(PenumbraError, match="is not the private key of a NIST curve"):
            sign(signed, "manifest.yaml", {}, wrong)
    locked = serialization.BestAvailableEncryption(b"secret")
    wrong.write_bytes(private_pem(ec.generate_private_key(ec.SECP256R1()), locked))
    with pytest.raises(PenumbraError, match="is encrypted: decrypt it"):
        sign(signed, "manifest.yaml", {}, wrong)


SITE = """\
schema: 1
name: depot
bundle: {{name: street, sha256: {sha}}}
cameras: {{}}
files:
  familiarity.npz: {sha}
"""


def test_the_command_line(tmp_path, capsys):
    """A bundle and a site folder: key, signature, check, and each mistake in one line."""
    bundle = tiny_bundles.segmentation(tmp_path / "street").path
    site = tmp_path / "site"
    site.mkdir()
    (site / "familiarity.npz").write_bytes(b"numbers")
    (site / "site.yaml").write_text(SITE.format(sha=hashlib.sha256(b"numbers").hexdigest()))
    pem, pub = str(tmp_path / "k.pem"), str(tmp_path / "k.pub")

    def penumbra(*words) -> tuple[int, str]:
        code = main(["sign", *map(str, words)])
        captured = capsys.readouterr()
        lines = (captured.out + captured.err).splitlines()
        assert len(lines) == 1
        return code, lines[0]

    assert penumbra("--new-key", pem)[0] == 0
    for folder, altered in ((bundle, "weights.safetensors"), (site, "familiarity.npz")):
        assert penumbra(folder, "--check", "--trusted", pub)[1].count("is not signed") == 1
        assert penumbra(folder, "--key", pem)[0] == 0
        code, line = penumbra(folder, "--check", "--trusted", pub)
        assert code == 0 and "signed by a trusted key" in line
        (folder / altered).write_bytes(b"other")
        assert penumbra(folder, "--check", "--trusted", pub)[0] == 2
        assert penumbra(folder, "--key", pem)[0] == 2  # what is damaged is not signed
    document = site / "site.yaml"
    document.write_text(document.read_text().replace("depot", "other"))
    code, line = penumbra(site, "--check", "--trusted", pub)
    assert code == 2 and "site.yaml was altered after it was signed" in line
    document.write_text("[]")
    assert "lists no files" in penumbra(site, "--key", pem)[1]
    assert penumbra("--key", pem)[0] == penumbra(bundle, "--new-key", pem)[0] == 2
    assert "belong together" in penumbra(bundle, "--check")[1]
    assert "belong together" in penumbra(bundle, "--key", pem, "--trusted", pub)[1]
