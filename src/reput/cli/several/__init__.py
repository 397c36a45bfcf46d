"""Several brokers under one parent process: ``reput broker --count`` and ``reput up --brokers``.

``plan`` decides names, ports, stores and cores; ``supervisor`` runs the processes; ``monitor`` and
``merged_metrics`` make one ``/metrics`` and ``/health`` of theirs; ``command`` joins the parts.
"""
