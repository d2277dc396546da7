"""Send images through a real ROS 2 node in another process and measure the way there and back."""

from __future__ import annotations

import argparse
import json

EXAMPLE = "penumbra demo --frames 50"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The number of frames, and whether a machine reads the result."""
    parser.add_argument("--frames", type=int, default=20, help="images to send (default: 20)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Run the round trip and print what it measured."""
    from penumbra.nodes.round_trip import measure

    result = measure(arguments.frames)
    if arguments.json:
        print(json.dumps(result.as_dict()))
    else:
        print(result)
