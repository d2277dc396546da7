"""Pictures that no training has seen, and what uncertainty makes of them."""
