"""What a server's administrator makes: certificates, nkeys and JWTs, fresh for each test."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nkeys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "KeyPair", "creds_text", "operator_config"]


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._signed(self._name, self._key, ca=True, hosts=[])
        self.ca = folder / f"{name.replace(' ', '-')}.pem"
        self.ca.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str) -> Certificate:
        """A certificate and key for ``hosts`` (addresses), usable by servers and clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key, ca=False, hosts=list(hosts))
        files = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool, hosts: list[str]
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if hosts:
            names = [x509.IPAddress(ipaddress.ip_address(host)) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


class KeyPair:
    """A fresh nkey of one role: operator, account or user."""

    def __init__(self, prefix: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self._pair.public_key.decode()

    @classmethod
    def user(cls) -> KeyPair:
        return cls(nkeys.PREFIX_BYTE_USER)

    @classmethod
    def account(cls) -> KeyPair:
        return cls(nkeys.PREFIX_BYTE_ACCOUNT)

    @classmethod
    def operator(cls) -> KeyPair:
        return cls(nkeys.PREFIX_BYTE_OPERATOR)

    def jwt(self, subject: str, name: str, facts: dict[str, Any], lives: int | None = None) -> str:
        """A NATS JWT about ``subject``, signed by this key."""
        claims: dict[str, Any] = {
            "iat": int(time.time()),
            "iss": self.public,
            "name": name,
            "nats": {"version": 2, **facts},
            "sub": subject,
        }
        if lives is not None:
            claims["exp"] = int(time.time()) + lives
        digest = hashlib.new("sha512_256", json.dumps(claims).encode()).digest()
        claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
        head = _b64(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
        body = f"{head}.{_b64(json.dumps(claims).encode())}"
        return f"{body}.{_b64(self._pair.sign(body.encode()))}"


def operator_config(operator: KeyPair, account: KeyPair) -> str:
    """Server configuration that trusts ``operator`` and knows one account with JetStream."""
    unlimited = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1)
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    limits = {**unlimited, "wildcards": True, **storage}
    account_jwt = operator.jwt(account.public, "A", {"type": "account", "limits": limits})
    system = KeyPair.account()  # JetStream insists on one
    system_jwt = operator.jwt(system.public, "SYS", {"type": "account", "limits": unlimited})
    operator_jwt = operator.jwt(operator.public, "O", {"type": "operator"})
    return (
        f"operator: {operator_jwt}\n"
        f"system_account: {system.public}\n"
        f"resolver: MEMORY\n"
        f"resolver_preload: {{ {account.public}: {account_jwt}, {system.public}: {system_jwt} }}\n"
    )


def creds_text(account: KeyPair, user: KeyPair, lives: int | None = None) -> str:
    """The creds file of a user of ``account``, as administrators hand it out."""
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    jwt = account.jwt(user.public, "U", {"type": "user", "pub": {}, "sub": {}, **unlimited}, lives)
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
