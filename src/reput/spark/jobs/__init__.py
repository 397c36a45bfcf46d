"""Work on whole stores that Spark spreads over its executors: a module a job."""
