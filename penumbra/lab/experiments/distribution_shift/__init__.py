"""Images outside the training distribution, and the uncertainty of networks on them."""
