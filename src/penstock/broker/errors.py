"""What can go wrong between us and NATS, each said in one sentence with a remedy.

Answers a broker gives on purpose (a refused write, a duplicate) are values, see
`penstock.broker.publisher`; these are the surprises.
"""

from __future__ import annotations

from penstock.core.errors import PenstockError

__all__ = [
    "AuthFailed",
    "BadHeader",
    "BadSubject",
    "ConsumerGone",
    "LinkBusy",
    "LinkClosed",
    "LinkError",
    "NoResponders",
    "PayloadTooLarge",
    "PullRefused",
    "RequestTimeout",
    "TlsFailed",
    "Unreachable",
]


class LinkError(PenstockError):
    """Something between this process and NATS needs a person's attention."""

    code = "link"
    remedy = "see the log of the NATS server for the same moment"


class Unreachable(LinkError):
    """No server answered at any of the given addresses."""

    code = "link.unreachable"
    remedy = "start the server, or check the address (PENSTOCK_NATS_URL) and the firewall"


class AuthFailed(LinkError):
    """The server did not accept who we say we are."""

    code = "link.auth"
    remedy = "check user and password, token, nkey seed or creds file, and the server's accounts"


class TlsFailed(LinkError):
    """No trusted encrypted connection could be made; nothing secret was sent."""

    code = "link.tls"
    remedy = "check tls_ca, tls_cert and tls_key, and that the certificate names this host"


class LinkClosed(LinkError):
    """The link was closed, by its owner or because the server sent it away for good."""

    code = "link.closed"
    remedy = "open a new link"


class LinkBusy(LinkError):
    """More is under way than the link may hold; nothing was sent."""

    code = "link.busy"
    remedy = "await link.room() before sending, or raise max_in_flight / max_pending_bytes"


class RequestTimeout(LinkError):
    """No answer within the time given; whether the request took effect is unknown."""

    code = "link.timeout"
    remedy = "read back what you wrote, or repeat it under the same message id"


class NoResponders(LinkError):
    """Nobody listens on the subject, so the request certainly had no effect."""

    code = "link.no_responders"
    remedy = "start the service, or check that JetStream is enabled and the stream exists"


class PayloadTooLarge(LinkError):
    """The message exceeds what the server accepts; nothing was sent."""

    code = "link.payload_too_large"
    remedy = "store the value elsewhere and send a reference, or raise max_payload on the server"


class BadSubject(LinkError):
    """A subject that would break the protocol line."""

    code = "link.subject"
    remedy = "subjects are non-empty and hold no spaces, tabs or line breaks"


class BadHeader(LinkError):
    """A header name or value that would break the header block."""

    code = "link.header"
    remedy = "names are printable ASCII without ':' or spaces, values hold no line breaks"


class ConsumerGone(LinkError):
    """The consumer or its stream no longer answers; it must be made again."""

    code = "link.consumer_gone"
    remedy = "make the consumer again and open a new puller"


class PullRefused(LinkError):
    """The server will not serve a pull request as it was asked."""

    code = "link.pull_refused"
    remedy = "compare batch and wait with the consumer's max_batch, max_expires and max_waiting"
