#!/usr/bin/env python3
"""Finds words that this project replaced by standard terms.

Usage: language.py               print each hit as file:line, and fail when there are more than ALLOWED
       language.py --count       print the number of hits of each phrase

Matches are whole words, whatever their case; parts of snake_case names are words too. EXCEPTIONS has the legitimate uses. ALLOWED
may only go down: lower it when a change removes hits.
"""

import re
import sys
from collections import Counter
from pathlib import Path

ALLOWED = 473

ROOT = Path(__file__).resolve().parents[2]
SEARCHED = [
    *"src tests docs manifests benches .ci".split(),
    *"README.md CONTRIBUTING.md Cargo.toml action.yml test .pre-commit-hooks.yaml certs/README.md".split(),
]
# Texts of other projects, and this list.
SKIPPED = re.compile(r"^tests/(bed/(crds|cert-manager|istiod|go)|fuzz/corpus|schemas/listed|lint)\b|what-names-certificates")

# Each phrase with the term to use.
PHRASES = {
    "tells?|told|telling": "report, print, say",
    r"look(s|ed|ing)?(?![ _]up)": "reconcile, probe, check",
    "glances?": "probe",
    "stands?(?!-in)|stood|standing": "is, has",
    "mend(s|ed|ing)?": "fix",
    "anew": "again; written without its comments; reissued",
    "former": "previous, old",
    "nobody": "no client, no one",
    "whoever": "who, the user that",
    "beside": "next to, in addition to",
    "till": "until; as a name: payments, checkout",
    "of (its|their) own": "separate, own",
    "carr(y|ies|ied|ying) (\\w+ )*through": "run, complete",
    "is to be had": "is available",
    "is given": "state what is passed",
    "so often": "every, interval",
    "held([ _]back)?|holds?[ _]back": "in use, active; blocked, waiting",
    "root[ _]secrets?": "source Secret",
    "gateways' leaf": "serving certificate",
    "settle(s|d)?|settling": "propagation delay",
    "keepers?": "reconciler, controller",
    "ticks?": "reconcile, resync",
    "surroundings": "cluster snapshot",
    "world": "cluster state, snapshot",
    "story|stories": "status summary",
    "weights?": "severity",
    "slip(s|ped)? by": "missed by the webhook",
    "swept|sweeps?|sweeping": "resync",
    "lookalikes?": "malformed PEM",
    "namesakes?": "duplicate subjects",
    "needed by": "used by",
    "goes on with": "keeps",
    "say of itself": "report",
    r"[a-z]+\(s\)": "compute the plural",
}

# Legitimate uses: of files whose path begins so, and a part of a line.
EXCEPTIONS = [
    ("", r"[\"]?weight[\"]?:"),  # a field of Istio's routes
    ("tests/", r"(?i)worlds?"),  # the environment of a test
    ("tests/live/load.rs", r"(?i)ticks?"),  # of processors
    ("README.md", r"Kyma calls it the root secret"),  # once
]


def hits():
    named = [ROOT / name for name in SEARCHED]
    files = [file for path in named for file in ([path] if path.is_file() else path.rglob("*"))]
    words = "|".join(f"(?P<p{number}>{phrase})" for number, phrase in enumerate(PHRASES))
    pattern = re.compile(rf"(?:(?<![a-z])(?:{words}))(?![a-z])", re.IGNORECASE)
    phrases = list(PHRASES)
    for file in sorted(files):
        name = file.relative_to(ROOT).as_posix()
        if not file.is_file() or SKIPPED.search(name):
            continue
        exceptions = [use for path, use in EXCEPTIONS if name.startswith(path)]
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            for use in exceptions:
                line = re.sub(use, "", line)
            for match in pattern.finditer(line):
                yield name, number, match[0], phrases[int(match.lastgroup[1:])]


def main(arguments):
    found = list(hits())
    if arguments == ["--count"]:
        for phrase, count in Counter(phrase for *_, phrase in found).most_common():
            print(f"{count:6} {phrase}")
    elif len(found) > ALLOWED:
        for name, number, text, phrase in found:
            print(f"{name}:{number}: {text}: use {PHRASES[phrase]}")
    print(f"{len(found)} words of the old vocabulary, {ALLOWED} allowed")
    if len(found) < ALLOWED:
        print(f"set ALLOWED in tests/lint/language.py to {len(found)}")
    return 1 if len(found) > ALLOWED else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
