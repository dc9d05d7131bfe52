"""The page's routes. Open to everybody: what the page shows it asks for itself, with the operator's key."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from router.dashboard.files import PAGE, PageFile, page_files
from router.http.fault import Fault

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Of every file: nothing inline, nothing from elsewhere, nobody's frame, and no text that becomes markup."""


def dashboard_routes() -> list[Route]:
    table = _Table(page_files())
    return [
        Route("/dashboard", table.page, methods=["GET"]),
        Route("/dashboard/{file:path}", table.file, methods=["GET"]),
    ]


class _Table:
    def __init__(self, files: Mapping[str, PageFile]) -> None:
        self._files = files

    async def page(self, request: Request) -> Response:
        return _told(self._files[PAGE], request)

    async def file(self, request: Request) -> Response:
        """Raises Fault."""
        asked: str = request.path_params["file"]
        if not asked:
            return RedirectResponse("../dashboard", 307)
        if asked not in self._files:
            raise Fault(404, f"there is nothing at {request.url.path[:100]}", code="not_found")
        return _told(self._files[asked], request)


def _told(file: PageFile, request: Request) -> Response:
    """A browser asks each time whether it has changed: after an upgrade, nobody runs half of the old page."""
    headers = {**HEADERS, "cache-control": "no-cache", "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
