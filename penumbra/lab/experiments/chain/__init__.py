"""A chain of dropout, convolution and ReLU on small feature maps: the network, its covariances."""
