"""A chain of dropout, convolution and ReLU on small feature maps: network and covariances."""
