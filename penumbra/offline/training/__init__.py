"""Training: tasks, losses, and the loop that all networks share (torch)."""
