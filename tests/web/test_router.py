"""Routes find their handlers, and say what they would have taken instead."""

from __future__ import annotations

import pytest

from penstock.web.router import Found, Router, WrongMethod


@pytest.fixture
def routes() -> Router[str]:
    router: Router[str] = Router()
    for method, path in (
        ("GET", "/jobs"),
        ("POST", "/jobs"),
        ("POST", "/jobs/batch"),
        ("GET", "/jobs/{id}"),
        ("DELETE", "/jobs/{id}"),
        ("GET", "/jobs/{id}/result"),
        ("GET", "/jobs/special/note"),
        ("GET", "/schemas/{uri*}"),
        ("GET", "/schemas/{type}/versions"),
    ):
        router.add(method, path, f"{method} {path}")
    return router


@pytest.mark.parametrize(
    ("method", "path", "handler", "params"),
    [
        ("GET", "/jobs", "GET /jobs", {}),
        ("POST", "/jobs/batch", "POST /jobs/batch", {}),
        ("GET", "/jobs/7", "GET /jobs/{id}", {"id": "7"}),
        ("HEAD", "/jobs/7", "GET /jobs/{id}", {"id": "7"}),
        ("GET", "/jobs/a%2Fb%20c", "GET /jobs/{id}", {"id": "a/b c"}),
        ("GET", "/jobs/7/result", "GET /jobs/{id}/result", {"id": "7"}),
        ("GET", "/jobs/special/note", "GET /jobs/special/note", {}),
        ("GET", "/jobs/special/result", "GET /jobs/{id}/result", {"id": "special"}),
        ("GET", "/schemas/urn:x/y/z", "GET /schemas/{uri*}", {"uri": "urn:x/y/z"}),
        ("GET", "/schemas/mail/versions", "GET /schemas/{type}/versions", {"type": "mail"}),
    ],
)
def test_a_path_finds_its_handler(
    routes: Router[str], method: str, path: str, handler: str, params: dict[str, str]
) -> None:
    assert routes.find(method, path) == Found(handler, params)


@pytest.mark.parametrize(
    "path", ["/", "", "/job", "/jobs/", "/jobs/7/", "/jobs//result", "/jobs/7/x"]
)
def test_a_path_nobody_has_is_none(routes: Router[str], path: str) -> None:
    assert routes.find("GET", path) is None


def test_a_known_path_says_which_methods_it_takes(routes: Router[str]) -> None:
    assert routes.find("PUT", "/jobs/7") == WrongMethod(("DELETE", "GET"))
    assert routes.find("GET", "/jobs/batch") == WrongMethod(("POST",))


def test_a_route_can_be_added_once(routes: Router[str]) -> None:
    with pytest.raises(ValueError, match="has a handler already"):
        routes.add("GET", "/jobs/{other}", "again")


def test_all_routes_are_listed(routes: Router[str]) -> None:
    listed = routes.routes()

    assert ("GET", "/jobs/{id}/result") in listed
    assert ("GET", "/schemas/{uri*}") in listed
    assert len(listed) == 9
