"""The only training loop, its checkpoints, its metrics, and what it leaves on disk."""
