"""What is no module of tests: the script of real jobs, which reads its arguments when it is imported."""

collect_ignore = ["real_training.py"]
