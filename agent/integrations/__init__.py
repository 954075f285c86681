"""Callbacks for training frameworks. Each file imports its framework, and none is imported by the agent itself."""
