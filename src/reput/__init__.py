"""Apache RocketMQ in Python: one byte layout, kept, moved and read in many places.

Where to look:

    errors.py      what can go wrong, and what a caller may do then
    clock.py       the time, passed in, so that tests own it
    config.py      settings, from broker.conf into frozen dataclasses
    small_file.py  a small file, replaced in one step
    format/        bytes: pure codecs, one layout per module, no I/O
      kernels/     the same layouts as compiled batch loops
    remoting/      commands between processes: frames, connections, server and client
    store/         a store folder on disk, read and written
      verify/      everything in a store against everything else
    namesrv/       the name server: who knows where a topic lives
    broker/        the broker: receives, holds and hands out
      processors/  request code to function
    client/        producer, consumers, admin; with and without await
      core/        what they decide: routes, queues, what is in flight
      admin/       what administrators ask and change
    spark/         the DataFrame source
      live/        running brokers as tables: routes, a line that pulls, rows
      streaming/   positions, what is behind them in stores and brokers, micro-batches
      sending/     the sink to brokers
      importing/   the sink to a store folder
      archive/     log files as Parquet, and reading them as a store
      pages/       reports as HTML
      jobs/        work on whole stores, spread over executors: a module or package a job
        dispatch/  queues and index from the log, as a batch and as a stream
        audit/     a verdict for each message
        salvage/   a clean store of a damaged one
        compare/   what two stores differ in
        compact/   retention by topic
    testing/       a broker inside of a test, and the pytest plugin
    cli/           the reput command

Imports go up this list only: nothing in ``format`` knows of ``store``, nothing
in ``store`` knows of Spark. ARCHITECTURE.md tells the rest.
"""

__version__ = "0.1.0"
