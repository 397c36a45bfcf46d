"""The demo that ``make run`` starts: ``python -m demo --help``.

A broker, messages sent, consumed and streamed into Parquet; then Spark rebuilds, audits and reports
on the store that the broker leaves. It uses nothing that a user of the library could not use.
"""
