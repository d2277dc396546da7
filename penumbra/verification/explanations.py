"""What the figures of the page mean, in words for who has not read the code."""

from __future__ import annotations

from typing import Any


def how_to_read(facts: dict[str, Any]) -> str:
    """HTML."""
    samples = facts["reference"]["samples"]
    return (
        "<p><b>Relative error</b> is mean |a - b| / mean b over all pixels, a from the node, b from"
        " Monte Carlo; the <b>ratio</b>, mean a / mean b, is below 1 where uncertainty is "
        "understated. The variance is the square of the standard deviation that is published: for "
        "segmentation the mean over the classes of the standard deviation of their probabilities, "
        "for depth that of the disparity at the network's own pixels, scaled to the image (what "
        "lies between two of them is in truth surer, so this is on the safe side).</p>"
        "<p>The <b>noise of the reference</b> is what "
        f"{samples} samples cannot tell: two references of {samples // 2} samples each are compared"
        " with each other, and half of their difference is the error that is left in both together."
        " For Spearman's correlation it is what a perfect map would miss of 1 (Spearman and Brown)."
        " A figure is held against the tolerance with this noise allowed for; where the noise is as"
        " large as the room that the tolerance leaves, the verdict is undecided, which is not a "
        "success.</p>"
        f"{_of_the_task(facts)}"
        "<p><b>AUSE</b> is the area between the sparsification curve and the oracle's, "
        "<b>AURG</b> that between chance and the curve (Poggi et al. 2020), by the share of wrong "
        "labels, or by |z - truth| / truth with uncertainty relative to depth; curves are means "
        "over the frames.</p>"
    )


def _of_the_task(facts: dict[str, Any]) -> str:
    if facts["bundle"]["task"] == "segmentation":
        return (
            "<p>The <b>expected calibration error</b> is the mean distance between the largest "
            "class probability and the share of right labels, in 15 bins of that probability, "
            "weighted by their pixels (Guo et al. 2017); from the node it is read in steps of "
            "1/255.</p>"
        )
    return (
        "<p><b>Coverage</b> is the share of pixels whose measured disparity is within ±zσ of the "
        "predicted one, where the depth is known.</p>"
    )
