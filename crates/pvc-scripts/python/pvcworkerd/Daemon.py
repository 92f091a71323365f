"""Configuration of the cluster, under the flat names of PVC 1.0.3."""

# Filled by `run.py` before the script is imported.
config = {}
