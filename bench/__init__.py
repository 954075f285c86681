"""What rankscope costs, measured: each module is a command that writes a file in results/."""
