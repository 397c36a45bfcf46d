"""The web console: pages about a cluster, for people and, as JSON, for scripts.

    app          the paths of pages and changes; requests in, responses out
    page         what a handler gets and returns
    rendering    a page as HTML or JSON, and the headers of every response
    access       roles, and whether a request comes from a page of the console; pure
    serving      the socket, uvicorn and signals
    search       plans of searches, windows, merge, cursors, answers; pure. scan runs them
    matching     regular expressions in a separate process
    bodies       bodies as JSON trees, text or hex; pure
    settings     console.toml: controllers, and stores by name
    replica_watch  replica groups of controllers, with their age
    resends      receipts of dead letters that were sent again
    resending    jobs that send all dead letters of a group again
    verifying    verifications of stores, in separate processes
    pages/       a module for each page
    sources/     what pages ask: brokers within a deadline, store folders
    templates/   the frame of the pages, and one template for each

Every page is a plain GET without JavaScript, and the same data as JSON with
``Accept: application/json``. An unknown value is said to be unknown, with the reason; it is never
shown as 0 or as an empty list.
"""
