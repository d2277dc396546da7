"""Explanations of the figures, for the page of the report."""

from __future__ import annotations

from penumbra.verification.facts import VerificationFacts


def how_to_read(facts: VerificationFacts) -> str:
    """HTML."""
    samples = facts.reference.samples
    return (
        "<p><b>Relative error</b> is mean |a - b| / mean b over all pixels, a from the node, b from"
        " Monte Carlo. The <b>ratio</b> is mean a / mean b: below 1 the uncertainty is too small. "
        "The variance is the square of the published standard deviation. For segmentation that is "
        "the mean over the classes of the standard deviation of their probabilities; for depth that"
        " of the disparity at the pixels of the network, scaled to the image. (Between two of these"
        " pixels the true standard deviation is smaller, so this is on the safe side.)</p>"
        f"<p>The <b>noise of the reference</b> is the sampling error of {samples} samples: two "
        f"references of {samples // 2} samples each are compared, and half of their difference is "
        "the error that remains in both together. For Spearman's correlation it is the distance of "
        "a perfect map from 1 (Spearman and Brown). A figure is compared with the tolerance plus "
        "this noise; where the noise is as large as the room that the tolerance leaves, the verdict"
        " is undecided, which is not a success.</p>"
        f"{_of_the_task(facts.bundle.task)}"
        "<p><b>AUSE</b> is the area between the sparsification curve and the oracle's, "
        "<b>AURG</b> the area between random removal and the curve (Poggi et al. 2020), by the "
        "share of wrong labels, or by |z - truth| / truth with the uncertainty relative to depth; "
        "curves are means over the frames.</p>"
    )


def _of_the_task(task: str) -> str:
    if task == "segmentation":
        return (
            "<p>The <b>expected calibration error</b> is the mean distance between the largest "
            "class probability and the share of correct labels, in 15 bins of that probability, "
            "weighted by their pixels (Guo et al. 2017). The node publishes it in steps of "
            "1/255.</p>"
        )
    return (
        "<p><b>Coverage</b> is the share of pixels whose measured disparity is within ±zσ of the "
        "predicted one, where the depth is known.</p>"
    )
