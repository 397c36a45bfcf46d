"""Named workloads; ``python -m benchmarks`` runs them and prints JSON."""
