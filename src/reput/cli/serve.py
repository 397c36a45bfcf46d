"""``reput up``, ``namesrv``, ``broker``, ``controller`` and ``proxy``: servers in the foreground.

This module reads their command lines, and ``serving`` runs them. It uses argparse, as importing
typer takes longer than starting a broker.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from reput.errors import ReputError

if TYPE_CHECKING:
    import typer


class UsageError(ReputError):
    """A command line is wrong."""


class _Shown(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; those of ``parser_of`` raise the parser."""
        if args is _SHOW:
            raise _Shown(self)
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError`` instead of ending the process."""
        raise UsageError(f"{message} ({self.prog} --help shows the usage)")


_SHOW: Sequence[str] = ["parser"]


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of one of ``COMMANDS``."""
    try:
        COMMANDS[name](_SHOW)
    except _Shown as shown:
        return shown.parser
    raise AssertionError(f"{name} does not parse its arguments")


def register(app: "typer.Typer") -> None:
    """Add the commands to the application, which passes their arguments to ``run``."""
    import typer

    settings = {
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    }

    def passing_on(name: str) -> Callable[[typer.Context], None]:
        def passed_on(context: typer.Context) -> None:
            raise typer.Exit(run([name, *context.args]))

        return passed_on

    for name, command in COMMANDS.items():
        app.command(name, context_settings=settings, help=command.__doc__)(passing_on(name))


def run(arguments: Sequence[str]) -> int:
    """Run one of ``COMMANDS`` until a signal stops it; return the exit code.

    Raises:
        UsageError: An argument is wrong.
        ReputError: The server could not start.
    """
    name, *rest = arguments
    return COMMANDS[name](rest)


def _up(arguments: Sequence[str]) -> int:
    """Start a name server and a broker in one process.

    For development and tests. Messages stay in the store folder. Ctrl-C stops cleanly, a second
    Ctrl-C at once. With --replicas, brokers are processes: kill the master, and promote a slave;
    with --controllers 1, another one becomes master by itself.

    With -- COMMAND it runs a command, such as the tests of a project, with NAMESRV_ADDR set, and
    ends with it and with its exit code.
    """
    parser = _parser("up", _up)
    parser.add_argument("--store", metavar="DIR", help="the store folder (./reput-data)")
    parser.add_argument(
        "--port", type=_port, default=9876, help="port of the name server; 0: any (9876)"
    )
    parser.add_argument(
        "--broker-port", type=_port, default=10911, help="port of the broker; 0: any (10911)"
    )
    parser.add_argument(
        "--grpc-port",
        type=_port,
        help="port of 5.x clients, which speak gRPC; 0: any (8081; any with --broker-port 0)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 lets other machines connect (127.0.0.1)",
    )
    parser.add_argument("--advertise", metavar="ADDR", help="address that clients connect to")
    parser.add_argument(
        "--replicas",
        type=int,
        default=0,
        metavar="N",
        help="start N slaves as well, each broker in a separate process (0)",
    )
    parser.add_argument(
        "--controllers",
        type=int,
        default=0,
        metavar="N",
        help="with --replicas: start a controller, which elects another master if one dies (0)",
    )
    parser.add_argument(
        "--brokers",
        type=int,
        metavar="N",
        help="start N brokers, each in a process, on a separate core (one, in this process)",
    )
    _add_several(parser, "--brokers")
    parser.add_argument(
        "--json",
        dest="as_json",
        action="store_true",
        help="print one line of JSON with all addresses instead of the greeting",
    )
    parser.add_argument(
        "--ready-file",
        metavar="FILE",
        help="write that JSON to a file once clients can connect; it is deleted at the end",
    )
    parser.add_argument(
        "--test-controls",
        type=_port,
        metavar="PORT",
        help="let tests advance the time, wait, and cause faults, over HTTP at this port; 0: any",
    )
    parser.add_argument(
        "--console",
        dest="console_port",
        type=_port,
        nargs="?",
        const=8080,
        metavar="PORT",
        help="serve the web console on this port of 127.0.0.1 (8080); 0: any",
    )
    _add_config(parser, "a broker.conf with other settings")
    _add_metrics(parser)
    _add_logging(parser, "warning")
    command: list[str] = []
    if "--" in arguments:
        end = list(arguments).index("--")
        arguments, command = arguments[:end], list(arguments[end + 1 :])
        if not command:
            parser.error("-- is followed by a command")
    options, log_options = _options(parser, arguments)
    replicas, brokers = options.pop("replicas"), options.pop("brokers")
    controllers = options.pop("controllers")
    if controllers and not replicas:
        parser.error("--controllers is allowed with --replicas only")
    if controllers not in (0, 1):
        parser.error(
            "--controllers is 0 or 1: several need an etcd, see docs/how-to/run-a-controller.md"
        )
    several = {name: options.pop(name) for name in ("stores", "is_pinned")}
    _refuse_without_count(parser, "--brokers", brokers, several)
    _refuse_together(parser, replicas, brokers, command, options)
    if replicas:
        from reput.cli import replicated_up

        return replicated_up.run_group(replicas, has_controller=bool(controllers), **options)
    if brokers is not None:
        from reput.cli.several import command as several_brokers

        del options["test_controls"], options["console_port"]
        supervision = several_brokers.supervision(
            brokers, "--brokers", log_options, **several, **_popped(options, _READY)
        )
        return several_brokers.run_up(options.pop("path"), supervision, command=command, **options)
    from reput.cli import serving

    return serving.up(command=command, **options)


_READY = ("as_json", "ready_file")
_CHILD_ONLY = ("any_grpc_port", "monitor_socket", "core", "stop_with_stdin")


def _popped(options: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: options.pop(name) for name in names}


def _refuse_without_count(
    parser: _Parser, count_option: str, count: int | None, several: dict[str, Any]
) -> None:
    """Refuse options of several brokers for one. Raises ``UsageError``."""
    if count is not None:
        return
    for name, is_given in (
        ("--stores", several["stores"] is not None),
        ("--no-pin", not several["is_pinned"]),
    ):
        if is_given:
            parser.error(f"{name} is allowed with {count_option} only")


def _refuse_together(
    parser: _Parser,
    replicas: int,
    brokers: int | None,
    command: Sequence[str],
    options: dict[str, Any],
) -> None:
    """Refuse options that exclude each other; delete what --replicas lacks.

    Raises:
        UsageError: They were given together.
    """
    if command and options["as_json"]:
        parser.error("--json is for a terminal or a pipe: a command gets it from --ready-file")
    if brokers is not None and replicas:
        parser.error("--brokers is not allowed with --replicas")
    if brokers is not None and options["test_controls"] is not None:
        parser.error("--test-controls is not allowed with --brokers")
    if brokers is not None and options["console_port"] is not None:
        parser.error("--console is not allowed with --brokers: `reput console` serves it")
    if not replicas:
        return
    others = {
        "--json": options.pop("as_json"),
        "--ready-file": options.pop("ready_file"),
        "--test-controls": options.pop("test_controls") is not None,
        "--grpc-port": options.pop("grpc_port") is not None,
        "--console": options.pop("console_port") is not None,
        "-- COMMAND": command,
    }
    for name, value in others.items():
        if value:
            parser.error(f"{name} is not allowed with --replicas")


def _namesrv(arguments: Sequence[str]) -> int:
    """Start a name server.

    Reads RocketMQ's namesrv.conf unchanged.
    """
    parser = _parser("namesrv", _namesrv)
    _add_config(parser, "a namesrv.conf")
    parser.add_argument("--port", type=_port, help="port to listen on (listenPort, 9876)")
    _add_metrics(parser)
    _add_printing(parser)
    _add_logging(parser, "info")
    options, _ = _options(parser, arguments)
    from reput.cli import serving

    return serving.namesrv(**options)


def _broker(arguments: Sequence[str]) -> int:
    """Start a broker.

    Reads RocketMQ's broker.conf unchanged, and continues the store folder of a Java broker.
    """
    parser = _parser("broker", _broker)
    _add_config(parser, "a broker.conf")
    parser.add_argument(
        *("-n", "--namesrv"),
        dest="namesrv_addr",
        metavar="ADDRS",
        help="name servers: 'host:port;host:port', quoted (namesrvAddr)",
    )
    parser.add_argument("--store", metavar="DIR", help="the store folder (storePathRootDir)")
    parser.add_argument("--port", type=_port, help="port to listen on (listenPort, 10911)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="report whether the broker can take over the store, and exit: settings, folder, "
        "features in use, machine; with 0 if it can, with 2 if not. Only reads, also beside a "
        "running Java broker",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse unknown settings and settings without effect, instead of a warning; with "
        "--check, end with 1 if there are other warnings",
    )
    parser.add_argument(
        "--for-java",
        metavar="VERSION",
        help="with --check, for the way back: report what a Java broker of this version, 4.5 to "
        "5.5, could not read or protect",
    )
    parser.add_argument(
        "--json",
        dest="as_json",
        action="store_true",
        help="with --check, print JSON; with --count, one line of JSON with all addresses",
    )
    parser.add_argument(
        "--count",
        type=int,
        metavar="N",
        help="start N brokers, NAME-0 to NAME-(N-1), each in a process, on a separate core: "
        "ports + 10 i, stores in the folders 0 to N-1 of storePathRootDir",
    )
    _add_several(parser, "--count")
    parser.add_argument(
        "--ready-file",
        metavar="FILE",
        help="with --count, write the JSON of the addresses to a file once all brokers serve; it "
        "is deleted at the end",
    )
    # Of child processes: the end of the parent, even by SIGKILL, closes the pipe.
    parser.add_argument("--stop-with-stdin", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--any-grpc-port", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--monitor-socket", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    _add_metrics(parser)
    _add_printing(parser)
    _add_logging(parser, "info")
    options, log_options = _options(parser, arguments)
    count = options.pop("count")
    several = _popped(options, ("stores", "is_pinned"))
    ready_file = options.pop("ready_file")
    _refuse_without_count(parser, "--count", count, several)
    if ready_file is not None and count is None:
        parser.error("--ready-file is allowed with --count only")
    if options["for_java"] and not options["check"]:
        parser.error("--for-java is allowed with --check only")
    if options["as_json"] and not options["check"] and count is None:
        parser.error("--json is allowed with --check or --count only")
    if count is None:
        from reput.cli import serving

        return serving.broker(**options)
    for name in ("check", "print_all", "print_important"):
        if options.pop(name):
            flag = {"check": "--check", "print_all": "-p", "print_important": "-m"}[name]
            parser.error(f"{flag} is not allowed with --count: use -c STORE/0/broker.conf")
    from reput.cli.several import command

    del options["for_java"]
    _popped(options, _CHILD_ONLY)
    strict = ["--strict"] if options.pop("strict") else []
    supervision = command.supervision(
        count,
        "--count",
        [*log_options, *strict],
        ready_file=ready_file,
        as_json=options.pop("as_json"),
        **several,
    )
    return command.run_count(options.pop("path"), supervision, **options)


def _controller(arguments: Sequence[str]) -> int:
    """Start a controller, which elects the masters of replicated brokers.

    Reads the controller.conf of RocketMQ 5. Brokers find it with controllerAddr.
    """
    parser = _parser("controller", _controller)
    _add_config(parser, "a controller.conf")
    parser.add_argument("--store", metavar="DIR", help="folder of the state (controllerStorePath)")
    parser.add_argument("--port", type=_port, help="port to listen on (listenPort, 9878)")
    _add_metrics(parser)
    _add_printing(parser)
    _add_logging(parser, "info")
    options, _ = _options(parser, arguments)
    from reput.cli import serving

    return serving.controller(**options)


def _proxy(arguments: Sequence[str]) -> int:
    """Start a proxy: a port for 5.x clients before any brokers, Java's included.

    The brokers are those of some name servers. A broker of reput needs no proxy: it serves 5.x
    clients itself with grpcServerPort. Reads RocketMQ's rmq-proxy.json as well.
    """
    parser = _parser("proxy", _proxy)
    _add_config(parser, "a proxy.conf, or an rmq-proxy.json")
    parser.add_argument(
        *("-n", "--namesrv"),
        dest="namesrv_addr",
        metavar="ADDRS",
        help="name servers: 'host:port;host:port', quoted (namesrvAddr)",
    )
    parser.add_argument("--port", type=_port, help="port of 5.x clients (grpcServerPort, 8081)")
    _add_metrics(parser)
    _add_printing(parser)
    _add_logging(parser, "info")
    options, _ = _options(parser, arguments)
    from reput.cli import serving

    return serving.proxy(**options)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "up": _up,
    "namesrv": _namesrv,
    "broker": _broker,
    "controller": _controller,
    "proxy": _proxy,
}
"""Functions that run a command, by its name."""


def _parser(name: str, command: Callable[..., int]) -> _Parser:
    text = "\n".join(line.strip() for line in (command.__doc__ or "").strip().splitlines())
    return _Parser(
        prog=f"reput {name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _port(text: str) -> int:
    """Return the number of a port. Raises ``argparse.ArgumentTypeError``."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; allowed: 0 to 65535")
    return int(text)


def _add_config(parser: _Parser, text: str) -> None:
    parser.add_argument("-c", "--config", dest="path", metavar="FILE", help=text)


def _add_several(parser: _Parser, count_option: str) -> None:
    parser.add_argument(
        "--stores",
        metavar="DIRS",
        help=f"with {count_option}, the store folders instead, such as one a disk: /d0,/d1",
    )
    parser.add_argument(
        "--no-pin",
        dest="is_pinned",
        action="store_false",
        help=f"with {count_option}, do not pin each broker to a core",
    )


def _add_metrics(parser: _Parser) -> None:
    parser.add_argument(
        "--metrics-port", type=_port, help="serve /metrics and /health over HTTP (metricsPort)"
    )
    parser.add_argument(
        "--metrics-address",
        metavar="ADDR",
        help="address of /metrics and /health (reputMetricsAddress, 127.0.0.1); 0.0.0.0 lets other "
        "machines read them",
    )


def _add_printing(parser: _Parser) -> None:
    parser.add_argument(
        "-p", dest="print_all", action="store_true", help="print all settings, and exit"
    )
    parser.add_argument(
        "-m",
        dest="print_important",
        action="store_true",
        help="print the important settings, and exit",
    )


def _add_logging(parser: _Parser, level: str) -> None:
    parser.add_argument(
        "--log-level",
        default=level,
        metavar="LEVEL",
        help=f"debug, info, warning, error or critical ({level}); also of single loggers, as "
        "info,reput.broker.replication=debug",
    )
    parser.add_argument(
        "--log-file",
        metavar="FILE",
        help="log to this file instead of stderr; at 64 MiB it becomes FILE.1, and ten are kept",
    )
    parser.add_argument("--log-json", action="store_true", help="log one JSON object a line")


def _options(parser: _Parser, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the options, and the options of logs for child processes.

    Logging has then been configured by them.
    """
    from reput.cli import log_lines

    options = vars(parser.parse_args(arguments))
    level, as_json = options.pop("log_level"), options.pop("log_json")
    log_lines.begin(level, as_json=as_json, file=options.pop("log_file"))
    return options, ["--log-level", level, *(["--log-json"] if as_json else [])]
