#!/usr/bin/env python3
"""Finds import circles between the files of src.

Usage: import_circles.py [DIRECTORY]     the directory with lib.rs; default: src
       import_circles.py --self-test     check the check on small made-up crates

Each file is a node. An edge leads from a file to each file whose items it names, in a `use` or in a path in the code; an item
that is re-exported counts for the file that defines it. Two things are left out:

- Edges between a module and its ancestors, in both directions: `mod.rs` uses its children, and children use what `mod.rs`
  defines. That is the usual shape of a Rust module.
- Code that only tests have: `#[cfg(test)]` items, and the files of `#[cfg(test)] mod`.

Methods that are called without an import are not seen.

It also fails if a module that is for another binary (`APART`) is used outside of itself.

Exit code: 0 if there is neither, otherwise 1.
"""

import re
import sys
import tempfile
from collections import deque
from pathlib import Path

MASKED = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hash>\#*)".*?"(?P=hash)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""", re.S
)
ITEM = re.compile(r"\b(?:struct|enum|union|trait|type|fn|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)")
PATH = re.compile(r"(?<![\w:])(\w+(?:\s*::\s*\w+)+)")


def masked(text):
    """The code without comments and literals; lines stay where they are."""
    return MASKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def without_tests(code):
    """Blanks `#[cfg(test)]` items, and returns the names of the test modules in files of their own."""
    test_modules = set()
    while match := re.search(r"#\[cfg\((?:all\()?test\b[^\]]*\]", code):
        item = re.compile(r"\s*(?:#\[[^\]]*\]\s*)*").match(code, match.end()).end()
        if module := re.compile(r"(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;").match(code, item):
            test_modules.add(module[1])
        is_use = re.compile(r"(?:pub(?:\([^)]*\))?\s+)?use\b").match(code, item)
        end = code.index(";", item) + 1 if is_use else end_of_item(code, item)
        code = code[: match.start()] + re.sub(r"[^\n]", " ", code[match.start() : end]) + code[end:]
    return code, test_modules


def end_of_item(code, start):
    depth = 0
    for index in range(start, len(code)):
        char = code[index]
        depth += (char in "{([") - (char in "})]")
        if depth == 0 and char in "};":
            return index + 1
    return len(code)


def use_paths(tree, prefix=()):
    """The (path, name in this file) pairs of a use tree."""
    tree = tree.strip()
    if "{" in tree:
        head, body = tree.split("{", 1)
        prefix += tuple(part.strip() for part in head.split("::") if part.strip())
        depth, part = 0, ""
        for char in body.rstrip().removesuffix("}") + ",":
            depth += (char == "{") - (char == "}")
            if char == "," and depth == 0:
                if part.strip():
                    yield from use_paths(part, prefix)
                part = ""
            else:
                part += char
        return
    path, _, name = tree.partition(" as ")
    path = prefix + tuple(part.strip() for part in path.split("::") if part.strip())
    if path[-1] == "self":
        path = path[:-1]
    yield path, name.strip() or path[-1]


class Module:
    def __init__(self, file, code):
        self.file, self.code = file, code
        self.uses = {}  # name -> (path, line)
        self.globs = []
        self.items = set(ITEM.findall(code))
        for match in re.finditer(r"\buse\s+([^;]+);", code):
            line = code.count("\n", 0, match.start()) + 1
            for path, name in use_paths(match[1]):
                if name == "*":
                    self.globs.append((path[:-1], line))
                else:
                    self.uses[name] = (path, line)


def modules_of(root):
    """Module path -> Module, without those of tests."""
    found, tests = {}, set()
    for file in sorted(root.rglob("*.rs")):
        if file == root / "main.rs":
            continue
        path = file.relative_to(root).with_suffix("").parts
        path = path[:-1] if path[-1] in ("mod", "lib") else path
        code, test_modules = without_tests(masked(file.read_text()))
        tests |= {path + (name,) for name in test_modules}
        found[path] = Module(file, code)
    return {path: module for path, module in found.items() if not any(path[: len(test)] == test for test in tests)}


def resolve(modules, base, path, seen=()):
    """The module that defines what `path` names in module `base`, and whether it names that module itself."""
    if (base, path) in seen:
        return None
    seen += ((base, path),)
    here, rest = base, list(path)
    if rest[0] == "crate":
        here, rest = (), rest[1:]
    elif rest[0] in ("self", "super"):
        while rest and rest[0] in ("self", "super"):
            here = here[:-1] if rest[0] == "super" else here
            rest = rest[1:]
    elif base + (rest[0],) not in modules and rest[0] not in modules[base].uses:
        return None
    while rest:
        if here + (rest[0],) in modules:
            here, rest = here + (rest[0],), rest[1:]
            continue
        if here in modules and rest[0] in modules[here].uses:
            used, _ = modules[here].uses[rest[0]]
            return resolve(modules, here, used + tuple(rest[1:]), seen)
        if here not in modules or rest[0] in modules[here].items:
            return here, False
        for used, _ in modules[here].globs:
            target = resolve(modules, here, used + tuple(rest), seen)
            if target and target[0] in modules and (target[1] or rest[0] in modules[target[0]].items):
                return target
        return here, False
    return here, True


def edges_of(modules):
    """File -> {file that it names: line}, without the edges between a module and its ancestors."""
    edges = {path: {} for path in modules}
    for base, module in modules.items():
        named = [(path, line) for path, line in module.uses.values()]
        named += [(path + ("*",), line) for path, line in module.globs]
        body = re.sub(r"\buse\s+[^;]+;", lambda match: re.sub(r"[^\n]", " ", match[0]), module.code)
        for match in PATH.finditer(body):
            path = tuple(part.strip() for part in match[1].split("::"))
            named.append((path, body.count("\n", 0, match.start()) + 1))
        for path, line in named:
            target = resolve(modules, base, path)
            # The use of a module names none of its items yet; the paths that begin with it do.
            if target is None or target[1] or target[0] not in modules:
                continue
            target = target[0]
            shared = min(len(base), len(target))
            if base[:shared] != target[:shared]:
                edges[base].setdefault(target, line)
    return edges


def shortest_circle(edges, start):
    before, queue = {start: None}, deque([start])
    while queue:
        node = queue.popleft()
        for after in edges[node]:
            if after == start:
                circle = [node]
                while before[circle[-1]] is not None:
                    circle.append(before[circle[-1]])
                return circle[::-1]
            if after not in before:
                before[after] = node
                queue.append(after)
    return None


def circles(root):
    """The shortest circle through each file that is in one, each as (file, line) pairs."""
    modules = modules_of(root)
    edges = edges_of(modules)
    found = {}
    for start in edges:
        if circle := shortest_circle(edges, start):
            first = circle.index(min(circle))
            circle = circle[first:] + circle[:first]
            steps = zip(circle, circle[1:] + circle[:1])
            found[tuple(circle)] = [(modules[node].file, edges[node][after]) for node, after in steps]
    return list(found.values()), len(modules)


# Modules of the library that no other one may use: they are for another binary.
APART = ["node"]


def uses_apart(root):
    """Uses of a module that is for another binary, as texts."""
    modules = modules_of(root)
    found = []
    for base, edges in edges_of(modules).items():
        for target, line in edges.items():
            if target[:1] and target[0] in APART and base[:1] != target[:1]:
                found.append(f"{modules[base].file.relative_to(root)}:{line} uses {'::'.join(target)}")
    return sorted(found)


def self_test():
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "node").mkdir()
        (root / "lib.rs").write_text("pub mod node; pub mod agent;")
        (root / "node/mod.rs").write_text("mod file; use crate::agent::A; pub struct N;")
        (root / "node/file.rs").write_text("use crate::node::N;")
        (root / "agent.rs").write_text("pub struct A;")
        assert uses_apart(root) == []
        (root / "agent.rs").write_text("pub struct A; fn f() { crate::node::N; }")
        assert uses_apart(root) == ["agent.rs:1 uses node"]

    def names(files):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            for name, text in {"lib.rs": "", **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return sorted([file.relative_to(root).as_posix() for file, _ in circle] for circle in circles(root)[0])

    both = [["a.rs", "b.rs"]]
    assert names({"a.rs": "use crate::b::B;", "b.rs": "use crate::a::A;"}) == both
    assert names({"a.rs": "use crate::b::B;", "b.rs": "struct B;"}) == []
    assert names({"a.rs": "fn f() { super::b::g() }", "b.rs": "fn g() { crate::a::f() }"}) == both, "paths in code"
    assert names({"a.rs": "use crate::b; fn f() { b::g() }", "b.rs": "use super::a; fn g() { a::f() }"}) == both
    three = {"a.rs": "use crate::{b::{B, E}, x};", "b.rs": "use crate::c::C as D;", "c.rs": "use crate::a::*;"}
    assert names(three) == [["a.rs", "b.rs", "c.rs"]]
    reexport = {"m/mod.rs": "mod a; mod b; use b::B;", "m/a.rs": "use super::B;", "m/b.rs": "use super::a::A;"}
    assert names(reexport) == [["m/a.rs", "m/b.rs"]], "the defining file counts"
    glob = {"m/mod.rs": "mod a; mod b; pub use b::*;", "m/a.rs": "use super::B;", "m/b.rs": "use super::a::A; struct B;"}
    assert names(glob) == [["m/a.rs", "m/b.rs"]], "a re-export of all items"
    parent = {"m/mod.rs": "mod a; use a::A; struct M;", "m/a.rs": "use super::M; use crate::m::M as N;"}
    assert names(parent) == [], "a module and its parent"
    test = "use crate::b::B;\n#[cfg(test)]\nmod tests { use crate::c::C; }\n#[cfg(test)]\nmod only;"
    assert names({"a.rs": test, "a/only.rs": "use crate::c::C;", "b.rs": "", "c.rs": "use crate::a::A;"}) == []
    text = "// use crate::b::B;\nconst A: &str = \"use crate::b::B;\";"
    assert names({"a.rs": text, "b.rs": "use crate::a::A;"}) == [], "comments and texts"


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    root = Path(arguments[0] if arguments else "src")
    found, files = circles(root)
    for circle in found:
        print("circle: " + " -> ".join(f"{file}:{line}" for file, line in [*circle, circle[0]]))
    apart = uses_apart(root)
    for use in apart:
        print(f"{use}: only its own binary may use it")
    print(f"{files} files, {len(found)} import circles, {len(apart)} uses of modules of another binary")
    return 1 if found or apart else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
