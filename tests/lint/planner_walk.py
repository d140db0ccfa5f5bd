#!/usr/bin/env python3
"""Follows one snapshot through the planner as a reader does, and counts the stops.

Starts at `plan` and goes depth first: each function of the folder is read once, where it is first called. A stop is a
change of file: to a function in another file, or back. A return is a stop in a file that was left before.

    planner_walk.py [FOLDER]        default: src/rotation/planner
"""

import re
import sys
from pathlib import Path

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "src/rotation/planner")
functions, types = {}, set()
for path in sorted(folder.rglob("*.rs")):
    if "tests" in path.parts or path.stem == "tests":
        continue
    text = path.read_text().split("#[cfg(test)]\nmod tests {")[0]
    text = re.sub(r"//[^\n]*", "", text)
    types |= set(re.findall(r"\b(?:struct|enum) (\w+)", text))
    owner = None
    for match in re.finditer(r"^impl(?:<[^>]*>)? (?:\w+(?:<[^>]*>)? for )?(\w+)|^}|\bfn (\w+)", text, re.M):
        if match.group(1):
            owner = match.group(1)
        elif not match.group(2):
            owner = None
        else:
            open_brace = text.find("{", match.end())
            semicolon = text.find(";", match.end())
            if open_brace < 0 or 0 <= semicolon < open_brace:
                continue
            depth, at = 1, open_brace + 1
            while depth:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
                at += 1
            functions.setdefault(match.group(2), []).append((path, owner, text[open_brace:at], bool(re.match(r"[^)]*\bself\b", text[match.end():open_brace]))))

read, left, stops, returns, entered = set(), set(), 0, 0, 0


def go(to, here):
    global stops, returns
    if to != here:
        stops += 1
        returns += to in left
        left.add(here)
    return to


def callee(name, qualifier, path, owner, is_method):
    found = [one for one in functions.get(name, []) if one[3] == is_method or qualifier]
    module = [one for one in found if one[0].stem == qualifier]
    if module:
        return module[0]
    if qualifier and qualifier[0].isupper():
        wanted = owner if qualifier == "Self" else qualifier
        found = [one for one in found if one[1] == wanted]
    elif not is_method:
        found = [one for one in found if one[1] is None]
    same = [one for one in found if one[0] == path]
    return (same or found or [None])[0]


def walk(function):
    global entered
    path, owner, body, _ = function
    entered += 1
    for match in re.finditer(r"(?:(\w+)::)?\b(\w+)\b(?=\()|(\w+)::(\w+)(?=[,)])", body):
        name = match.group(2) or match.group(4)
        is_method = body[match.start() - 1] == "."
        qualifier = match.group(1) or match.group(3)
        if not (qualifier or is_method) and re.search(rf"\blet (?:mut )?{name}\b", body[: match.start()]):
            continue  # a closure
        one = callee(name, qualifier, path, owner, is_method)
        if one is None or one in read or one == function:
            continue
        read.add(one)
        go(one[0], path)
        walk(one)
        go(path, one[0])


start = functions["plan"][0] if "plan" in functions else None
start = start or next(iter(functions.values()))[0]
for candidate in functions.get("plan", []):
    if candidate[1] is None:
        start = candidate
read.add(start)
walk(start)
files = {one[0] for one in read}
print(f"{stops} stops, {returns} of them returns, in {len(files)} files; {entered} functions read, {len(types)} types")
