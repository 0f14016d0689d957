"""`wings token`: create, alter, list and revoke tokens."""

import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from wings_client._arguments import build
from wings_client.cli.app import command_group
from wings_client.cli.endpoint import act
from wings_client.cli.options import (
    DEFAULT,
    Confirmation,
    EndpointOption,
    FormatOption,
    grouped,
)
from wings_client.cli.output import write_list
from wings_core.contracts.actions import QuotasBody, TokenAlter, TokenCreate, TokenList, TokenRevoke
from wings_core.security.quotas import Quotas
from wings_core.security.tokens import no_token

app = command_group("Create, alter, list and revoke the tokens that callers present.")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the token and its principal.")
]

QuotaOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=NUMBER",
        help="A limit: calls (in progress) and bytes (in flight) at each node; topics (that it may "
        "administer) and partitions (of keyed topics that it may write to). Repeatable; unbounded "
        "if not given.",
    ),
]


@app.command()
def create(
    name: NameArgument,
    *,
    grant: Annotated[
        list[str],
        typer.Option(
            metavar="RIGHT=PATTERN",
            help="read, write, share, admin or metrics on a full name, or on a prefix with a "
            "trailing *; repeatable.",
        ),
    ],
    expires: Annotated[
        str | None,
        typer.Option(metavar="90d", help="90d, 12h, or a time in RFC 3339. Default: never."),
    ] = None,
    quota: QuotaOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Create a token and print it; it cannot be shown again, as only its hash is stored.

    Once a token exists, every call needs one. `admin=*` makes an operator, who may do everything:
    create that first, or start the server with WINGS_ROOT_TOKEN.
    """
    body = build(
        TokenCreate, "token", name=name, grants=tuple(grant), expires=expires, quotas=_quotas(quota)
    )
    created = act(endpoint, "token-create", body, repeatable=False)
    sys.stderr.write(f"{created['name']}: {', '.join(created['grants'])}; keep what follows\n")
    typer.echo(created["token"])


@app.command()
def alter(
    name: NameArgument,
    *,
    quota: QuotaOption = None,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Replace all quotas of a token by the given ones, or by none, for future calls."""
    body = build(TokenAlter, "token", name=name, quotas=_quotas(quota))
    altered = act(endpoint, "token-alter", body, repeatable=False)
    sys.stderr.write(f"{name}: {_shown(altered['quotas']) or 'no quotas'}\n")


@app.command("list")
def list_tokens(
    *, wanted_format: FormatOption = "table", endpoint: EndpointOption = DEFAULT
) -> None:
    """List all tokens, expired ones included, without their texts."""
    found = act(endpoint, "token-list", TokenList(), repeatable=False)
    write_list(
        ("name", "expires", "grants", "quotas"),
        (
            (
                each["name"],
                each["expires_at"] or ("never" if wanted_format == "table" else None),
                " ".join(each["grants"]),
                _shown(each.get("quotas", {})),
            )
            for each in found
        ),
        wanted_format,
    )


@app.command()
@grouped
def revoke(
    name: NameArgument,
    *,
    confirmation: Confirmation,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Revoke a token: within five seconds it is rejected everywhere, and its open streams end.

    Asks for confirmation on a terminal; elsewhere `--yes` is required.
    """
    if confirmation.dry_run:
        tokens = act(endpoint, "token-list", TokenList())
        if name not in [each["name"] for each in tokens]:
            raise no_token(name)
    confirmation.ask(f"Revoke the token {name}")
    act(endpoint, "token-revoke", TokenRevoke(name=name), repeatable=False)
    sys.stderr.write(f"revoked {name}\n")


def _quotas(texts: list[str] | None) -> QuotasBody:
    return QuotasBody(**Quotas.parse(texts or ()).to_json())


def _shown(quotas: Mapping[str, int]) -> str:
    return " ".join(f"{name}={number}" for name, number in quotas.items())
