"""A collector and its ranks for half an hour of faults: `python -m bench.soak`.

__main__    what is asked for on the command line, and the result that is written
run         one soak: begins everything, carries out the plan, and looks at the end whether anything is missing
plan        from a seed to the faults, when and to whom
fleet       the processes: the collector, the nodes with their ranks, and one that delivers what killed ranks left
node        one node, in a process of its own
left        delivers what killed ranks have left on the disk, in a process of its own
faults      carries a fault out
watch       scrapes, counters, memory
result      the page with the result
"""
