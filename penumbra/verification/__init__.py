"""Verifies the node against PyTorch's Monte Carlo on recorded frames.

    facts = verify(Path("drive"), "segnet-street", samples=300)

The bag is sent through the real node process in lockstep. Each answer is compared with a
Monte-Carlo reference computed from the weights of the bundle, and both with ground truth where the
bag has it. The result is a `VerificationFacts`: printed, written as JSON, and laid out as a page.
"""

from penumbra.verification.bag_verification import verify
from penumbra.verification.facts import VerificationFacts

__all__ = ["VerificationFacts", "verify"]
