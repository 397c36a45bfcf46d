"""Completion of the command line in shells: a script with all commands, options and choices.

The script is complete: a shell that completes a word does not start Python. It is made from the
same parsers as the helps.
"""

import argparse
import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from reput.cli import serve


class Shell(enum.StrEnum):
    """A shell."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands."""

    words: str
    """Words of the command, such as ``reput topic``."""
    help: str = ""
    options: list[Option] = field(default_factory=list)
    commands: list["Command"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Last word."""
        return self.words.rpartition(" ")[2]

    def all(self) -> Iterator["Command"]:
        """Yield this command and those below it."""
        yield self
        for command in self.commands:
            yield from command.all()


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script with which a shell completes commands, options and their values.

    bash: eval "$(reput completion bash)" in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, after
    compinit. fish: reput completion fish > ~/.config/fish/completions/reput.fish
    """
    from reput.cli.app import build_app

    root = _tree("reput", typer.main.get_command(build_app()))
    print(_SCRIPTS[shell](root), end="")


COMMANDS = {"completion": completion}


# --- commands -----------------------------------------------------------------------------------


def _tree(words: str, command: Any) -> Command:
    """Return a command of typer with all below it."""
    name = words.rpartition(" ")[2]
    text = _first_sentence(command.help or "")
    if name in serve.COMMANDS and words.count(" ") == 1:
        return Command(words, text, list(_options_of_server(serve.parser_of(name))))
    children = getattr(command, "commands", {})
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    values = [value for argument in arguments for value in _choices(argument)]
    return Command(
        words,
        text,
        [*_options(command.params), Option(("--help",), "Show the help.", False)],
        [
            *(_tree(f"{words} {child}", below) for child, below in children.items()),
            *(Command(f"{words} {value}") for value in values),
        ],
    )


def _options(params: Iterable[Any]) -> Iterator[Option]:
    for param in params:
        if param.param_type_name == "option" and not param.hidden:
            names = (*param.opts, *param.secondary_opts)
            is_flag = param.is_flag or param.count
            yield Option(names, _first_sentence(param.help or ""), not is_flag, _choices(param))


def _choices(param: Any) -> tuple[str, ...]:
    """Return the values of an option or argument that takes those of an enumeration."""
    descriptor = getattr(param, "type_descriptor", None)  # of typer from 0.26 on
    if descriptor is not None:
        kind = descriptor.annotation
        is_enum = isinstance(kind, type) and issubclass(kind, enum.Enum)
        return tuple(str(member.value) for member in kind) if is_enum else ()
    return tuple(getattr(choice, "value", choice) for choice in getattr(param.type, "choices", ()))


def _options_of_server(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            choices = tuple(map(str, action.choices or ()))
            text = _first_sentence(action.help or "")
            yield Option(tuple(action.option_strings), text, action.nargs != 0, choices)


def _first_sentence(text: str) -> str:
    line = " ".join(text.split("\n\n", 1)[0].split())
    return line.partition(". ")[0].removesuffix(".")


def _quoted(text: str) -> str:
    """Return a word for any of the shells."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\u2019") + "'"


# --- scripts ------------------------------------------------------------------------------------


def _groups(root: Command) -> Iterator[str]:
    """Yield the words of each command except the first one: the places of a command line."""
    yield from (command.words for command in root.all() if command is not root)


def _bash(root: Command) -> str:
    places = "|".join(f'"{words}"' for words in _groups(root))
    lines = [
        "_reput() {",
        "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}",
        "  local place=reput commands='' options='' choices='' i",
        "  COMPREPLY=()",
        "  for ((i = 1; i < COMP_CWORD; i++)); do",
        f'    case "$place ${{COMP_WORDS[i]}}" in {places}) place+=" ${{COMP_WORDS[i]}}";; esac',
        "  done",
        '  case "$place" in',
    ]
    for command in root.all():
        names = " ".join(name for option in command.options for name in option.names)
        below = " ".join(child.name for child in command.commands)
        lines.append(f'    "{command.words}") commands="{below}" options="{names}";;')
    lines += ["  esac", '  case "$place $previous" in']
    for words, options, choices in _values(root):
        patterns = "|".join(f'"{words} {name}"' for name in options)
        lines.append(f'    {patterns}) choices="{" ".join(choices)}" options="" commands="" ;;')
    lines += [
        "  esac",
        '  if [[ -n "$choices" ]]; then COMPREPLY=($(compgen -W "$choices" -- "$current"))',
        '  elif [[ "$current" == -* ]]; then COMPREPLY=($(compgen -W "$options" -- "$current"))',
        '  else COMPREPLY=($(compgen -W "$commands" -- "$current")); fi',
        "}",
        "complete -o default -F _reput reput",
    ]
    return "\n".join(lines) + "\n"


def _values(root: Command) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Yield the options that take a value: command, names, choices."""
    for command in root.all():
        options = [option for option in command.options if option.takes_value]
        yield from ((command.words, option.names, option.choices) for option in options
                    if option.choices)  # fmt: skip
        names = tuple(name for option in options if not option.choices for name in option.names)
        if names:
            yield command.words, names, ()


def _zsh(root: Command) -> str:
    places = "|".join(f'"{words}"' for words in _groups(root))
    lines = [
        "#compdef reput",
        "_reput() {",
        "  local place=reput i",
        "  local -a below flags choices",
        "  for ((i = 2; i < CURRENT; i++)); do",
        f'    case "$place ${{words[i]}}" in ({places}) place+=" ${{words[i]}}";; esac',
        "  done",
        '  case "$place ${words[CURRENT-1]}" in',
    ]
    for words, names, choices in _values(root):
        patterns = "|".join(f'"{words} {name}"' for name in names)
        action = f"choices=({' '.join(choices)}); compadd -a choices" if choices else "_files"
        lines.append(f"    ({patterns}) {action}; return;;")
    lines += ["  esac", '  case "$place" in']
    for command in root.all():
        below = " ".join(_described(child.name, child.help) for child in command.commands)
        flags = " ".join(
            _described(name, option.help) for option in command.options for name in option.names
        )
        lines.append(f'    ("{command.words}") below=({below}); flags=({flags});;')
    lines += [
        "  esac",
        "  if [[ $PREFIX == -* ]]; then _describe -o option flags",
        "  elif (( $#below )); then _describe command below",
        "  else _files; fi",
        "}",
        'if [[ "$funcstack[1]" == _reput ]]; then _reput "$@"; else compdef _reput reput; fi',
    ]
    return "\n".join(lines) + "\n"


def _described(name: str, text: str) -> str:
    return _quoted(f"{name}:{text.replace(':', ' -')}")


def _fish(root: Command) -> str:
    cases = " ".join(_quoted(words) for words in _groups(root))
    lines = [
        "function __reput_at",
        "  set -l place reput",
        "  for word in (commandline -opc)[2..-1]",
        '    switch "$place $word"',
        f"      case {cases}",
        '        set place "$place $word"',
        "    end",
        "  end",
        '  test "$place" = "$argv"',
        "end",
        "complete -c reput -e",
    ]
    for command in root.all():
        begin = f"complete -c reput -n {_quoted('__reput_at ' + command.words)}"
        lines += [
            f"{begin} -f -a {child.name} -d {_quoted(child.help)}" for child in command.commands
        ]
        for option in command.options:
            letters = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            value = " -r" if option.takes_value else ""
            if option.choices:
                value = f" -x -a {_quoted(' '.join(option.choices))}"
            lines.append(f"{begin} {letters}{value} -d {_quoted(option.help)}")
    return "\n".join(lines) + "\n"


_SCRIPTS = {Shell.BASH: _bash, Shell.ZSH: _zsh, Shell.FISH: _fish}
