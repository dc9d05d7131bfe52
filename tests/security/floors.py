"""For each package, the first version without a vulnerability that concerned us. The list is maintained by hand; a
vulnerability database has more."""

FLOORS = {
    "grpcio": ("1.65.4", "CVE-2023-33953, -32731, -32732, -4785, -1428 and CVE-2024-7246: HPACK, HTTP/2 floods"),
    "protobuf": ("6.31.1", "CVE-2025-4565: endless recursion in nested messages"),
    "jinja2": ("3.1.6", "CVE-2024-56201, -56326 and CVE-2025-27516: ways out of the sandbox"),
    "markupsafe": ("2.0", "older ones do not go with a safe jinja2"),
    "starlette": ("0.49.1", "CVE-2024-47874, CVE-2025-54121 and -62727: bodies and ranges that exhaust a server"),
    "uvicorn": ("0.11.7", "CVE-2020-7694 and -7695: headers and logs with line ends in them"),
    "h11": ("0.16.0", "CVE-2025-43859: chunked bodies read otherwise than by a proxy before it"),
    "pyyaml": ("5.4", "CVE-2020-14343: code from YAML"),
    "torch": ("2.6.0", "CVE-2025-32434: code from weights; we never call torch.load"),
    "transformers": ("4.53.0", "CVE-2025-3777, -6638 and others: expressions that take for ever; for tests alone"),
    "scikit-learn": ("1.5.0", "CVE-2024-5206: training data kept in a vectoriser"),
    "requests": ("2.32.4", "CVE-2024-47081: passwords sent to another host; for tests alone"),
    "urllib3": ("2.6.0", "CVE-2025-66418 and -66471: compressed answers without a bound; for tests alone"),
    "werkzeug": ("3.1.4", "CVE-2025-66221: device names as paths; for tests alone"),
    "idna": ("3.7", "CVE-2024-3651: names that take for ever"),
    "pillow": ("11.3.0", "CVE-2025-48379: a write past the end of an image"),
}
