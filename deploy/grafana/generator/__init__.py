"""The dashboards as code. `python -m deploy.grafana.generator`, from the root, writes deploy/grafana/dashboards anew.

`panels.py` knows how a panel of each kind looks, `frame.py` what all dashboards have in common, `thresholds.py` where a
number turns yellow or red; then there is one file a dashboard, which says what is asked and in which order it stands.
"""
