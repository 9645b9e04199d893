"""The providers that are known, and which of them a request goes to, with which key.

A key goes where its owner is: to the provider's own base URL, or to the one that the user set for that very provider
(`NAME_BASE_URL` beside the key, or `[providers.NAME]`). A base URL given alone is a server of its own (`custom`): it gets
no other provider's key, only AGENTD_API_KEY or what `[providers.custom]` names, and the model's name goes to it as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Struct, UnsetType

from agentd.providers.keys import Secret, read_key_file, run_key_command, usable
from agentd.providers.openai_chat_request import ChatQuirks
from agentd.providers.proxies import PROXY_ENV
from agentd.providers.wires import WIRES
from tracewriter.events import Failure

CERTIFICATE_ENV: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class ProviderSpec(Struct, frozen=True):
    """A provider as the catalog knows it.

    `default_model` "" keeps it out of the choice that is made when no model is named. `families` are beginnings of model
    names that only this provider has. `host_port`: `base_url_env` holds a host, with this port unless it names another.
    `model_wires`: wires of models (by pattern) that are not on the provider's own; the first that fits counts.
    `bearer`: its key goes in `Authorization: Bearer`, whatever the wire's own header; so do those out of `bearer_env`.
    `models_path`: where on the host its list of models is, when not where its wire has it. `headers` go with every request.
    """

    name: str
    wire: str
    base_url: str
    key_env: tuple[str, ...] = ()
    base_url_env: str = ""
    default_model: str = ""
    local: bool = False
    aliases: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    host_port: int | None = None
    model_wires: tuple[tuple[str, str], ...] = ()
    bearer: bool = False
    bearer_env: tuple[str, ...] = ()
    models_path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    quirks: ChatQuirks = ChatQuirks()


class ProviderOverride(Struct, frozen=True, forbid_unknown_fields=True):
    """`[providers.NAME]` of the configuration: changes a known provider or adds one. Absent fields change nothing.

    `key_command` is a program and its arguments, run without a shell; it prints the key. An environment variable that
    `key_env` names comes before `key_file`, and that before `key_command`.
    """

    base_url: str | None = None
    uds: str | None = None
    key_env: str | None = None
    key_file: str | None = None
    key_command: tuple[str, ...] | None = None
    wire: str | None = None
    model: str | None = None
    bearer: bool | None = None


class Choice(Struct, frozen=True):
    """Where requests of a session go. `key_name` says where the key came from; `notes` are lines for the user."""

    spec: ProviderSpec
    model: str
    base_url: str
    uds: str | None = None
    key: Secret | None = None
    key_name: str = ""
    notes: tuple[str, ...] = ()

    @property
    def bearer(self) -> bool:
        """The key goes in `Authorization: Bearer`, not in the wire's own header."""
        return self.spec.bearer or self.key_name in self.spec.bearer_env


_STRICT: Final = ChatQuirks(send_back=())
LOCAL_URL: Final = "http://local.invalid/v1"  # nobody's: those models have sockets of their own
# OpenAI's models that chat completions answers with 404: "only supported in v1/responses".
_RESPONSES_ONLY: Final = ("*-codex*", "codex-*", "o[13]-pro*", "gpt-*-pro*", "*-deep-research*", "computer-use-*")

CATALOG: Final[tuple[ProviderSpec, ...]] = (
    ProviderSpec(
        "openai", "openai-chat", "https://api.openai.com/v1", ("OPENAI_API_KEY",), "OPENAI_BASE_URL", "gpt-5.4-mini",
        families=("gpt-", "chatgpt-", "codex-", "o1", "o3", "o4"),
        model_wires=tuple((pattern, "openai-responses") for pattern in _RESPONSES_ONLY),
        quirks=ChatQuirks(max_tokens_field="max_completion_tokens", send_back=()),
    ),
    ProviderSpec(
        "anthropic", "anthropic", "https://api.anthropic.com/v1", ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        "ANTHROPIC_BASE_URL", "claude-sonnet-4-6", families=("claude-",), bearer_env=("ANTHROPIC_AUTH_TOKEN",),
    ),
    ProviderSpec(
        "gemini", "gemini", "https://generativelanguage.googleapis.com/v1beta", ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "GEMINI_BASE_URL", "gemini-2.5-flash", aliases=("google",), families=("gemini-",),
    ),
    ProviderSpec(
        "groq", "openai-chat", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), "GROQ_BASE_URL",
        "openai/gpt-oss-120b", quirks=_STRICT,
    ),
    ProviderSpec(
        "mistral", "openai-chat", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",), "MISTRAL_BASE_URL",
        "mistral-medium-latest", families=("mistral-", "codestral", "devstral", "magistral-", "ministral-"),
        # 422 on stream_options; usage comes unasked
        quirks=ChatQuirks(include_usage=False, send_back=(), nine_ids=True),
    ),
    ProviderSpec(
        "deepseek", "openai-chat", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",), "DEEPSEEK_BASE_URL",
        "deepseek-chat", families=("deepseek-",), quirks=ChatQuirks(reasoning_field="reasoning_content", send_back=()),
    ),
    ProviderSpec(
        "xai", "openai-chat", "https://api.x.ai/v1", ("XAI_API_KEY",), "XAI_BASE_URL", "grok-code-fast-1",
        families=("grok-",), quirks=_STRICT,
    ),
    ProviderSpec(
        "together", "openai-chat", "https://api.together.xyz/v1", ("TOGETHER_API_KEY",), "TOGETHER_BASE_URL",
        "openai/gpt-oss-120b", quirks=ChatQuirks(send_back=(), think_split=True),
    ),
    ProviderSpec(
        "fireworks", "openai-chat", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",), "FIREWORKS_BASE_URL",
        "accounts/fireworks/models/gpt-oss-120b", quirks=ChatQuirks(send_back=(), think_split=True),
    ),
    ProviderSpec(
        "openrouter", "openai-chat", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",), "OPENROUTER_BASE_URL",
        "openrouter/auto",
    ),
    ProviderSpec(
        "cerebras", "openai-chat", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",), "CEREBRAS_BASE_URL",
        "gpt-oss-120b", quirks=_STRICT,
    ),
    ProviderSpec(  # its models call no tools: never chosen by itself
        "perplexity", "openai-chat", "https://api.perplexity.ai", ("PERPLEXITY_API_KEY",), "PERPLEXITY_BASE_URL",
        families=("sonar",), quirks=ChatQuirks(send_back=(), think_split=True),
    ),
    ProviderSpec(  # GITHUB_TOKEN is mostly there for other things: never chosen by itself
        "copilot", "openai-chat", "https://api.githubcopilot.com", ("GITHUB_COPILOT_TOKEN", "GITHUB_TOKEN"),
        "COPILOT_BASE_URL", aliases=("github-copilot",), headers=(("openai-intent", "conversation-edits"),),
    ),
    ProviderSpec("demo", "openai-chat", "http://localhost/v1", local=True),  # the scripted model of `agentctl demo`
    ProviderSpec("local", "openai-chat", LOCAL_URL, local=True),  # GGUF files by name or path: agentd.providers.local
    ProviderSpec(
        "ollama", "openai-chat", "http://localhost:11434/v1", base_url_env="OLLAMA_HOST", local=True, host_port=11434,
        models_path="/api/tags", quirks=ChatQuirks(send_back=(), think_split=True),
    ),
    ProviderSpec(
        "lmstudio", "openai-chat", "http://localhost:1234/v1", base_url_env="LMSTUDIO_HOST", local=True, host_port=1234,
        quirks=ChatQuirks(send_back=(), think_split=True),
    ),
)  # fmt: skip

CUSTOM: Final = ProviderSpec("custom", "openai-chat", "", ("AGENTD_API_KEY",))
_PUBLIC: Final = {spec.name: spec.base_url for spec in CATALOG if spec.key_env}
_DEFAULT_MODEL: Final = "default"  # servers with one model take any name
_NO_KEY_HINT: Final = "`agentctl demo` needs no key, and `-m ollama/NAME` asks a local Ollama"

Overrides = Mapping[str, ProviderOverride]
KeyReader = Callable[[str], Secret | Failure]
KeyRunner = Callable[[tuple[str, ...]], Secret | Failure]


class KeyReaders(Struct, frozen=True):
    """How a key is read from a file, and how a command is asked for one. Both may block for a while."""

    file: KeyReader = read_key_file
    command: KeyRunner = run_key_command


_READERS: Final = KeyReaders()


def specs(overrides: Overrides) -> dict[str, ProviderSpec]:
    """All providers by name, the configuration's changes and additions applied; `custom` is among them."""
    known = {spec.name: spec for spec in (*CATALOG, CUSTOM)}
    for name, override in overrides.items():
        spec = known.get(name, ProviderSpec(name, "openai-chat", ""))
        known[name] = msgspec.structs.replace(
            spec,
            base_url=override.base_url or ("http://localhost/v1" if override.uds else spec.base_url),
            wire=override.wire or spec.wire,
            model_wires=() if override.wire else spec.model_wires,
            key_env=(override.key_env,) if override.key_env else spec.key_env,
            default_model=override.model or spec.default_model,
            bearer=spec.bearer if override.bearer is None else override.bearer,
        )
    return known


def for_model(spec: ProviderSpec, model: str) -> ProviderSpec:
    """The provider as this model of it is asked: on a wire of its own, where it has one."""
    wire = next((wire for pattern, wire in spec.model_wires if fnmatchcase(model, pattern)), spec.wire)
    return msgspec.structs.replace(spec, wire=wire)


def env_names(overrides: Overrides) -> tuple[str, ...]:
    """The environment variables that `resolve` and the transport read: what a client is asked for, and nothing else."""
    names: list[str] = []
    for spec in specs(overrides).values():
        names += [*spec.key_env, spec.base_url_env]
    return tuple(dict.fromkeys(name for name in (*names, *PROXY_ENV, *CERTIFICATE_ENV) if name))


def secret_values(env: Mapping[str, str], overrides: Overrides) -> tuple[str, ...]:
    """The values in `env` that are keys: what a recorder must know as exact values to redact."""
    names = {name for spec in specs(overrides).values() for name in spec.key_env}
    return tuple(sorted({value for name in names if len(value := env.get(name, "").strip()) >= 8}))


def resolve(
    model: str | None,
    *,
    base_url: str | None = None,
    uds: str | None = None,
    env: Mapping[str, str],
    overrides: Overrides = {},  # noqa: B006 - never written to
    default_provider: str = "",
    keys: KeyReaders = _READERS,
) -> Choice | Failure:
    """Where a request for `model` (`provider/model`, a bare id, or None) goes.

    Failure kinds: no_model (nothing to choose from), unknown_provider, no_key, config (a setting that cannot work).
    """
    known = specs(overrides)
    if base_url or uds:
        return _explicit(model, base_url, uds, known, env, overrides, keys)
    if model is None or not model.strip():
        return _unnamed(known, env, overrides, default_provider, keys)
    prefix, slash, rest = model.strip().partition("/")
    spec = named(prefix, known)
    if slash and rest and spec is not None:
        return _choose(spec, rest, env, overrides, keys)
    if not slash:
        return _bare(model.strip(), known, env, overrides, default_provider, keys)
    if spec is not None:
        return Failure("no_model", f"no model is named after {prefix}/", f"`agentctl models {prefix}` lists them")
    names = ", ".join(known)
    hint = (
        f"known providers: {names}; one new in config.toml is known after `agentctl stop`;"
        f" write PROVIDER/{_shown(model.strip())} if it is the model's own name"
    )
    return Failure("unknown_provider", f"no provider is called {_quoted(prefix)}", hint)


def named(name: str, known: Mapping[str, ProviderSpec]) -> ProviderSpec | None:
    """The provider of this name, or of this other name."""
    return known.get(name) or next((spec for spec in known.values() if name in spec.aliases), None)


def _explicit(
    model: str | None,
    base_url: str | None,
    uds: str | None,
    known: Mapping[str, ProviderSpec],
    env: Mapping[str, str],
    overrides: Overrides,
    keys: KeyReaders,
) -> Choice | Failure:
    """A base URL or a socket was given: who is named with it is asked there (with the key, which the user put together with
    that address); a provider's own address is that provider; all else is `custom`, which gets no other provider's key."""
    model = (model or "").strip()
    prefix, _, rest = model.partition("/")
    prefixed = named(prefix, known) if rest else None
    spec, notes = known["custom"], list[str]()
    owner = next((one for one in known.values() if not uds and base_url and _same_place(base_url, one.base_url)), None)
    if owner is not None or prefixed is not None:
        spec = owner or prefixed or spec
        model = rest if prefixed is spec else model
    if base_url and spec.name in _PUBLIC and not _same_place(base_url, _PUBLIC[spec.name]) and _key_in(spec, env)[1]:
        notes.append(f"{spec.name} was named with another address: its key goes to {urlsplit(base_url).netloc[:80]}")
    if not model:
        model = spec.default_model or _DEFAULT_MODEL
        notes.append(f"no model was named: asking the server for {_quoted(model)}")
    place = msgspec.structs.replace(spec, base_url=base_url or "http://localhost/v1", base_url_env="")
    return _choose(place, model, env, overrides, keys, notes=notes, uds=uds)


def _unnamed(
    known: Mapping[str, ProviderSpec],
    env: Mapping[str, str],
    overrides: Overrides,
    default_provider: str,
    keys: KeyReaders,
) -> Choice | Failure:
    order = sorted(known.values(), key=lambda spec: spec.name != default_provider)
    usable_specs = [spec for spec in order if spec.default_model and _has_key(spec, env, overrides)]
    spoken = [spec for spec in usable_specs if spec.wire in WIRES]
    if spoken:
        spec = spoken[0]
        why = "the default provider" if spec.name == default_provider else "the first provider with a key"
        note = f"no model was named: using {spec.name}/{spec.default_model}, {why}"
        return _choose(spec, spec.default_model, env, overrides, keys, notes=[note])
    if usable_specs:
        return _not_spoken(usable_specs[0])
    return Failure(
        "no_model",
        "no model is configured and no provider's key is set",
        "try `agentctl demo` (no key, no network), a local model (`agentctl models pull smollm2`, then `-m local/smollm2`; with"
        " Ollama `-m ollama/NAME`), or export a key such as OPENAI_API_KEY in this shell",
    )


def _bare(
    model: str,
    known: Mapping[str, ProviderSpec],
    env: Mapping[str, str],
    overrides: Overrides,
    default_provider: str,
    keys: KeyReaders,
) -> Choice | Failure:
    """A model without a provider: the default one, else the family's, else the first with a key; the choice is said."""
    spec = known.get(default_provider)
    why = "the default provider"
    if spec is None:
        spec, why = (
            next((one for one in known.values() if model.startswith(one.families or ("\0",))), None),
            "its family",
        )
    if spec is None:
        keyed = (
            one for one in known.values() if one.default_model and one.wire in WIRES and _has_key(one, env, overrides)
        )
        spec, why = next(keyed, None), "the first provider with a key"
    if spec is None:
        return Failure(
            "unknown_provider",
            f"{_quoted(model)} names no provider, and none has a key",
            f"write PROVIDER/{_shown(model)}, such as ollama/{_shown(model)}; `agentctl demo` needs no key",
        )
    note = f"{_quoted(model)} names no provider: using {spec.name} ({why})"
    return _choose(spec, model, env, overrides, keys, notes=[note])


def _choose(
    spec: ProviderSpec,
    model: str,
    env: Mapping[str, str],
    overrides: Overrides,
    keys: KeyReaders,
    *,
    notes: Iterable[str] = (),
    uds: str | UnsetType | None = UNSET,
) -> Choice | Failure:
    """Put the pieces together. `uds` UNSET: the configuration's, if any."""
    spec = for_model(spec, model)
    if spec.wire not in WIRES:
        return _not_spoken(spec)
    override = overrides.get(spec.name, ProviderOverride())
    base_url = _base_url(spec, env, override)
    bad = base_url_problem(base_url)
    if bad:
        return Failure("config", f"the base URL of {spec.name} {bad}", "it looks like http://localhost:8000/v1")
    key, key_name = _key_in(spec, env)
    if not key or override.key_env is None:  # a variable that the configuration names comes first
        found = _configured_key(override, keys)
        if isinstance(found, Failure):
            return found
        key, key_name = found or (key, key_name)
    if key and not usable(key):
        return Failure(
            "config", f"{key_name} holds characters that no key has", "look for a line break or a quote in it"
        )
    if not key and _needs_key(spec, base_url, override):
        return _no_key(spec)
    secret = Secret(key) if key else None
    socket = override.uds if uds is UNSET else uds
    return Choice(spec, model, base_url, socket, secret, key_name if key else "", tuple(notes))


def _configured_key(override: ProviderOverride, keys: KeyReaders) -> tuple[str, str] | Failure | None:
    """The key of key_file or key_command, and its name in messages; None when the configuration names neither."""
    if override.key_file:
        found, name = keys.file(override.key_file), f"the key file {_shown(override.key_file)}"
    elif override.key_command:
        found, name = keys.command(override.key_command), f"the output of `{_shown(override.key_command[0])}`"
    else:
        return None
    return found if isinstance(found, Failure) else (found.reveal(), name)


def _needs_key(spec: ProviderSpec, base_url: str, override: ProviderOverride) -> bool:
    """The catalog's public servers want one, and those for which the configuration names one; others may do without."""
    return override.key_env is not None or (spec.name in _PUBLIC and _same_place(base_url, _PUBLIC[spec.name]))


def _no_key(spec: ProviderSpec) -> Failure:
    names = " and ".join(spec.key_env)
    verb = "is" if len(spec.key_env) == 1 else "are"
    return Failure(
        "no_key",
        f"no key for {spec.name}: {names} {verb} not set",
        f"export {spec.key_env[0]}=… in this shell and try again; {_NO_KEY_HINT}",
    )


def _not_spoken(spec: ProviderSpec) -> Failure:
    return Failure(
        "config",
        f"{spec.name} speaks {spec.wire}, which this version does not speak yet",
        f"spoken: {', '.join(WIRES)}; its models are also behind openrouter/{spec.name}/…",
    )


def _base_url(spec: ProviderSpec, env: Mapping[str, str], override: ProviderOverride) -> str:
    given = env.get(spec.base_url_env, "").strip() if spec.base_url_env and not override.base_url else ""
    if not given:
        return spec.base_url.rstrip("/")
    return _host_url(given, spec.host_port) if spec.host_port else given.rstrip("/")


def _host_url(value: str, port: int) -> str:
    """OLLAMA_HOST and its like: a host, host:port, :port or a URL; an address to listen on is asked on loopback."""
    scheme, mark, rest = value.rpartition("://")
    host = rest.rstrip("/")
    if host.endswith("/v1"):
        host = host[: -len("/v1")]
    host = host.replace("0.0.0.0", "127.0.0.1", 1) if host.startswith("0.0.0.0") else host
    if host.startswith(":"):
        host = f"localhost{host}"
    if ":" not in host.rpartition("]")[2] and "/" not in host and not (mark and scheme == "https"):
        host = f"{host}:{port}"
    return f"{scheme or 'http'}://{host}/v1"


def base_url_problem(url: str) -> str:
    """What is wrong with a base URL, as the end of a sentence; "" when nothing is."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        return "is no http:// or https:// URL" if url else "is not set"
    return "holds a user name or password: name the key with key_env or key_file" if "@" in parts.netloc else ""


def _same_place(url: str, other: str) -> bool:
    """Whether two URLs are one server: a key that belongs to the one may go to the other."""
    if base_url_problem(url) or base_url_problem(other):
        return False
    a, b = urlsplit(url), urlsplit(other)
    ports = {"http": 80, "https": 443}
    return (a.scheme, a.hostname, a.port or ports[a.scheme]) == (b.scheme, b.hostname, b.port or ports[b.scheme])


def _key_in(spec: ProviderSpec, env: Mapping[str, str]) -> tuple[str, str]:
    return next(((value, name) for name in spec.key_env if (value := env.get(name, "").strip())), ("", ""))


def _has_key(spec: ProviderSpec, env: Mapping[str, str], overrides: Overrides) -> bool:
    override = overrides.get(spec.name, ProviderOverride())
    own = override.model and (spec.local or override.base_url or override.uds)
    return bool(_key_in(spec, env)[0] or override.key_file or override.key_command or own)


def _quoted(text: str) -> str:
    return f"'{_shown(text)}'"


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:80])
