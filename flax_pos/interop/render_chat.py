"""Renders one chat template: `chat.py` starts this file as a process, which imports nothing of the
package. A job (JSON) comes on standard input, the text goes to standard output.
"""

import contextlib
import datetime
import importlib
import json
import sys

FAILED = 3
"""Exit code of a template that went wrong; the reason is on standard error."""


def limit(seconds: int, size: int) -> None:
    """Bounds what this process may take, on systems that can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def render(template: str, variables: dict) -> str:
    """The template's text, with the settings and the helpers that chat templates count on."""
    jinja2 = importlib.import_module("jinja2")
    sandbox = importlib.import_module("jinja2.sandbox")

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    # jinja2's own makes HTML entities.
    environment.filters["tojson"] = lambda value, indent=None, **options: json.dumps(
        value, ensure_ascii=False, indent=indent, **options
    )
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(template).render(**variables)


def main() -> int:
    job = json.load(sys.stdin.buffer)
    sys.path[:] = job["path"]
    limit(job["seconds"], job["bytes"])
    try:
        text = render(job["template"], job["variables"])
        sys.stdout.buffer.write(text.encode())
    except Exception as error:  # whatever a program of strangers may raise
        reason = " ".join(str(error).split())[:300] or "no reason given"
        sys.stderr.write(f"{type(error).__name__}: {reason}")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
