"""Callbacks for training frameworks. Each file imports its framework; the agent imports none of them."""
