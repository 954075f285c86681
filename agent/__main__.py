"""`torchrun ... -m rankscope.agent train.py ARGS`: see launch.py."""

from rankscope.agent.launch import main

main()
