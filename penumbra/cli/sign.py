"""Sign a bundle or a site folder, check a signature, or make a key.

The signature lies in the folder as signature.json, in the format of OpenSSF Model Signing. A node
whose parameter safety.trusted_keys names public keys loads only what one of them has signed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from penumbra.errors import PenumbraError

EXAMPLE = "penumbra sign bundles/street --key fleet.pem"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to sign or check, and with which key."""
    parser.add_argument("folder", type=Path, nargs="?", help="bundle or site folder")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--key", type=Path, metavar="KEY.pem", help="sign with this private key")
    what.add_argument(
        "--check", action="store_true", help="check the signature against --trusted instead"
    )
    what.add_argument(
        "--new-key",
        type=Path,
        metavar="KEY.pem",
        help="make a private key, and the public key KEY.pub beside it",
    )
    parser.add_argument(
        "--trusted",
        type=Path,
        action="append",
        default=[],
        metavar="KEY.pub",
        help="public key that may have signed the folder; may be given several times",
    )


def run(arguments: argparse.Namespace) -> int:
    """Sign, check, or make a key; prints one line."""
    from penumbra.signatures import new_key, sign

    if (arguments.folder is None) == (arguments.new_key is None):
        raise PenumbraError("give a folder with --key or --check, and none with --new-key")
    if bool(arguments.trusted) != arguments.check:
        raise PenumbraError("--check and --trusted KEY.pub belong together")
    if arguments.new_key is not None:
        public = new_key(arguments.new_key)
        print(f"{arguments.new_key}: keep it secret; {public}: give it to whoever verifies")
        return 0
    document, files = _contents(arguments.folder, arguments.trusted)
    if arguments.check:
        print(f"{arguments.folder}: signed by a trusted key, {len(files) + 1} files unaltered")
    else:
        print(f"{sign(arguments.folder, document, files, arguments.key)}: {len(files) + 1} files")
    return 0


def _contents(folder: Path, trusted: list[Path]) -> tuple[str, Mapping[str, str]]:
    """The document of a folder and the files that it lists, all of them checked."""
    from penumbra.bundle import MANIFEST, load_bundle
    from penumbra.files import check_files, read_regular
    from penumbra.safe_yaml import LARGEST, parse_yaml
    from penumbra.signatures import verify_signature
    from penumbra.site import SITE

    if not (folder / SITE).exists():
        return MANIFEST, load_bundle(folder, trusted).files
    data = (
        verify_signature(folder, trusted, SITE) if trusted else read_regular(folder / SITE, LARGEST)
    )
    site = parse_yaml(data, folder / SITE, "see docs/contracts.md")
    files = site.get("files") if isinstance(site, dict) else None
    if not isinstance(files, dict) or not all(isinstance(sha, str) for sha in files.values()):
        raise PenumbraError(f"{folder / SITE} lists no files with checksums: docs/contracts.md")
    check_files(folder, files)
    return SITE, files
