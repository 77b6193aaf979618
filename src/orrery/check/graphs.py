"""Two small graph routines that checkers share: strongly connected components and a path."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping

Graph = Mapping[Hashable, Iterable[Hashable]]


def components(graph: Graph) -> dict[Hashable, int]:
    """The number of each node's strongly connected component (Kosaraju). O(nodes + edges).

    >>> parts = components({1: [2], 2: [1, 3], 3: []})
    >>> parts[1] == parts[2], parts[1] == parts[3]
    (True, False)
    """
    finished: list[Hashable] = []
    seen: set[Hashable] = set()
    reverse: dict[Hashable, list[Hashable]] = {node: [] for node in graph}
    for node, targets in graph.items():
        for target in targets:
            reverse[target].append(node)
    for root in graph:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(graph[root]))]
        while stack:
            node, targets = stack[-1]
            fresh = next((t for t in targets if t not in seen), None)
            if fresh is None:
                finished.append(node)
                stack.pop()
            else:
                seen.add(fresh)
                stack.append((fresh, iter(graph[fresh])))
    part: dict[Hashable, int] = {}
    for number, root in enumerate(reversed(finished)):
        if root in part:
            continue
        part[root] = number
        todo = [root]
        while todo:
            for node in reverse[todo.pop()]:
                if node not in part:
                    part[node] = number
                    todo.append(node)
    return part


def path(graph: Graph, start: Hashable, goal: Hashable) -> list[Hashable] | None:
    """A shortest path from start to goal, both included, or None. O(nodes + edges).

    >>> path({"a": ["b"], "b": ["c"], "c": []}, "a", "c")
    ['a', 'b', 'c']
    """
    came: dict[Hashable, Hashable] = {start: start}
    todo = deque([start])
    while todo:
        node = todo.popleft()
        if node == goal:
            walk = [node]
            while walk[-1] != start:
                walk.append(came[walk[-1]])
            return walk[::-1]
        for target in graph.get(node, ()):
            if target not in came:
                came[target] = node
                todo.append(target)
    return None
